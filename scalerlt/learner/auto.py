"""`checkpoint=auto`: each optimizer step has the layout that a cost model predicts to be fastest.

The model is fitted to this machine's own measurements of this learner (`learner/calibration.py`), and is linear: every
candidate has a coefficient of its own, not below zero, for each feature of the work that it makes of given lengths.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from scalerlt.learner.batching import TrainingResponse
from scalerlt.learner.checkpoint import LayerCheckpoint, LoopCheckpoint, NoCheckpoint
from scalerlt.learner.layout import Layout, LayoutChoice, WholeSequences
from scalerlt.learner.prefix import JointPrefix, PackedPrefix, SharedPrefix, StreamedPrefix
from scalerlt.learner.work import Prompts, Work, packed_prompts, prompts_and_waves, prompts_of, whole_sequences
from scalerlt.measure.fitting import predicted
from scalerlt.schema.fields import parse_bytes

BASELINE = "none"
MARGIN = 0.05
"""By how much another layout has to be predicted faster than `none`: predictions do not tell two candidates apart more
finely, so noise in a calibration does not exchange what costs the same."""
KEEPS = {"layer": BASELINE, "loop": BASELINE, "streamed": "prefix", "joint": "prefix"}
"""For each candidate that computes something again the one that keeps it."""


class Candidate(NamedTuple):
    """A layout that may be chosen.

    Attributes:
        layout: itself.
        split: how it cuts a step into passes.
        prompts_again, passes_again: as `Work.seconds_features` takes them.
        together: as `Work.bytes_features` takes it.
    """

    layout: Layout
    split: Literal["whole", "waves", "packed"]
    prompts_again: int
    passes_again: int
    together: bool = True

    def seconds_features(self, works: Mapping[str, Work]) -> tuple[int, ...]:
        """Of a step whose work by split this is."""
        return works[self.split].seconds_features(self.prompts_again, self.passes_again)

    def bytes_features(self, works: Mapping[str, Work]) -> tuple[int, ...]:
        """Of a step whose work by split this is."""
        return works[self.split].bytes_features(together=self.together)


@dataclass(frozen=True)
class CostModel:
    """Coefficients by candidate.

    Attributes:
        seconds: of each of `SECONDS_FEATURES`, for the forward and backward passes of an optimizer step.
        bytes: of each of `BYTES_FEATURES`, for its live peak; empty without a memory budget.
    """

    seconds: Mapping[str, tuple[float, ...]]
    bytes: Mapping[str, tuple[float, ...]]


@dataclass(frozen=True)
class Choice:
    """What is chosen for an optimizer step, and why.

    Attributes:
        name: of the candidate.
        seconds: predicted, by candidate.
        bytes: predicted, by candidate; empty without a memory budget.
        fits: whether the chosen one is predicted to keep to the budget.
    """

    name: str
    seconds: dict[str, float]
    bytes: dict[str, float]
    fits: bool


class AutoLayout(LayoutChoice):
    """The choice among whole sequences and shared prefixes; under a memory budget also among the schedules that compute
    something again.

    Args:
        wave_responses: responses of a wave, at most.
        memory_budget: live bytes of an optimizer step, or a text such as 2GiB; None: no limit.
        calibration_seconds: how long a calibration should take.

    Attributes:
        candidates: by name, `none` among them.
        memory_budget, calibration_seconds: as given, in bytes and seconds.
        costs: None until a calibration, or a state that one has left, is taken over.
        steps: optimizer steps by what was chosen for them.
        over_budget: those of them that were predicted to exceed the budget.
    """

    def __init__(self, wave_responses: int, memory_budget: int | str | None, calibration_seconds: float) -> None:
        self.memory_budget = None if memory_budget is None else parse_bytes(memory_budget)
        self.calibration_seconds = calibration_seconds
        self.costs: CostModel | None = None
        self.steps: Counter[str] = Counter()
        self.over_budget = 0
        self._wave_responses = wave_responses
        self.candidates = {
            BASELINE: Candidate(WholeSequences(NoCheckpoint()), "whole", 0, 0),
            "packed_shared": Candidate(PackedPrefix(), "packed", 0, 0),
            "prefix": Candidate(SharedPrefix(wave_responses), "waves", 0, 0),
        }
        if memory_budget is not None:
            self.candidates |= {
                "streamed": Candidate(StreamedPrefix(wave_responses), "waves", 1, 0, together=False),
                "joint": Candidate(JointPrefix(wave_responses), "waves", 1, 1, together=False),
                "layer": Candidate(WholeSequences(LayerCheckpoint()), "whole", 0, 1),
                "loop": Candidate(WholeSequences(LoopCheckpoint()), "whole", 0, 1),
            }

    def chosen(self, responses: Sequence[TrainingResponse], tokens: int) -> Layout:
        """As in `LayoutChoice`; counts what it chooses.

        Raises:
            RuntimeError: nothing has been calibrated.
        """
        if not responses:
            return self.candidates[BASELINE].layout
        choice = self.choose(responses, tokens)
        self.steps[choice.name] += 1
        self.over_budget += not choice.fits
        return self.candidates[choice.name].layout

    def choose(self, responses: Sequence[TrainingResponse], tokens: int) -> Choice:
        """The choice for an optimizer step over responses, none of them empty, and what it rests on.

        Raises:
            RuntimeError: nothing has been calibrated.
        """
        if self.costs is None:
            raise RuntimeError(
                "checkpoint=auto chooses by measurements; calibrate it, or restore what it had chosen by"
            )
        works = self.works(prompts_of(responses), tokens)
        seconds, nbytes = {}, {}
        for name, candidate in self.candidates.items():
            seconds[name] = predicted(self.costs.seconds[name], candidate.seconds_features(works))
            if self.memory_budget is not None:
                nbytes[name] = predicted(self.costs.bytes[name], candidate.bytes_features(works))
        rows = {name: works[candidate.split].all_rows for name, candidate in self.candidates.items()}
        name, fits = decide(rows, seconds, nbytes, self.memory_budget)
        return Choice(name, seconds, nbytes, fits)

    def works(self, prompts: Prompts, tokens: int) -> dict[str, Work]:
        """What an optimizer step makes of these lengths, by `Candidate.split`."""
        return {
            "whole": whole_sequences(prompts, tokens),
            "waves": prompts_and_waves(prompts, tokens, self._wave_responses),
            "packed": packed_prompts(prompts, tokens),
        }

    def state(self) -> dict[str, Any]:
        """All that later choices and counts depend on: numbers, lists and dicts."""
        if self.costs is None:
            return {}
        return {
            "seconds": {name: list(found) for name, found in self.costs.seconds.items()},
            "bytes": {name: list(found) for name, found in self.costs.bytes.items()},
            "steps": dict(self.steps),
            "over_budget": self.over_budget,
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Take over what `state` gave, so that later choices are those of the run that it was taken from."""
        if not state:
            return
        self.costs = CostModel(
            {name: tuple(found) for name, found in state["seconds"].items()},
            {name: tuple(found) for name, found in state["bytes"].items()},
        )
        self.steps = Counter(state["steps"])
        self.over_budget = state["over_budget"]


def decide(
    rows: Mapping[str, int], seconds: Mapping[str, float], nbytes: Mapping[str, float], budget: int | None
) -> tuple[str, bool]:
    """The fastest candidate within the budget, and whether there is one; without one that of the least bytes.

    Whatever was measured, what does more work than another that is within the budget is left out: what computes
    something again beside that which keeps it, and what runs no fewer rows beside `none`, from which it saves nothing.
    Where `none` is within the budget another has to be predicted faster by `MARGIN`.

    Args:
        rows: that a backward pass goes through, by candidate.
        seconds: predicted, by candidate.
        nbytes: predicted, by candidate; not looked at without a budget.
        budget: bytes; None: no limit.
    """
    within = {name for name in seconds if budget is None or nbytes[name] <= budget}
    if not within:
        return min(seconds, key=lambda name: nbytes[name]), False
    able = [name for name in seconds if name in within and KEEPS.get(name) not in within]
    if BASELINE in within:
        able = [name for name in able if rows[name] < rows[BASELINE]]
        if not able or min(seconds[name] for name in able) > (1 - MARGIN) * seconds[BASELINE]:
            return BASELINE, True
    return min(able, key=lambda name: seconds[name]), True
