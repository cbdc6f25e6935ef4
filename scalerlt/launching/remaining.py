"""How long a queue will still take: what planning expects of each cell, corrected by how the finished ones went.

A long cell that says how far it is (`progress(done, total)`) is counted down by its own pace.
"""

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass

from scalerlt.planning.cost import Cost

UNKNOWN = Cost(None, None, "unknown", "")
PATIENCE = 3.0
"""So many times its pace may a step take before the pace is no longer believed."""


@dataclass(frozen=True)
class Left:
    """What is left.

    Attributes:
        at_least: whether there are cells of which nothing is known, or that take longer than expected.
    """

    seconds: float
    at_least: bool = False


@dataclass
class Pace:
    """How fast the running cell counts, by the moments at which it was seen to.

    Attributes:
        before: when what it counts can have begun.
        first: when it was first seen to count, and at what number: a continued cell does not begin at 1.
        at: the same of the newest number.
    """

    total: int
    what: str
    before: float
    first: tuple[float, int]
    at: tuple[float, int]

    @property
    def share(self) -> float:
        """How much of it is done."""
        return self.at[1] / self.total

    def left(self, moment: float) -> float | None:
        """Seconds until it has counted to its end; None when its pace is not known, or is not what it was."""
        counted = self.at[1] - self.first[1]
        if self.at[1] >= self.total or (not counted and self.first[1] > 1):
            return None
        each = (self.at[0] - self.first[0]) / counted if counted else self.first[0] - self.before
        since = moment - self.at[0]
        if since > PATIENCE * each + 1.0:
            return None
        return max(0.0, (self.total - self.at[1]) * each - since)


class Remaining:
    """What is left of a queue.

    Args:
        count: number of its cells.
        expected: what planning expects of them, by their ids; of those that are not named nothing is known.
    """

    def __init__(self, count: int, expected: Mapping[str, Cost]) -> None:
        self._waiting = dict(expected)
        self._unnamed = count - len(self._waiting)
        self._took: list[float] = []
        self._went: dict[str, list[tuple[float, float]]] = defaultdict(list)
        """By the source of the expectation: what measured cells took, and what was expected."""
        self._cell = UNKNOWN
        self._started: float | None = None
        self._pace: Pace | None = None

    def start(self, cell_id: str, moment: float) -> None:
        """A cell starts."""
        self._cell = self._take(cell_id)
        self._started, self._pace = moment, None

    def counts(self, done: int | None, total: int | None, what: str, moment: float) -> None:
        """Where the running cell is; between two phases it may say nothing."""
        if done is None or not total or self._started is None:
            return
        pace = self._pace
        if pace is None or (pace.total, pace.what) != (total, what):
            before = self._started if pace is None else pace.at[0]
            self._pace = Pace(total, what, before, (moment, done), (moment, done))
        elif done > pace.at[1]:
            pace.at = (moment, done)

    def finish(self, seconds: float, *, measured: bool) -> None:
        """The running cell has ended; one that ended early says nothing of how the others will go."""
        self._took.append(seconds)
        if measured and self._cell.seconds:
            self._went[self._cell.source].append((seconds, self._cell.seconds))
        self._started = self._pace = None

    def pass_over(self, cell_id: str) -> None:
        """A cell does not run, or has been run by somebody else."""
        self._take(cell_id)
        self._started = self._pace = None

    def left(self, moment: float) -> Left | None:
        """What is left at a moment; None when nothing is known."""
        elapsed = None if self._started is None else moment - self._started
        waiting = [self._expected(cost, elapsed) for cost in [*self._waiting.values(), *self._unnamed * [UNKNOWN]]]
        known = [seconds for seconds in waiting if seconds is not None]
        at_least = len(known) < len(waiting)
        if elapsed is not None:
            running = self._of_the_running(moment, elapsed)
            at_least |= running is None
            known += [] if running is None else [running]
        return Left(sum(known), at_least) if known else None

    def _of_the_running(self, moment: float, elapsed: float) -> float | None:
        expected = self._expected(self._cell)
        by_clock = None if expected is None or expected < elapsed else expected - elapsed
        by_pace = self._pace.left(moment) if self._pace is not None else None
        if by_pace is None or self._pace is None:
            return by_clock
        if by_clock is None or (self._cell.source == "estimated" and not self._went["estimated"]):
            return by_pace
        # what it counts may be one of several phases: the nearer its end, the more it is believed
        return self._pace.share * by_pace + (1 - self._pace.share) * max(by_pace, by_clock)

    def _expected(self, cost: Cost, elapsed: float | None = None) -> float | None:
        """What a cell will take; of one that waits no less than the running one of its kind has already taken."""
        alike = elapsed if elapsed is not None and cost.source == self._cell.source else 0.0
        if cost.seconds is None:
            return max(sum(self._took) / len(self._took), alike) if self._took else None
        went = self._went[cost.source]
        scale = sum(took for took, _ in went) / sum(was for _, was in went) if went else 1.0
        return cost.seconds * max(scale, alike / self._cell.seconds if self._cell.seconds else 0.0)

    def _take(self, cell_id: str) -> Cost:
        if cell_id in self._waiting:
            return self._waiting.pop(cell_id)
        self._unnamed = max(0, self._unnamed - 1)
        return UNKNOWN
