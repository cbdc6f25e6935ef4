"""What a user sees while a queue runs: one line per finished cell, and on a terminal where the running one is."""

import time
from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn

from scalerlt.launching.status import duration
from scalerlt.records.record import Record
from scalerlt.worker.supervisor import Glimpse

REFRESH_SECONDS = 1.0
"""A cell may be measuring on the same cores: the display costs a few milliseconds a second, and has no thread."""
PLAIN_SECONDS = 30.0
"""Without a terminal a long cell gets a line this often."""


@contextmanager
def display(console: Console | None = None) -> Iterator["Display"]:
    """A display on the terminal, or plain lines where there is none; cleared away at the end."""
    shown = Display(console or Console(markup=False, highlight=False, soft_wrap=True))
    try:
        yield shown
    finally:
        shown.close()


class Display:
    """Shows a queue's progress. All times are estimates from the cells that this queue has finished."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._total = 0
        self._finished = 0
        self._seconds: list[float] = []
        self._cell = ""
        self._started = 0.0
        self._next = 0.0
        self._bars: Progress | None = None
        self._task = TaskID(0)

    def say(self, text: str) -> None:
        """One line."""
        self._console.print(text)

    def begin(self, cells: int) -> None:
        """So many cells are going to run."""
        self._total = cells
        if cells and self._console.is_terminal:
            columns = (BarColumn(20), MofNCompleteColumn(), TextColumn("{task.description}", markup=False))
            self._bars = Progress(*columns, console=self._console, auto_refresh=False, transient=True)
            self._task = self._bars.add_task("starting", total=cells)
            self._bars.start()

    def starting(self, cell_id: str) -> None:
        """A cell starts."""
        self._cell, self._started = cell_id, time.monotonic()
        self._next = self._started + (0.0 if self._bars else PLAIN_SECONDS)

    def glimpse(self, seen: Glimpse) -> None:
        """Where the running cell is; may be called as often as one likes."""
        moment = time.monotonic()
        if moment < self._next:
            return
        self._next = moment + (REFRESH_SECONDS if self._bars else PLAIN_SECONDS)
        text = f"{self._cell}: {_where(seen)}{duration(moment - self._started)}{self._remaining(moment)}"
        if self._bars is not None:
            self._bars.update(self._task, description=text, refresh=True)
        else:
            self.say(f"{self._position(self._finished + 1)} {text}")

    def finished(self, cell_id: str, record: Record) -> None:
        """A cell has its record."""
        seconds = time.monotonic() - self._started
        self._seconds.append(seconds)
        self._advance()
        reason = f": {record.reason}" if record.reason else ""
        self.say(f"{self._position(self._finished)} {cell_id} {record.verdict} in {duration(seconds)}{reason}")

    def passed_over(self, cell_id: str, why: str) -> None:
        """A cell that was to run does not."""
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

    def _remaining(self, moment: float) -> str:
        if not self._seconds:
            return ""
        mean = sum(self._seconds) / len(self._seconds)
        left = mean * (self._total - self._finished) - min(moment - self._started, mean)
        return f", about {duration(left)} left"


def _where(seen: Glimpse) -> str:
    if seen.phase is None:
        return ""
    inner = "" if seen.done is None else f" {seen.done}/{seen.total} {seen.what}".rstrip()
    return f"{seen.phase}{inner}, "
