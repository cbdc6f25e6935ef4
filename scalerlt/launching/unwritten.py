"""Jobs whose ids are nowhere, because the shell that submitted them was killed while sbatch worked: found by name."""

from collections.abc import Iterable
from pathlib import Path

from scalerlt.launching.jobs import JobState
from scalerlt.records.queue import Queue
from scalerlt.records.submission import Submission, SubmittedJob, scripts_folder


def unsubmitted(submission: Submission, queue: Queue) -> list[int]:
    """The items that no written job is to run, where it is not known why there is none."""
    if submission.fault is not None or not submission.job_name:
        return []
    taken = {item for job in submission.jobs for item in job.items}
    return [item.index for item in queue.items if item.index not in taken]


def unwritten(file: Path, submission: Submission, queue: Queue, named: Iterable[JobState]) -> list[SubmittedJob]:
    """The jobs of a submission that its file does not name.

    Args:
        file: the submission's; other sweeps have jobs of the same name, but none whose script stands beside it.
        named: jobs of that name, and others.
    """
    left, folder = unsubmitted(submission, queue), scripts_folder(file).resolve()
    known = {job.job_id for job in submission.jobs}
    of_each = _has_one_for_each_item(submission, queue)
    return [
        SubmittedJob(job_id=job.job_id, items=items)
        for job in named
        if job.job_id not in known and Path(job.script).resolve().parent == folder
        if (items := _items(job.job_id, left, of_each=of_each))
    ]


def _items(job_id: str, left: list[int], *, of_each: bool) -> list[int]:
    """Arrays are submitted one after another: the elements of one that could not be written have the next items."""
    element = int(job_id.partition("_")[2] or 0)
    return left[element : element + 1] if of_each else left


def _has_one_for_each_item(submission: Submission, queue: Queue) -> bool:
    """Whether there were to be as many jobs as items (see launching.slurm.arrays)."""
    most = submission.launcher.get("max_jobs")
    return len(queue.items) == 1 or (queue.slots == 1 and (most is None or most >= len(queue.items)))
