"""Which cells a plan need not run, since somebody is at them or a Slurm job is going to be."""

from collections.abc import Mapping

from scalerlt.launching.jobs import Jobs
from scalerlt.launching.queued import Queued
from scalerlt.planning.forecast import UnderWay
from scalerlt.records.store import Attempt


def under_way(attempts: Mapping[str, list[Attempt]], queued: Queued, jobs: Jobs) -> dict[str, UnderWay]:
    """Of these cells those that run or that a submitted job is going to run, as `scalerlt status` tells it.

    Args:
        attempts: at each cell.
        queued: the sweep's submissions.
    """
    found = {}
    for cell_id, of_cell in attempts.items():
        if any(jobs.runs(attempt) for attempt in of_cell):
            found[cell_id] = UnderWay("running")
        elif (waiting := queued.waiting(cell_id, of_cell, jobs)) is not None and waiting.certain:
            found[cell_id] = UnderWay("queued", waiting.reason, waiting.job_id)
    return found
