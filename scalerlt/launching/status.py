"""The state of every cell, from the files of a runs directory alone: from any shell, on any host that sees them."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from rich.console import Console
from rich.table import Table
from rich.text import Text

from scalerlt.launching.recovery import why_lost
from scalerlt.records.base import Scalar, UnreadableDocument, now
from scalerlt.records.cell import FrozenCell
from scalerlt.records.journal import Journal
from scalerlt.records.plan import PlannedCell
from scalerlt.records.record import Verdict
from scalerlt.records.store import Attempt, SweepDirectory, sweeps

BAD = frozenset({Verdict.FAILED, Verdict.KILLED, Verdict.LOST, Verdict.TIMEOUT, Verdict.PREEMPTED})
"""States that want a look at the log."""


@dataclass(frozen=True)
class CellStatus:
    """One cell of one sweep.

    Attributes:
        state: planned, running, skipped, or a verdict; `unsupported` may come from the plan or from a record.
        reason: why it is not measured; of a running cell its phase.
        attempt: number of the attempt that the state comes from.
        elapsed_seconds: how long that attempt took, or has been running.
        log: standard error of that attempt.
    """

    sweep: str
    cell_id: str
    axes: dict[str, Scalar]
    state: str
    reason: str | None = None
    attempt: int | None = None
    elapsed_seconds: float | None = None
    host: str | None = None
    log: Path | None = None

    @property
    def is_bad(self) -> bool:
        """Whether its attempt ended without an answer."""
        return self.state in BAD


def status(runs: Path) -> list[CellStatus]:
    """The state of each cell of a runs directory or of one sweep's, in the order of the plans."""
    return [of_cell(sweep, cell) for sweep in sweeps(runs) for cell in _cells(sweep)]


def of_cell(sweep: SweepDirectory, planned: PlannedCell) -> CellStatus:
    """The state of one cell: its answer, else what its newest attempt says, else what the plan says."""
    cell = sweep.cell(planned.cell_id)
    try:
        attempts = cell.attempts()
    except UnreadableDocument as fault:
        return CellStatus(sweep.name, planned.cell_id, planned.axes, str(Verdict.LOST), str(fault))
    answered = [attempt for attempt in attempts if attempt.record is not None and attempt.record.verdict.answers]
    running = [attempt for attempt in attempts if attempt.is_running]
    if chosen := next(iter(running or answered[-1:] or attempts[-1:]), None):
        return _of_attempt(sweep, planned, chosen)
    return CellStatus(sweep.name, planned.cell_id, planned.axes, planned.state, planned.reason)


def _of_attempt(sweep: SweepDirectory, planned: PlannedCell, attempt: Attempt) -> CellStatus:
    lease, record = attempt.lease, attempt.record
    elapsed: float | None
    if record is not None:
        state, reason = str(record.verdict), record.reason
        elapsed = _seconds(record.started, record.ended)
    elif attempt.is_running:
        state, reason = "running", _where(attempt)
        elapsed = _seconds(lease.started, now()) if lease else None
    else:
        state, reason = str(Verdict.LOST), attempt.fault or why_lost(lease)
        elapsed = _seconds(lease.started, lease.heartbeat) if lease else None
    return CellStatus(
        sweep.name,
        planned.cell_id,
        planned.axes,
        state,
        reason,
        attempt.number,
        elapsed,
        lease.host if lease else None,
        attempt.path / "stderr.log",
    )


def table(cells: Iterable[CellStatus]) -> Table:
    """The states as a table for the terminal."""
    shown = Table("sweep", "cell", "state", "attempt", "elapsed", "host", "reason", box=None, pad_edge=False)
    for cell in cells:
        shown.add_row(
            Text(cell.sweep),
            Text(cell.cell_id),
            cell.state,
            "" if cell.attempt is None else str(cell.attempt),
            "" if cell.elapsed_seconds is None else duration(cell.elapsed_seconds),
            Text(cell.host or ""),
            Text(cell.reason or ""),
        )
    return shown


def show_status(runs: Path) -> int:
    """Print the state of each cell, the totals, and the logs of those that ended badly; returns the exit code."""
    console = Console(markup=False, highlight=False)
    if not console.is_terminal:
        console.width = 1000  # one line per cell, for programs
    cells = status(runs)
    for sweep in sweeps(runs):
        for _, plan in sweep.plans():
            if isinstance(plan, UnreadableDocument):
                console.print(f"passed over: {plan}", soft_wrap=True)
    if not cells:
        console.print(f"{runs}: no cells")
        return 0
    console.print(table(cells))
    console.print()
    console.print(totals(cell.state for cell in cells))
    for cell in cells:
        if cell.is_bad:
            console.print(f"  {cell.state} {cell.cell_id}: {cell.log}", soft_wrap=True)
    return 0


def totals(states: Iterable[str]) -> str:
    """How many cells there are, and how many in each state."""
    counts = Counter(states)
    parts = ", ".join(
        f"{count} {state}" for state, count in sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    )
    cells = sum(counts.values())
    return f"{cells} cell{'' if cells == 1 else 's'}: {parts}"


def duration(seconds: float) -> str:
    """A span of time for a reader: 0.4 s, 12 s, 3 min 05 s, 2 h 07 min."""
    if seconds < 60:
        return f"{seconds:.1f} s" if seconds < 10 else f"{seconds:.0f} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest:02d} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60:02d} min"


def _cells(sweep: SweepDirectory) -> Iterable[PlannedCell]:
    """Every cell of every plan; a later plan has the last word on whether it may run. Frozen cells of no plan too."""
    cells: dict[str, PlannedCell] = {}
    for _, plan in sweep.plans():
        if not isinstance(plan, UnreadableDocument):
            for planned in sorted(plan.cells, key=lambda cell: cell.order):
                cells[planned.cell_id] = planned
    for directory in sweep.cells():
        if directory.path.name not in cells:
            try:
                axes = FrozenCell.read(directory.cell_file).axes
            except UnreadableDocument:
                axes = {}
            cells[directory.path.name] = PlannedCell(cell_id=directory.path.name, axes=axes)
    return cells.values()


def _where(attempt: Attempt) -> str | None:
    journal = Journal.of(attempt.path, 0)
    if journal.phase is None:
        return None
    inner = "" if journal.done is None else f" {journal.done}/{journal.total} {journal.what}".rstrip()
    return f"phase {journal.phase}{inner}"


def _seconds(started: str, ended: str) -> float:
    return (datetime.fromisoformat(ended) - datetime.fromisoformat(started)).total_seconds()
