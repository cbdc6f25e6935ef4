"""What earlier submissions of a sweep have in Slurm's queue."""

from collections.abc import Iterable

from scalerlt.launching.jobs import Jobs
from scalerlt.launching.queued import Queued
from scalerlt.launching.slurm.ask import Slurm
from scalerlt.records.base import UnreadableDocument
from scalerlt.records.plan import PlannedCell
from scalerlt.records.store import SweepDirectory
from scalerlt.records.submission import Submission, submissions


def jobs_of(sweep: SweepDirectory, cells: Iterable[PlannedCell], slurm: Slurm) -> Jobs:
    """The jobs that hold attempts at these cells, and all that the sweep has submitted: one question serves for all."""
    found = (submission for _, submission in submissions(sweep.path))
    ids = [job.job_id for submission in found if isinstance(submission, Submission) for job in submission.jobs]
    jobs = Jobs(slurm)
    jobs.expect((sweep.cell(cell.cell_id) for cell in cells), ids)
    return jobs


def queued_cells(sweep: SweepDirectory, cells: Iterable[PlannedCell], jobs: Jobs) -> dict[str, str]:
    """Of these cells, none of which is running, those that a job is going to run, each with which and why it waits."""
    queued, found = Queued(sweep.path), {}
    for cell in cells:
        try:
            waiting = queued.waiting(cell.cell_id, sweep.cell(cell.cell_id).attempts(), jobs)
        except UnreadableDocument:
            continue  # told where the cell is to be run
        if waiting is not None and waiting.certain:
            found[cell.cell_id] = waiting.reason
    return found
