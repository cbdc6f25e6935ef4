"""Which cells wait for a Slurm job that was submitted, from the submissions' files and from what squeue lists."""

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from scalerlt.launching.jobs import HOLDS, OPEN, WAITS, Jobs
from scalerlt.records.base import UnreadableDocument
from scalerlt.records.queue import Queue
from scalerlt.records.record import Verdict
from scalerlt.records.store import Attempt
from scalerlt.records.submission import Submission, queue_file, submissions

GOES_ON = (Verdict.PREEMPTED, Verdict.LOST)
"""A job that was put back into Slurm's queue takes such a cell again."""


@dataclass(frozen=True)
class Turn:
    """A cell's place in one submission.

    Attributes:
        job_ids: the jobs that may run it.
        tried: number of the newest attempt that it had when it was submitted.
    """

    job_ids: list[str]
    tried: int


@dataclass(frozen=True)
class Waiting:
    """Why a cell is `queued`, or is not though it was submitted.

    Attributes:
        job_id: the job that will run it, or one of several.
        certain: False where the job has ended, or may have long ago since there is no Slurm to ask: it is not queued.
    """

    reason: str
    job_id: str
    certain: bool = True


class Queued:
    """The submissions of one sweep.

    Args:
        sweep: its directory.
    """

    def __init__(self, sweep: Path) -> None:
        self._sweep = sweep

    @cached_property
    def _read(self) -> tuple[dict[str, list[Turn]], list[str]]:
        turns: dict[str, list[Turn]] = {}
        faults = []
        for path, submission in submissions(self._sweep):
            try:
                if isinstance(submission, UnreadableDocument):
                    raise submission
                for cell_id, turn in _turns(submission, Queue.read(queue_file(path))):
                    turns.setdefault(cell_id, []).append(turn)
            except UnreadableDocument as fault:
                faults.append(str(fault))
        return turns, faults

    @property
    def faults(self) -> list[str]:
        """Of each file that cannot be read the reason."""
        return self._read[1]

    @property
    def job_ids(self) -> set[str]:
        """Every job that was ever submitted."""
        return {job_id for turns in self._read[0].values() for turn in turns for job_id in turn.job_ids}

    def jobs_of(self, cell_id: str, attempts: list[Attempt]) -> list[str]:
        """The jobs that were to run a cell and have not, as far as its attempts tell."""
        return [job_id for turn in self._read[0].get(cell_id, []) if _is_due(turn, attempts) for job_id in turn.job_ids]

    def waiting(self, cell_id: str, attempts: list[Attempt], jobs: Jobs) -> Waiting | None:
        """What became of the jobs that were to run a cell; None when it was not submitted, or they have run it.

        Args:
            attempts: the cell's, none of which is running.
        """
        job_ids = self.jobs_of(cell_id, attempts)
        if not job_ids:
            return None
        if jobs.slurm is None:
            return Waiting(f"submitted as {_named(job_ids)}; there is no Slurm here to ask", job_ids[0], certain=False)
        if not jobs.answers:
            return Waiting(f"submitted as {_named(job_ids)}; squeue does not answer", job_ids[0])
        known = {job_id: job for job_id in job_ids if (job := jobs.listed(job_id)) is not None}
        listed = {job_id: job for job_id, job in known.items() if job.state in OPEN}
        if not listed:
            said = f"says {next(iter(known.values())).sentence}" if known else "does not list it any more"
            return Waiting(f"{_named(job_ids)} did not run it: squeue {said}", job_ids[0], certain=False)
        running = [job_id for job_id, job in listed.items() if job.state in HOLDS]
        if running:
            verb = "has" if len(running) == 1 else "have"
            return Waiting(f"{_named(running)} {verb} not come to it yet", running[0])
        first = next((job_id for job_id, job in listed.items() if job.state in WAITS), next(iter(listed)))
        return Waiting(f"{_named(list(listed))}: squeue says {listed[first].sentence}", first)


def _turns(submission: Submission, queue: Queue) -> list[tuple[str, Turn]]:
    jobs_of: dict[int, list[str]] = {}
    for job in submission.jobs:
        for index in job.items:
            jobs_of.setdefault(index, []).append(job.job_id)
    return [
        (cell_id, Turn(jobs_of[item.index], queue.tried.get(cell_id, 0)))
        for item in queue.items
        if item.index in jobs_of
        for cell_id in item.cells
    ]


def _is_due(turn: Turn, attempts: list[Attempt]) -> bool:
    """Whether the submission's jobs have still to run the cell: they have not, or were ended while they did."""
    since = [attempt for attempt in attempts if attempt.number > turn.tried]
    return all(attempt.record is None or attempt.record.verdict in GOES_ON for attempt in since)


def _named(job_ids: list[str]) -> str:
    return f"job {job_ids[0]}" if len(job_ids) == 1 else f"job {job_ids[0]} and {len(job_ids) - 1} more"
