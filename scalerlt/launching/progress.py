"""What a user sees while a queue runs: one line per finished cell, and on a terminal where the running one is."""

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from types import MappingProxyType

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn

from scalerlt.launching.remaining import Remaining
from scalerlt.launching.status import duration
from scalerlt.planning.cost import Cost
from scalerlt.records.record import Record, Verdict
from scalerlt.worker.supervisor import Glimpse

REFRESH_SECONDS = 1.0
"""A cell may be measuring on the same cores: the display costs a few milliseconds a second, and has no thread."""
PLAIN_SECONDS = 30.0
"""Without a terminal a cell gets one line when it ends; a long one a sign of life after so long, then after twice..."""
LONGEST_PLAIN_SECONDS = 600.0
"""...and at last this often."""


@contextmanager
def display(console: Console | None = None) -> Iterator["Display"]:
    """A display on the terminal, or plain lines where there is none; cleared away at the end."""
    shown = Display(console or Console(markup=False, highlight=False, soft_wrap=True))
    try:
        yield shown
    finally:
        shown.close()


class Display:
    """Shows a queue's progress, with the time that it will still take (see launching.remaining)."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._total = 0
        self._finished = 0
        self._remaining = Remaining(0, {})
        self._cell = ""
        self._started = 0.0
        self._next = 0.0
        self._pause = PLAIN_SECONDS
        self._bars: Progress | None = None
        self._task = TaskID(0)

    def say(self, text: str) -> None:
        """One line."""
        self._console.print(text)

    def begin(self, cells: int, expected: Mapping[str, Cost] = MappingProxyType({})) -> None:
        """So many cells are going to run.

        Args:
            expected: what planning expects of them, by their ids, as far as it does.
        """
        self._total = cells
        self._remaining = Remaining(cells, expected)
        if cells and self._console.is_terminal:
            columns = (BarColumn(20), MofNCompleteColumn(), TextColumn("{task.description}", markup=False))
            self._bars = Progress(*columns, console=self._console, auto_refresh=False, transient=True)
            self._task = self._bars.add_task("starting", total=cells)
            self._bars.start()

    def starting(self, cell_id: str) -> None:
        """A cell starts."""
        self._cell, self._started = cell_id, time.monotonic()
        self._remaining.start(cell_id, self._started)
        self._pause = PLAIN_SECONDS
        self._next = self._started + (0.0 if self._bars else self._pause)

    def glimpse(self, seen: Glimpse) -> None:
        """Where the running cell is; may be called as often as one likes."""
        moment = time.monotonic()
        self._remaining.counts(seen.done, seen.total, seen.what, moment)
        if moment < self._next:
            return
        self._pause = min(2 * self._pause, LONGEST_PLAIN_SECONDS)
        self._next = moment + (REFRESH_SECONDS if self._bars else self._pause)
        left = self._left(moment)
        text = f"{self._cell}: {_where(seen)}{duration(moment - self._started)}{', ' if left else ''}{left}"
        if self._bars is not None:
            self._bars.update(self._task, description=text, refresh=True)
        else:
            self.say(f"{self._position(self._finished + 1)} {text}")

    def finished(self, cell_id: str, record: Record) -> None:
        """A cell has its record."""
        moment = time.monotonic()
        seconds = moment - self._started
        self._remaining.finish(seconds, measured=record.verdict is Verdict.MEASURED)
        self._advance()
        reason = f": {record.reason}" if record.reason else ""
        left = "" if self._bars or self._finished >= self._total else self._left(moment)
        more = f" ({left})" if left else ""
        self.say(f"{self._position(self._finished)} {cell_id} {record.verdict} in {duration(seconds)}{reason}{more}")

    def passed_over(self, cell_id: str, why: str) -> None:
        """A cell that was to run does not."""
        self._remaining.pass_over(cell_id)
        self._advance()
        self.say(f"{self._position(self._finished)} {cell_id} {why}")

    def close(self) -> None:
        """Clear the bar away; lines may follow."""
        if self._bars is not None:
            self._bars.stop()
            self._bars = None

    def _advance(self) -> None:
        self._finished += 1
        if self._bars is not None:
            self._bars.update(self._task, description="", completed=self._finished)

    def _position(self, number: int) -> str:
        width = len(str(self._total))
        return f"[{number:{width}}/{self._total}]"

    def _left(self, moment: float) -> str:
        left = self._remaining.left(moment)
        if left is None:
            return ""
        if left.at_least:
            return f"at least {duration(left.seconds)} left" if left.seconds >= 1 else ""
        return f"about {duration(left.seconds)} left"


def _where(seen: Glimpse) -> str:
    if seen.phase is None:
        return ""
    inner = "" if seen.done is None else f" {seen.done}/{seen.total} {seen.what}".rstrip()
    return f"{seen.phase}{inner}, "
