"""How long training steps take: each as a whole, by phase, and what only observes it beside it."""

import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass

from scalerlt.measure.clock import Clock, PhaseTimer, Synchronize
from scalerlt.records.recorder import Recorder

OTHER = "other"
"""What no phase covers."""
METHOD = "the first step of the attempt is apart, as rl_step_warm_up_seconds"


@dataclass(frozen=True)
class StepTime:
    """One training step.

    Attributes:
        seconds: of the whole, without what only observes it.
        phases: of them in each phase.
        observing: seconds beside them, by what was observed.
    """

    seconds: float
    phases: dict[str, float]
    observing: dict[str, float]


class StepTimes:
    """The times of an attempt's training steps.

    Attributes:
        steps: those that have ended.
    """

    def __init__(self, synchronize: Synchronize, clock: Clock = time.perf_counter) -> None:
        self.steps: list[StepTime] = []
        self._synchronize = synchronize
        self._clock = clock
        self._phases = PhaseTimer(synchronize, clock)
        self._observing = PhaseTimer(synchronize, clock)

    @contextmanager
    def step(self) -> Iterator[None]:
        """One training step."""
        self._synchronize()
        started = self._clock()
        yield
        self._synchronize()
        elapsed = self._clock() - started
        observing = self._observing.take()
        self.steps.append(StepTime(elapsed - sum(observing.values()), self._phases.take(), observing))

    def phase(self, name: str) -> AbstractContextManager[None]:
        """A part of the step."""
        return self._phases.phase(name)

    def observing(self, name: str) -> AbstractContextManager[None]:
        """What is done between the phases for the record alone: training would go on the same without it."""
        return self._observing.phase(name)

    def row(self) -> dict[str, float]:
        """The newest step's times by phase, as a series has them."""
        newest = self.steps[-1]
        return {f"timing_s/{name}": seconds for name, seconds in newest.phases.items()} | {
            f"observing_s/{name}": seconds for name, seconds in newest.observing.items()
        }

    def record(self, recorder: Recorder) -> None:
        """The whole step and its phases, repeats over the steps behind the first."""
        if len(self.steps) < 2:
            recorder.not_measured("rl_step_seconds", "the attempt did no step behind its first, its warm-up", "s")
            return
        first, *steps = self.steps
        recorder.metric("rl_step_warm_up_seconds", first.seconds, "s", scope="rl_step")
        recorder.repeated("rl_step_seconds", [step.seconds for step in steps], "s", scope="rl_step", method=METHOD)
        for phase in dict.fromkeys(phase for step in steps for phase in step.phases):
            seconds = [step.phases.get(phase, 0.0) for step in steps]
            recorder.repeated(f"rl_step_seconds/{phase}", seconds, "s", scope=f"rl_step.{phase}")
        rest = [step.seconds - sum(step.phases.values()) for step in steps]
        recorder.repeated(f"rl_step_seconds/{OTHER}", rest, "s", scope="rl_step", method="what no phase covers")
        for what in dict.fromkeys(what for step in steps for what in step.observing):
            seconds = [step.observing[what] for step in steps if what in step.observing]
            method = "not part of rl_step_seconds: training would go on the same without it"
            recorder.repeated(f"observing_seconds/{what}", seconds, "s", scope="observing", method=method)
