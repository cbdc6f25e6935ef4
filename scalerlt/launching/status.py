"""The state of every cell, from the files of a runs directory alone: from any shell, on any host that sees them."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from scalerlt.launching.headline import Headline, of_metrics, of_series
from scalerlt.launching.jobs import Jobs
from scalerlt.launching.queued import Queued, attempts_of, expect
from scalerlt.launching.recovery import NO_SLURM, fate_of
from scalerlt.records.base import Scalar, UnreadableDocument, now
from scalerlt.records.cell import FrozenCell
from scalerlt.records.journal import Journal
from scalerlt.records.plan import PlannedCell
from scalerlt.records.record import Verdict
from scalerlt.records.store import Attempt, SweepDirectory, sweeps

BAD = frozenset({Verdict.FAILED, Verdict.KILLED, Verdict.LOST, Verdict.TIMEOUT, Verdict.PREEMPTED})
"""States that want a look at the log."""
UNDER_WAY = ("running", "queued")


@dataclass(frozen=True)
class CellStatus:
    """One cell of one sweep.

    Attributes:
        state: planned, queued, running, skipped, or a verdict; `unsupported` may come from the plan or from a record.
        reason: why it is not measured; of a running cell its phase, of a queued one what it waits for.
        attempt: number of the attempt that the state comes from.
        elapsed_seconds: how long that attempt took, or has been running.
        headline: the newest figure of its series, or the one that its record is looked up for.
        job: Slurm's id of the job that the attempt ran in, that a queued cell waits for, or that ended without it.
        log: standard error of that attempt, or of a job that ended without running the cell.
        unrecorded: whether the attempt ended without a record, so that the verdict is still to be written.
    """

    sweep: str
    cell_id: str
    axes: dict[str, Scalar]
    state: str
    reason: str | None = None
    attempt: int | None = None
    elapsed_seconds: float | None = None
    host: str | None = None
    headline: Headline | None = None
    job: str | None = None
    log: Path | None = None
    unrecorded: bool = False

    @property
    def is_bad(self) -> bool:
        """Whether its attempt, or the job that was to make one, ended without an answer."""
        return self.state in BAD

    @property
    def where_to_look(self) -> str:
        """Its log, or where it has none the reason."""
        return str(self.log or self.reason or "no reason given")


@dataclass(frozen=True)
class SweepStatus:
    """One sweep.

    Attributes:
        path: its directory.
        cells: in the order of its plans.
        faults: of each plan and submission that cannot be read the reason.
    """

    path: Path
    cells: list[CellStatus]
    faults: list[str]

    @property
    def name(self) -> str:
        """The sweep's name."""
        return self.path.name


def status(runs: Path, jobs: Jobs = NO_SLURM) -> list[CellStatus]:
    """The state of each cell of a runs directory or of one sweep's, in the order of the plans."""
    return [cell for sweep in status_of_sweeps(runs, jobs) for cell in sweep.cells]


def status_of_sweeps(runs: Path, jobs: Jobs = NO_SLURM) -> list[SweepStatus]:
    """The state of each sweep of a runs directory, or of the one whose directory it is. Nothing is written.

    Args:
        jobs: what Slurm says of the jobs that hold attempts, or that wait.
    """
    found = [(sweep, list(_cells(sweep)), Queued(sweep.path)) for sweep in sweeps(runs)]
    seen = [attempts_of(sweep, cells) for sweep, cells, _ in found]
    expect([(queued, attempts) for (_, _, queued), attempts in zip(found, seen, strict=True)], jobs)
    return [
        SweepStatus(
            sweep.path,
            [of_cell(sweep, cell, jobs, queued, attempts[cell.cell_id] or None) for cell in cells],
            [str(plan) for _, plan in sweep.plans() if isinstance(plan, UnreadableDocument)] + queued.faults,
        )
        for (sweep, cells, queued), attempts in zip(found, seen, strict=True)
    ]


def of_cell(
    sweep: SweepDirectory,
    planned: PlannedCell,
    jobs: Jobs = NO_SLURM,
    queued: Queued | None = None,
    attempts: list[Attempt] | None = None,
) -> CellStatus:
    """The state of one cell.

    A running attempt counts first, then its answer, then that a job is to run it, or ended before it came to that, then
    what its newest attempt says, and last what the plan says.

    Args:
        queued: what of the sweep was submitted to Slurm; None: that is not looked at.
        attempts: the cell's, where they have been read.
    """
    try:
        attempts = attempts or sweep.cell(planned.cell_id).attempts()
        running = next((attempt for attempt in attempts if jobs.runs(attempt)), None)
        if running is None and any(attempt.record is None for attempt in attempts):
            # Whoever held it may have recorded it, and ended, since it was read.
            attempts = sweep.cell(planned.cell_id).attempts()
            running = next((attempt for attempt in attempts if jobs.runs(attempt)), None)
    except UnreadableDocument as fault:
        return CellStatus(sweep.name, planned.cell_id, planned.axes, str(Verdict.LOST), str(fault))
    if running is not None:
        return _of_attempt(sweep, planned, running, jobs, runs=True)
    if answered := [attempt for attempt in attempts if attempt.answers]:
        return _of_attempt(sweep, planned, answered[-1], jobs)
    waiting = queued.waiting(planned.cell_id, attempts, jobs) if queued is not None else None
    last = _of_attempt(sweep, planned, attempts[-1], jobs) if attempts else None
    number, before = (last.attempt, f"; attempt {last.attempt} ended {last.state}") if last else (None, "")

    def of_job(state: str, reason: str, job: str, log: Path | None = None) -> CellStatus:
        return CellStatus(
            sweep.name, planned.cell_id, planned.axes, state, f"{reason}{before}", number, job=job, log=log
        )

    if waiting is not None and waiting.certain:
        return of_job("queued", waiting.reason, waiting.job_id)
    ended = None
    if queued is not None and waiting is not None and planned.state == "planned":
        ended = queued.not_run(planned.cell_id, attempts, jobs)
    if ended is not None and ended.verdict is not None:
        return of_job(str(ended.verdict), ended.reason, ended.job_id, ended.log)
    if last is not None:
        return last
    why = ended or waiting
    return CellStatus(
        sweep.name, planned.cell_id, planned.axes, planned.state, planned.reason or (why.reason if why else None)
    )


def _of_attempt(
    sweep: SweepDirectory, planned: PlannedCell, attempt: Attempt, jobs: Jobs, *, runs: bool = False
) -> CellStatus:
    lease, record = attempt.lease, attempt.record
    reason: str | None
    elapsed: float | None
    if record is not None:
        state, reason = str(record.verdict), record.reason
        elapsed = _seconds(record.started, record.ended)
        headline = of_metrics(record.metrics) or of_series(attempt.path)
    else:
        journal = Journal.of(attempt.path, 0)
        headline = of_series(attempt.path) or of_metrics(journal.metrics)
        if runs:
            state, reason = "running", _where(journal)
            elapsed = _seconds(lease.started, now()) if lease else None
        else:
            fate = fate_of(attempt, jobs)
            state = str(Verdict.LOST if attempt.fault else fate.verdict)
            reason = attempt.fault or fate.reason
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
        headline,
        _job_of(attempt, jobs),
        attempt.path / "stderr.log",
        unrecorded=record is None and not runs,
    )


def of_cells(count: int) -> str:
    """`1 cell`, `2 cells`."""
    return f"{count} cell{'' if count == 1 else 's'}"


def totals(states: Iterable[str]) -> str:
    """How many cells there are, and how many in each state."""
    counts = Counter(states)
    parts = ", ".join(
        f"{count} {state}" for state, count in sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    )
    return f"{of_cells(sum(counts.values()))}: {parts}"


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


def _job_of(attempt: Attempt, jobs: Jobs) -> str | None:
    """As Slurm's commands show it; a process of an array knows only the number that its job has for itself."""
    if attempt.record is not None and (recorded := attempt.record.slurm.get("job_id")):
        return str(recorded)
    own = attempt.lease.slurm_job_id if attempt.lease else None
    job = jobs.listed(own) if own is not None and attempt.record is None else None
    return own if job is None else job.job_id


def _where(journal: Journal) -> str | None:
    if journal.phase is None:
        return None
    inner = "" if journal.done is None else f" {journal.done}/{journal.total} {journal.what}".rstrip()
    return f"phase {journal.phase}{inner}"


def _seconds(started: str, ended: str) -> float:
    return (datetime.fromisoformat(ended) - datetime.fromisoformat(started)).total_seconds()
