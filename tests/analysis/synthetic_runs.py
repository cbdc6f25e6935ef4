"""Runs that never ran: plans and records as the worker leaves them, with figures that follow simple rules."""

import itertools
import random
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from scalerlt.records.base import Scalar
from scalerlt.records.plan import Plan, PlannedCell
from scalerlt.records.record import Failure, Metric, Record, Spread, Verdict

Axes = dict[str, Scalar]
BATCHES = {"small": (4, 4), "medium": (8, 8), "large": (16, 16)}
SPEED = {"fp64": 0.5, "fp32": 1.0, "bf16": 1.7, "fp16": 1.6}
BYTES = {"fp64": 8, "fp32": 4, "bf16": 2, "fp16": 2}
TOLERANCES = {"fp32": ("abs 1e-05 rel 8e-05", "abs 2e-06 rel 8e-05", "abs 1e-06 rel 8e-05")}
KEPT = {"none": 1.0, "layer": 0.35, "loop": 0.2, "segments": 0.26}
KEPT |= {"prefix": 0.3, "joint": 0.08, "streamed": 0.13, "packed_shared": 0.4, "auto": 0.4}
EXTRA_TIME = {"none": 1.0, "layer": 1.28, "loop": 1.36, "segments": 1.42}
EXTRA_TIME |= {"prefix": 0.31, "joint": 0.5, "streamed": 0.36, "packed_shared": 0.27, "auto": 0.28}
ARMS = ("rollout", "rollout.max_new_tokens", "rollout.exit_threshold", "logprob", "experiment.rewards")
ARMS += ("logprob.replay", "logprob.old", "correction", "experiment.lag")
ARMS += ("rollout.engine", "rollout.engine.shared_prefill", "rollout.deterministic")
Edit = Callable[[dict[str, Metric]], None]


class SyntheticSweep:
    """Writes one sweep's directory, file by file."""

    def __init__(self, path: Path) -> None:
        self.path = path
        path.mkdir(parents=True, exist_ok=True)

    def plan(self, cells: Iterable[PlannedCell], swept: list[str] | None = None) -> Path:
        number = len(list((self.path / "plans").glob("*.json"))) + 1
        file = self.path / "plans" / f"{number:03d}.json"
        file.parent.mkdir(exist_ok=True)
        plan = Plan(
            sweep=self.path.name,
            created="2026-11-29T12:00:00.000+00:00",
            overrides=[],
            swept=swept or [],
            cells=list(cells),
        )
        file.write_text(plan.to_json(), encoding="utf-8")
        return file

    def record(
        self,
        axes: Axes,
        verdict: Verdict = Verdict.MEASURED,
        *,
        attempt: int = 1,
        edit: Edit | None = None,
        **more: Any,
    ) -> Path:
        metrics = figures(axes) if verdict is Verdict.MEASURED else {}
        if edit is not None:
            edit(metrics)
        name = cell_id(axes)
        fields: dict[str, Any] = {
            "start": "fork",
            "overhead_seconds": 0.12 + 0.01 * (len(name) % 5),
            "provenance": {"git_revision": "0123abc", "git_dirty": False, "packages": {"torch": "2.13.0"}},
            "environment": {"host": "node-1", "cpu": "Some Processor", "cpus": 2},
            **more,
        }
        record = Record(
            sweep=self.path.name,
            cell_id=name,
            axes=axes,
            attempt=attempt,
            verdict=verdict,
            metrics=metrics,
            started="2026-11-29T12:00:01.000+00:00",
            ended="2026-11-29T12:00:09.000+00:00",
            **fields,
        )
        file = self.path / name / f"attempt-{attempt:03d}" / "record.json"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(record.to_json(), encoding="utf-8")
        return file


def cell_axes(experiment: str, precision: str, batch: str, checkpoint: str = "none", **more: Scalar) -> Axes:
    """The flat axes of a cell, as planning writes them."""
    prompts, responses = BATCHES[batch]
    return {
        "experiment": experiment,
        "experiment.repeats": 5,
        "model": "tiny_ouro",
        "precision": precision,
        "batch": batch,
        "batch.prompts_per_step": prompts,
        "batch.group_size": responses,
        "checkpoint": checkpoint,
        "device": "cpu",
        "device.type": "cpu",
        "device.threads": 1,
        "seed": 0,
        "cohort": 0,
        **more,
    }


def cell_id(axes: Axes) -> str:
    words = [axes.get(key) for key in ("experiment", "precision", "batch", "checkpoint", "device", "seed", "cohort")]
    more = [
        f"{key}{value}"
        for key, value in axes.items()
        if key.startswith(("x.", "batch.rollout", "block")) or key in ARMS
    ]
    return "-".join(str(word) for word in [*words, *more])


def planned(axes: Axes, **more: Any) -> PlannedCell:
    return PlannedCell(cell_id=cell_id(axes), axes=axes, **more)


def figures(axes: Axes) -> dict[str, Metric]:
    """The figures of a measured cell; larger batches and shorter formats are faster, schedules save memory."""
    if str(axes["experiment"]).startswith("gsm8k"):
        return {}
    noise = random.Random(repr(sorted(axes.items(), key=str)))
    make = _rollout if axes["experiment"] == "rollout_throughput" else _actor_update
    return make(axes, noise)


def repeated(values: list[float], unit: str, scope: str) -> Metric:
    middle = sorted(values)[len(values) // 2]
    return Metric(
        value=middle,
        unit=unit,
        n=len(values),
        values=values,
        spread=Spread(minimum=min(values), maximum=max(values), standard_deviation=0.01),
        scope=scope,
    )


def _responses(axes: Axes) -> int:
    prompts, responses = axes["batch.prompts_per_step"], axes["batch.group_size"]
    assert isinstance(prompts, int)
    assert isinstance(responses, int)
    return prompts * responses


def _memory(live: int, phases: dict[str, float], device: str) -> dict[str, Metric]:
    metrics = {"live_peak_bytes": Metric(value=live, unit="B", method="allocator events")}
    for phase, share in phases.items():
        metrics[f"live_peak_bytes/{phase}"] = Metric(value=int(live * share), unit="B", method="allocator events")
    there, absent = ("cuda", "rss") if device == "cuda" else ("rss", "cuda")
    names = {
        "rss": ("rss_baseline_bytes", "rss_peak_bytes"),
        "cuda": ("cuda_peak_allocated_bytes", "cuda_peak_reserved_bytes"),
    }
    for name in names[there]:
        metrics[name] = Metric(value=live * 3 + 2**28, unit="B", method="reset before the step")
    for name in names[absent]:
        metrics[name] = Metric(status="unsupported", unit="B", reason=f"the device is no {absent} device")
    return metrics


def _rollout(axes: Axes, noise: random.Random) -> dict[str, Metric]:
    responses = _responses(axes)
    tokens = 37 * responses
    precision = str(axes["precision"])
    speed = 90 * responses**0.7 * SPEED[precision]
    seconds = [tokens / speed * noise.uniform(0.9, 1.1) for _ in range(5)]
    rates = [tokens / second for second in seconds]
    error = {"fp64": 0.0, "fp32": 3.1e-7}.get(precision, 2.2e-2)
    return {
        "tokens_per_second": repeated(rates, "token/s", "rollout"),
        "decode_tokens_per_second": repeated([rate * 1.1 for rate in rates], "token/s", "decode"),
        "rollout_seconds": repeated(seconds, "s", "rollout"),
        "prefill_seconds": repeated([second * 0.1 for second in seconds], "s", "prefill"),
        "decode_seconds": repeated([second * 0.9 for second in seconds], "s", "decode"),
        "generated_tokens": Metric(value=tokens, unit="token"),
        "prompt_tokens": Metric(value=20 * responses, unit="token"),
        "padded_tokens": Metric(value=0, unit="token"),
        "recurrent_rows": Metric(value=57 * responses * 4, unit="row"),
        "mean_executed_depth": Metric(value=4.0, unit="loop"),
        "kv_cache_bytes": Metric(value=responses * 65536, unit="B"),
        "logprob_error_learner": Metric(value=error, unit="nat"),
        "logprob_error_fp64": Metric(value=error * 1.5, unit="nat"),
        **_memory(responses * 100_000 * BYTES[precision], {"prefill": 0.6, "decode": 1.0}, str(axes["device"])),
    }


def _actor_update(axes: Axes, noise: random.Random) -> dict[str, Metric]:
    responses = _responses(axes)
    precision, checkpoint = str(axes["precision"]), str(axes["checkpoint"])
    kept = KEPT[checkpoint] * BYTES[precision]
    base = 0.02 * responses / SPEED[precision] * EXTRA_TIME[checkpoint]
    seconds = [base * noise.uniform(0.93, 1.08) for _ in range(5)]
    same = checkpoint == "none"
    live = int(responses * 400_000 * (kept + 0.2 * BYTES[precision]))
    shares = {"forward": 0.8, "backward": 1.0, "optimizer": 0.3}
    return {
        "actor_update_seconds": repeated(seconds, "s", "actor_update"),
        "forward_seconds": repeated([second * 0.3 for second in seconds], "s", "actor_update.forward"),
        "backward_seconds": repeated([second * 0.65 for second in seconds], "s", "actor_update.backward"),
        "optimizer_seconds": repeated([second * 0.05 for second in seconds], "s", "actor_update.optimizer"),
        "trained_tokens_per_second": repeated([37 * responses / s for s in seconds], "token/s", "actor_update"),
        "trained_tokens": Metric(value=37 * responses, unit="token"),
        "padded_tokens": Metric(value=11 * responses, unit="token"),
        "saved_bytes": Metric(value=int(responses * 400_000 * kept), unit="B", method="unique storages"),
        "parameter_bytes": Metric(value=1_234_567 * BYTES[precision], unit="B"),
        "optimizer_bytes": Metric(value=1_234_567 * 8, unit="B"),
        **_memory(live, shares, str(axes["device"])),
        **_errors(precision, same),
    }


def _errors(precision: str, same: bool) -> dict[str, Metric]:
    step = 6e-8 if precision == "fp32" else 4e-3
    error = 0.0 if same else step * 4
    gradient, change, moments = TOLERANCES.get(precision, ("abs 0.003 rel 0.04", "abs 0.0002 rel 0.08", None))
    metrics = {
        "loss": Metric(value=0.6931),
        "grad_norm": Metric(value=1.25),
        "loss_sched_abs": Metric(value=error / 10),
        "grad_sched_relative_l2": Metric(value=error),
        "grad_sched_max_abs": Metric(value=error / 3),
        "grad_sched_cosine": Metric(value=1.0 - error**2),
        "grad_sched_elementwise": Metric(value=error / step / 10, method=gradient),
        "grad_sched_mismatches": Metric(value=0 if same else 1234),
        "grad_sched_relative_l2/attention": Metric(value=error),
        "grad_sched_relative_l2/mlp": Metric(value=error * 1.2),
        "grad_round_relative_l2": Metric(value=step * 9),
        "grad_round_floor_relative_l2": Metric(value=step * 8),
        "grad_round_max_abs": Metric(value=step * 2),
        "grad_round_cosine": Metric(value=1.0 - (step * 9) ** 2),
        "update_sched_parameters_elementwise": Metric(value=error / step / 12, method=change),
        "update_norm": Metric(value=0.0321),
    }
    for name in ("update_sched_exp_avg_elementwise", "update_sched_exp_avg_sq_elementwise"):
        undeclared = Metric(status="not_measured", reason=f"no tolerance is declared for precision={precision}")
        metrics[name] = undeclared if moments is None else Metric(value=error / step / 20, method=moments)
    return metrics


def quickstart_cells() -> list[Axes]:
    rollouts = itertools.product(("fp32", "bf16"), ("small", "medium", "large"))
    updates = itertools.product(("fp32", "bf16", "mxfp8"), ("small", "medium"), ("none", "layer", "loop"))
    return [
        *(cell_axes("rollout_throughput", *point) for point in rollouts),
        *(cell_axes("actor_update", *point) for point in updates),
    ]


def write_quickstart(path: Path, order: random.Random | None = None) -> SyntheticSweep:
    """A sweep with one cell of nearly every fate; `order` shuffles the order in which the files are made."""
    sweep = SyntheticSweep(path)
    cells = quickstart_cells()
    absent = {"state": "unsupported", "reason": "precision=mxfp8 is not implemented"}
    plan = [planned(axes, **(absent if axes["precision"] == "mxfp8" else {})) for axes in cells]
    plan[2] = planned(cells[2], state="skipped", reason="ruled out by the sweep: large fp32 rollouts")
    sweep.plan(plan, swept=["experiment", "precision", "batch", "checkpoint"])
    fates: dict[str, dict[str, Any]] = {
        cell_id(cells[5]): {"verdict": Verdict.TIMEOUT, "reason": "stopped after 60 s"},
        cell_id(cells[8]): {"verdict": Verdict.OOM, "reason": "MemoryError while it ran `forward`"},
        cell_id(cells[13]): {
            "verdict": Verdict.FAILED,
            "failure": Failure(type="ValueError", message="a | b\n\nis <not> *finite* in layer_2"),
        },
        cell_id(cells[14]): {"verdict": Verdict.KILLED, "reason": "signal 9, last RSS 1.2 GiB"},
        cell_id(cells[16]): {"verdict": Verdict.PREEMPTED},
    }
    never = {cell_id(cells[11]), cell_id(cells[2]), *(cell_id(axes) for axes in cells if axes["precision"] == "mxfp8")}
    run = [axes for axes in cells if cell_id(axes) not in never]
    if order is not None:
        order.shuffle(run)
    for axes in run:
        sweep.record(axes, **fates.get(cell_id(axes), {}))
    return sweep
