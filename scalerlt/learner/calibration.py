"""Fits the cost model of `checkpoint=auto` to measurements of the learner that will be run."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from statistics import median
from typing import TypeVar

from scalerlt.learner.auto import AutoLayout, CostModel
from scalerlt.learner.batching import TrainingResponse
from scalerlt.learner.step import ActorUpdate
from scalerlt.learner.work import BYTES_FEATURES, prompts_of
from scalerlt.measure.clock import Clock, synchronizer, timed
from scalerlt.measure.fitting import nonnegative_fit, predicted, relative_errors
from scalerlt.measure.memory import live_bytes

T = TypeVar("T")
FEWEST, MOST = 1, 7
"""Timed runs of a probe by each candidate, one more before them; their median counts. More than the fewest are made
while the probe's share of the time is not used up."""


@dataclass(frozen=True)
class Probe:
    """A piece of work that is measured.

    Attributes:
        responses: of an optimizer step, at least one of them trained.
        tokens: at most so many padded tokens per pass.
    """

    responses: tuple[TrainingResponse, ...]
    tokens: int

    @property
    def rows(self) -> int:
        """Of whole sequences."""
        return sum(response.rows for response in self.responses)


@dataclass(frozen=True)
class Calibration:
    """What a calibration found.

    Attributes:
        costs: the fitted cost model.
        seconds: that it took.
        probes: measured, by candidate.
        errors: largest relative error of the predicted seconds at the probes that they were fitted to, by candidate.
    """

    costs: CostModel
    seconds: float
    probes: dict[str, int]
    errors: dict[str, float]


@dataclass
class _Found:
    """Measurements of one candidate, and the features of what was measured.

    Attributes:
        bytes: on top of gradients that are there before.
    """

    seconds_features: list[tuple[int, ...]] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    bytes_features: list[tuple[int, ...]] = field(default_factory=list)
    bytes: list[int] = field(default_factory=list)
    gradient_bytes: int = 0

    def bytes_coefficients(self) -> tuple[float, ...]:
        """Of gradients, and of what stands on top of them, raised until it reaches what was measured at every probe: a
        budget is kept rather than used up."""
        fitted = nonnegative_fit(self.bytes_features, self.bytes)
        raised = 1 / (1 + min(0.0, *relative_errors(fitted, self.bytes_features, self.bytes)))
        *others, step = (raised * coefficient for coefficient in fitted)
        return *others, step + self.gradient_bytes

    def expected_bytes(self, features: tuple[int, ...]) -> float:
        """Of a probe: while few were measured, as if all bytes grew as the feature that grows most."""
        if not self.bytes:
            return 0
        if len(self.bytes) == len(BYTES_FEATURES):
            return predicted(self.bytes_coefficients(), features)
        growth = max(new / old for new, old in zip(features, self.bytes_features[-1], strict=True) if old)
        return self.gradient_bytes + self.bytes[-1] * growth


def probes_of(responses: Sequence[TrainingResponse], tokens: int) -> list[Probe]:
    """Parts of an optimizer step over responses, then all of it, few rows first.

    They differ in the lengths of prompt and responses, in the number of responses and in that of passes, as far as the
    responses of the prompt that has most of them allow.
    """
    groups: dict[tuple[int, ...], list[TrainingResponse]] = {}
    for response in responses:
        if any(response.trained):
            groups.setdefault(tuple(response.prompt_tokens), []).append(response)
    if not groups:
        raise ValueError("no response has a token to learn; there is nothing to calibrate with")
    group = max(groups.values(), key=lambda group: sum(response.rows for response in group))
    size = len(group)
    parts = [
        (1, 0.25, 0.25),
        (1, 1.0, 1.0),
        (size, 1 / 16, 1 / 16),
        (size, 0.25, 0.25),
        (size, 0.25, 1.0),
        (size, 1.0, 0.25),
        (-(-size // 4), 1.0, 1.0),
        (size, 1.0, 1.0),
    ]
    probes = [Probe(tuple(cut(one, prompt, own) for one in group[:count]), tokens) for count, prompt, own in parts]
    if size > 1:
        halved = sum(len(response.response_tokens) for response in group) // 2
        probes.append(replace(probes[-1], tokens=min(tokens, halved)))
    probes.append(Probe(tuple(one for group in groups.values() for one in group), tokens))
    distinct = {(_lengths(probe), probe.tokens): probe for probe in probes}
    return sorted(distinct.values(), key=lambda probe: probe.rows)


def cut(response: TrainingResponse, prompt: float, own: float) -> TrainingResponse:
    """The response with these parts of its prompt and of its own tokens, one of each at least, trained where it was or
    at its last token."""
    length = max(1, round(own * len(response.response_tokens)))
    trained = response.trained[:length]

    def first(values: Sequence[T] | None) -> Sequence[T] | None:
        return None if values is None else values[:length]

    return replace(
        response,
        prompt_tokens=response.prompt_tokens[: max(1, round(prompt * len(response.prompt_tokens)))],
        response_tokens=response.response_tokens[:length],
        mask=trained if any(trained) else [*trained[:-1], True],
        exit_depths=first(response.exit_depths),
        rollout_logprobs=first(response.rollout_logprobs),
        old_logprobs=first(response.old_logprobs),
        ref_logprobs=first(response.ref_logprobs),
        replay_logprobs=first(response.replay_logprobs),
    )


def calibrate(
    learner: ActorUpdate, auto: AutoLayout, probes: Sequence[Probe], clock: Clock = time.perf_counter
) -> Calibration:
    """Measure every candidate at the probes, few rows first, and give `auto` the cost model fitted to them.

    Only forward and backward passes are run. The learner has no gradients before and after; its weights and its
    optimizer's state stay as they are. A probe begins only if it should end within `auto.calibration_seconds`, the
    first ones in any case: two, or under a memory budget as many as bytes have features. A candidate takes no part in a
    probe but the first that should exceed the budget.

    Raises:
        ValueError: the learner holds gradients.
    """
    if any(gradient is not None for gradient in learner.optimizer.gradients().values()):
        raise ValueError("a learner is calibrated before it has gradients, which would be lost")
    began, auto.costs = clock(), None
    found = {name: _Found() for name in auto.candidates}
    share = auto.calibration_seconds / (2 * len(probes))
    for done, probe in enumerate(sorted(probes, key=lambda probe: probe.rows)):
        if auto.costs is not None and done >= (2 if auto.memory_budget is None else len(BYTES_FEATURES)):
            expected = (1 + FEWEST) * sum(auto.choose(probe.responses, probe.tokens).seconds.values())
            if clock() - began + expected > auto.calibration_seconds:
                break
        _measure(learner, auto, probe, found, share, clock)
        auto.costs = _fitted(found)
    assert auto.costs is not None
    errors = {
        name: max(map(abs, relative_errors(auto.costs.seconds[name], one.seconds_features, one.seconds)))
        for name, one in found.items()
    }
    return Calibration(
        costs=auto.costs,
        seconds=clock() - began,
        probes={name: len(one.seconds) for name, one in found.items()},
        errors=errors,
    )


def _measure(
    learner: ActorUpdate, auto: AutoLayout, probe: Probe, found: Mapping[str, _Found], share: float, clock: Clock
) -> None:
    """One round over the candidates after the other, there and back, so that a machine that slows down slows all.

    Args:
        share: seconds after which no more rounds are made than have to be.
    """
    started = clock()
    works = auto.works(prompts_of(probe.responses), probe.tokens)
    learners = {
        name: learner.laid_out(candidate.layout, probe.tokens)
        for name, candidate in auto.candidates.items()
        if auto.memory_budget is None
        or found[name].expected_bytes(candidate.bytes_features(works)) <= auto.memory_budget
    }
    synchronize = synchronizer(learner.model.device)
    seconds: dict[str, list[float]] = {name: [] for name in learners}
    for turn in range(1 + MOST):
        if turn > FEWEST and clock() - started > share:
            break
        for name in list(learners)[:: 1 if turn % 2 else -1]:
            run = partial(_run, learners[name], probe.responses)
            seconds[name] += timed(run, synchronize=synchronize, repeats=1, clock=clock)
    for name, one in learners.items():
        found[name].seconds_features.append(auto.candidates[name].seconds_features(works))
        found[name].seconds.append(median(seconds[name][1:]))
        if auto.memory_budget is not None and len(found[name].bytes) < len(BYTES_FEATURES):  # they are without noise
            found[name].bytes_features.append(auto.candidates[name].bytes_features(works))
            found[name].gradient_bytes, live = _measured_bytes(one, probe.responses)
            found[name].bytes.append(live)


def _run(learner: ActorUpdate, responses: Sequence[TrainingResponse]) -> None:
    learner.backward(responses)
    learner.optimizer.clear()


def _measured_bytes(learner: ActorUpdate, responses: Sequence[TrainingResponse]) -> tuple[int, int]:
    """Bytes of the gradients, and the live peak on top of them: what grows with the work."""
    learner.backward(responses)
    gradients = [gradient for gradient in learner.optimizer.gradients().values() if gradient is not None]
    live = live_bytes(partial(learner.backward, responses), learner.model.device)
    learner.optimizer.clear()
    return sum(gradient.nbytes for gradient in gradients), live


def _fitted(found: Mapping[str, _Found]) -> CostModel:
    """The cost model of what has been measured."""
    return CostModel(
        {name: nonnegative_fit(one.seconds_features, one.seconds) for name, one in found.items()},
        {name: one.bytes_coefficients() for name, one in found.items() if one.bytes},
    )


def _lengths(probe: Probe) -> tuple[tuple[int, int], ...]:
    return tuple((len(one.prompt_tokens), len(one.response_tokens)) for one in probe.responses)
