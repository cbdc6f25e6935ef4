"""`experiment=published_fixtures`: token calls and kept bytes of shared prefixes, beside the published numbers.

The published numbers are those of vime, `docs/prefix_rematerialization_results.md`. Bytes that only boundary, tokens
and labels make up do not depend on whose graph it is; those of a whole graph do, and theirs is Megatron-Core's.
"""

from collections.abc import Iterator, Sequence
from functools import partial
from pkgutil import resolve_name
from typing import Literal

import torch
from torch import Tensor

from scalerlt.experiments.building import build_model, objective_of
from scalerlt.learner.batching import TrainingResponse, microbatches
from scalerlt.learner.layout import Estimator, StepRun, no_phase
from scalerlt.learner.optimizer import ActorOptimizer, OptimizerSettings, freeze_exit_gate
from scalerlt.learner.prefix import SharedPrefix
from scalerlt.learner.prefix.boundary import produce
from scalerlt.learner.prefix.wave import wave_of
from scalerlt.learner.step import ActorUpdate
from scalerlt.measure.saved_tensors import SavedTensors
from scalerlt.numerics.precision import number_format
from scalerlt.records.recorder import Recorder
from scalerlt.schema import Cell
from scalerlt.schema.experiment.published_fixtures import PublishedFixtures

PROMPT = 4
RESPONSES = (1, 3, 5)
WAVES = (1, 2, 3)
"""Most responses of a wave."""
FIXTURE = {"hidden_size": 8, "num_hidden_layers": 2, "total_ut_steps": 4, "num_key_value_heads": 2, "head_dim": 4}
PUBLISHED = {
    ("token_calls", "prefix"): 80,
    ("token_calls", "joint"): 160,
    ("boundary_bytes", "prefix"): 2560,
    ("boundary_bytes", "joint"): 2560,
    ("prompt_saved_bytes", "prefix"): 24_544,
    ("prompt_saved_bytes", "joint"): 32,
    ("wave_saved_bytes_least", "prefix"): 56,
    ("wave_saved_bytes_least", "joint"): 2568,
    ("wave_saved_bytes_most", "prefix"): 45_656,
    ("wave_saved_bytes_most", "joint"): 2680,
}
WHOLE_GRAPHS = ("prompt_saved_bytes", "wave_saved_bytes_least", "wave_saved_bytes_most")
"""What depends on the graph where nothing is computed again."""
SETTINGS = OptimizerSettings(name="adamw", learning_rate=1e-3)


def run(cell: Cell, recorder: Recorder) -> None:
    """Count the quantity of the cell."""
    experiment, schedule = cell.experiment, cell.checkpoint.name
    assert isinstance(experiment, PublishedFixtures)
    quantity = experiment.quantity
    with recorder.measuring("count"):
        ours = _Counting(cell).count(quantity)
    recorder.metric("ours", ours, method="counted while it ran")
    published = PUBLISHED.get((quantity, schedule))
    if other := [f"model.{key}={getattr(cell.model, key)}" for key in FIXTURE if FIXTURE[key] != _shape(cell, key)]:
        reason = f"the published fixture has another shape than {', '.join(other)}"
    elif cell.precision.name != "fp32":
        reason = f"the published fixture is in fp32, and this is precision={cell.precision.name}"
    else:
        reason = f"there is no published schedule like checkpoint={schedule}" if published is None else ""
    if reason or published is None:
        recorder.not_measured("published", reason)
        recorder.not_measured("agreement", reason)
        return
    recorder.metric("published", published, method="vime, docs/prefix_rematerialization_results.md")
    recorder.metric("agreement", _agreement(quantity, schedule, ours == published))


def _shape(cell: Cell, key: str) -> int:
    value: int = getattr(cell.model, key)
    return value


def _agreement(quantity: str, schedule: str, same: bool) -> Literal["equal", "differs", "another graph"]:
    if quantity in WHOLE_GRAPHS and schedule == "prefix":
        return "another graph"
    return "equal" if same else "differs"


class _Counting:
    """The fixture's learner step, to be counted."""

    def __init__(self, cell: Cell) -> None:
        self._cell = cell
        self._model = build_model(cell, number_format(cell.precision.name).dtype)
        freeze_exit_gate(self._model)
        vocabulary = cell.model.vocab_size
        self._responses = [
            TrainingResponse(
                [token % vocabulary for token in range(PROMPT)],
                [(3 * index + token) % vocabulary for token in range(length)],
                0.5 + index,
            )
            for index, length in enumerate(RESPONSES)
        ]

    def count(self, quantity: str) -> int:
        """One quantity of `PublishedFixtures`."""
        match quantity:
            case "token_calls":
                return self._token_calls()
            case "boundary_bytes":
                return _storage_bytes(self._producer(self._layout(max(WAVES)))[0])
            case "prompt_saved_bytes":
                return self._producer(self._layout(max(WAVES)))[1]
            case "wave_saved_bytes_least":
                return min(self._waves())
        return max(self._waves())

    def _token_calls(self) -> int:
        learner = ActorUpdate(
            self._model,
            ActorOptimizer(self._model, SETTINGS),
            schedule=self._layout(max(WAVES)),
            reduction=self._cell.algorithm.reduction,
            temperature=self._cell.rollout.temperature,
            microbatch_tokens=self._cell.batch.microbatch_tokens,
            objective=objective_of(self._cell),
        )
        return learner.backward(self._responses).runs.token_calls

    def _producer(self, layout: SharedPrefix) -> tuple[tuple[Tensor, ...], int]:
        """The boundary, and what its pass keeps."""
        run, tokens = self._run(layout), torch.tensor(self._responses[0].prompt_tokens)
        with SavedTensors(exclude=self._model.parameters()) as saved:
            boundary = layout.region(partial(produce, self._model, run.schedule), tokens)
        return boundary, saved.peak_bytes

    def _waves(self) -> Iterator[int]:
        """What each wave keeps, on leaves of the boundary, which count too."""
        for most in WAVES:
            layout = self._layout(most)
            leaves = [tensor.detach().requires_grad_() for tensor in self._producer(layout)[0]]
            for picked in microbatches(RESPONSES, self._cell.batch.microbatch_tokens, most):
                wave = wave_of(
                    [self._responses[index] for index in picked], self._cell.model.total_ut_steps, self._model.device
                )
                with SavedTensors(exclude=self._model.parameters()) as saved:
                    kept = layout.logprobs(wave, leaves, self._run(layout))
                del kept
                yield saved.peak_bytes

    def _layout(self, wave_responses: int) -> SharedPrefix:
        layout: SharedPrefix = resolve_name(self._cell.checkpoint.target)(wave_responses=wave_responses)
        return layout

    def _run(self, layout: SharedPrefix) -> StepRun:
        estimator = Estimator(
            model=self._model,
            kind="dense",
            all_loops=objective_of(self._cell).all_loops,
            temperature=self._cell.rollout.temperature,
        )
        return StepRun(estimator, ActorOptimizer(self._model, SETTINGS), layout.schedule, no_phase)


def _storage_bytes(tensors: Sequence[Tensor]) -> int:
    """Of the storages behind the tensors, each once."""
    storages = {tensor.untyped_storage().data_ptr(): tensor.untyped_storage().nbytes() for tensor in tensors}
    return sum(storages.values())
