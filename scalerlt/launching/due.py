"""Which cells of a plan are to run now."""

from collections.abc import Callable, Iterable

from scalerlt.launching.jobs import Jobs
from scalerlt.launching.queued import Queued
from scalerlt.launching.recovery import NO_SLURM, reconcile
from scalerlt.planning.retry import why_again
from scalerlt.records.base import FileFault, UnreadableDocument
from scalerlt.records.plan import Plan, PlannedCell
from scalerlt.records.store import CellDirectory, SweepDirectory, standing
from scalerlt.schema.frozen import load_frozen


def due(
    sweep: SweepDirectory, plan: Plan, retry: Iterable[str], say: Callable[[str], None], jobs: Jobs = NO_SLURM
) -> tuple[list[PlannedCell], dict[str, str]]:
    """Put earlier runs in order, and find what has no record, or one to be retried, and is not running.

    Args:
        retry: the words of the request (see planning.retry).
        jobs: what Slurm says of the jobs that hold attempts.

    Returns:
        The cells that are to run, in plan order, and of those that cannot be started the reason.
    """
    words, revision = frozenset(retry), plan.provenance.get("git_revision")
    found: list[PlannedCell] = []
    faults: dict[str, str] = {}
    for cell in sorted(plan.cells, key=lambda cell: cell.order):
        if cell.state != "planned":
            continue
        directory = sweep.cell(cell.cell_id)
        try:
            for sentence in reconcile(directory, jobs):
                say(sentence)
            if _is_due(directory, words, revision, jobs):
                load_frozen(directory.cell_file)
                found.append(cell)
        except FileFault as fault:
            faults[cell.cell_id] = str(fault)
    return found, faults


def is_settled(cell: CellDirectory, retry: Iterable[str], revision: str | None, queued: Queued, jobs: Jobs) -> bool:
    """Whether a cell runs, waits for a job, or is not run again: what it is to run is not to be changed.

    Args:
        retry: the words of the request.
        revision: of the code that asks.
        queued: the sweep's submissions.
    """
    try:
        attempts = cell.attempts()
        waiting = queued.waiting(cell.path.name, attempts, jobs)
        return (waiting is not None and waiting.certain) or not _is_due(cell, frozenset(retry), revision, jobs)
    except UnreadableDocument:
        return True


def _is_due(cell: CellDirectory, words: frozenset[str], revision: str | None, jobs: Jobs) -> bool:
    attempts = cell.attempts()
    if any(jobs.runs(attempt) for attempt in attempts):
        return False
    record = standing(attempts)
    return record is None or why_again(record, words, revision) is not None
