"""`experiment=readout`: time, memory and error of the log-probs of hidden states, forward and backward."""

import torch
from torch import Tensor, nn

from scalerlt.experiments.building import device_of
from scalerlt.experiments.memory_metrics import record_memory
from scalerlt.learner.readout import FULL, TiledReadout
from scalerlt.learner.step import OnPhase, no_phase
from scalerlt.measure.clock import PhaseTimer, synchronizer, timed
from scalerlt.measure.gradients import compare
from scalerlt.measure.memory import SAVED_METHOD, measure_memory
from scalerlt.numerics.precision import number_format
from scalerlt.records.recorder import Recorder
from scalerlt.schema import Cell
from scalerlt.schema.experiment.readout import Readout

PHASES = ("forward", "backward")


class _Readouts:
    """Hidden states, the output head that reads them out, the tokens, and what the log-probs' gradients are."""

    def __init__(self, chosen: Readout, cell: Cell) -> None:
        generator = torch.Generator().manual_seed(cell.seed)
        device, dtype = device_of(cell), number_format(cell.precision.name).dtype
        head = torch.randn(chosen.vocabulary, chosen.width, generator=generator) / chosen.width**0.5
        self.lm_head = nn.Linear(chosen.width, chosen.vocabulary, bias=False, device="meta")
        self.lm_head.weight = nn.Parameter(head.to(device, dtype))
        self.hidden = torch.randn(chosen.rows, chosen.width, generator=generator).to(device, dtype).requires_grad_()
        self.targets = torch.randint(chosen.vocabulary, (chosen.rows,), generator=generator).to(device)
        self.upstream = torch.randn(chosen.rows, generator=generator).to(device)
        self.temperature = cell.rollout.temperature
        self.readout = FULL if chosen.readout == "full" else TiledReadout(chosen.tile)

    def logits(self, h: Tensor) -> Tensor:
        """Hidden states [..., H] to logits [..., V]."""
        return self.lm_head(h)

    def step(self, on_phase: OnPhase) -> Tensor:
        """One forward and backward pass; the gradients are new."""
        self.hidden.grad = self.lm_head.weight.grad = None
        with on_phase("forward"):
            logprobs = self.readout(self, self.hidden, self.targets, self.temperature)
        with on_phase("backward"):
            logprobs.backward(self.upstream.to(logprobs))
        return logprobs.detach()

    def gradients(self) -> dict[str, Tensor | None]:
        """Of the last step."""
        return {"hidden": self.hidden.grad, "head": self.lm_head.weight.grad}

    def in_fp64(self) -> None:
        """Turn to fp64 over the whole vocabulary, from the same numbers."""
        self.lm_head.double()
        self.hidden = self.hidden.detach().double().requires_grad_()
        self.readout = FULL


def run(cell: Cell, recorder: Recorder) -> None:
    """Measure the readout of the cell."""
    chosen = cell.experiment
    assert isinstance(chosen, Readout)
    with recorder.phase("load"):
        readouts = _Readouts(chosen, cell)
    _measure_time(chosen, cell, recorder, readouts)
    with recorder.measuring("memory"):
        operands = (readouts.hidden, readouts.lm_head.weight)
        report = measure_memory(readouts.step, device=device_of(cell), parameters=operands)
    recorder.metric("saved_bytes", report.saved_bytes, "B", method=f"{SAVED_METHOD}; hidden states too")
    record_memory(recorder, report)
    gradients = sum(operand.nbytes for operand in operands)
    recorder.metric(
        "live_working_bytes", report.step.live - gradients, "B", method="live_peak_bytes less the gradients"
    )
    with recorder.measuring("reference"):
        found, gradient = readouts.step(no_phase), readouts.gradients()
        readouts.in_fp64()
        exact = readouts.step(no_phase)
        errors = compare(gradient, readouts.gradients(), group=str)
    method = "against readout=full in fp64"
    recorder.metric("logprob_error_fp64", float((found - exact).abs().max()), "nat", method=f"max, {method}")
    recorder.metric("gradient_relative_l2", errors.total.relative_l2, method=method)


def _measure_time(chosen: Readout, cell: Cell, recorder: Recorder, readouts: _Readouts) -> None:
    synchronize = synchronizer(device_of(cell))
    timer, phases = PhaseTimer(synchronize), list[dict[str, float]]()

    def step() -> None:
        readouts.step(timer.phase)
        phases.append(timer.take())

    with recorder.measuring("warm_up"):
        timed(lambda: readouts.step(no_phase), synchronize=synchronize, repeats=chosen.warmup)
    with recorder.measuring("time"):
        seconds = timed(step, synchronize=synchronize, repeats=chosen.repeats)
    recorder.repeated("readout_seconds", seconds, "s", scope="readout")
    for phase in PHASES:
        recorder.repeated(f"{phase}_seconds", [taken[phase] for taken in phases], "s", scope=f"readout.{phase}")
