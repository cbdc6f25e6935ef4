"""Which cells wait for a Slurm job that was submitted, from the submissions' files and from what squeue lists.

And what became of the jobs of those that wait for none any more, and were not run.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from pathlib import Path

from scalerlt.launching.jobs import HOLDS, WAITS, Jobs, JobState, may_run
from scalerlt.launching.recovery import what_was_said
from scalerlt.launching.unwritten import unsubmitted, unwritten
from scalerlt.records.base import UnreadableDocument
from scalerlt.records.plan import PlannedCell
from scalerlt.records.queue import Queue
from scalerlt.records.record import Verdict
from scalerlt.records.store import Attempt, SweepDirectory
from scalerlt.records.submission import Submission, SubmittedJob, log_of, queue_file, submissions

GOES_ON = (Verdict.PREEMPTED, Verdict.LOST)
"""A job that was put back into Slurm's queue takes such a cell again."""
VERDICTS = {
    "FAILED": Verdict.FAILED,
    "BOOT_FAIL": Verdict.FAILED,
    "LAUNCH_FAILED": Verdict.FAILED,
    "RECONFIG_FAIL": Verdict.FAILED,
    "OUT_OF_MEMORY": Verdict.FAILED,  # oom would be an answer, and of the cell
    "NODE_FAIL": Verdict.LOST,
    "TIMEOUT": Verdict.TIMEOUT,
    "DEADLINE": Verdict.TIMEOUT,
    "PREEMPTED": Verdict.PREEMPTED,
    "CANCELLED": Verdict.KILLED,
    "COMPLETED": Verdict.FAILED,
}
"""What is said of a cell that was not run, by how its job ended; of several jobs' ends the first of these counts."""


@dataclass(frozen=True)
class Turn:
    """A cell's place in one submission.

    Attributes:
        submission: its file.
        job_ids: the jobs that may run it.
        tried: number of the newest attempt that it had when it was submitted.
        requeues: whether the jobs go back into Slurm's queue when they are preempted.
    """

    submission: Path
    job_ids: list[str]
    tried: int
    requeues: bool


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


@dataclass(frozen=True)
class NotRun:
    """How the jobs ended that were to run a cell and have not.

    Attributes:
        verdict: None where they were cancelled before they started: the cell is as if it had not been submitted.
        job_id: the job whose end says most.
        log: what that job wrote.
    """

    verdict: Verdict | None
    reason: str
    job_id: str
    log: Path | None


class Queued:
    """The submissions of one sweep.

    Args:
        sweep: its directory.
    """

    def __init__(self, sweep: Path) -> None:
        self._sweep = sweep
        self.unwritten: dict[Path, list[SubmittedJob]] = {}
        """Jobs that the file of a submission does not name, see `adopt`."""

    @cached_property
    def _read(self) -> tuple[dict[Path, tuple[Submission, Queue]], list[str]]:
        read: dict[Path, tuple[Submission, Queue]] = {}
        faults = []
        for path, submission in submissions(self._sweep):
            try:
                if isinstance(submission, UnreadableDocument):
                    raise submission
                read[path] = submission, Queue.read(queue_file(path))
            except UnreadableDocument as fault:
                faults.append(str(fault))
        return read, faults

    @cached_property
    def _turns(self) -> dict[str, list[Turn]]:
        turns: dict[str, list[Turn]] = {}
        for path, (submission, queue) in self._read[0].items():
            for cell_id, turn in _turns(path, [*submission.jobs, *self.unwritten.get(path, [])], queue):
                turns.setdefault(cell_id, []).append(turn)
        return turns

    @property
    def faults(self) -> list[str]:
        """Of each file that cannot be read the reason."""
        return self._read[1]

    def names(self, attempts: Mapping[str, list[Attempt]]) -> list[str]:
        """Of each submission that has no job for a cell without an answer the name that such a job would have.

        Args:
            attempts: of each cell that is looked at.
        """
        due = {cell_id for cell_id, of_cell in attempts.items() if not _is_answered(of_cell)}
        return [
            submission.job_name
            for submission, queue in self._read[0].values()
            if any(due.intersection(queue.items[item].cells) for item in unsubmitted(submission, queue))
        ]

    def adopt(self, named: list[JobState]) -> None:
        """Count jobs that have such a name as jobs of their submissions, whose files stay as they are."""
        for path, (submission, queue) in self._read[0].items():
            if found := unwritten(path, submission, queue, named):
                self.unwritten[path] = found
                self.__dict__.pop("_turns", None)

    def jobs_of(self, cell_id: str, attempts: list[Attempt]) -> list[str]:
        """The jobs that were to run a cell and have not, as far as its attempts tell."""
        return list(self._due(cell_id, attempts))

    def _due(self, cell_id: str, attempts: list[Attempt]) -> dict[str, Turn]:
        due = [turn for turn in self._turns.get(cell_id, []) if _is_due(turn, attempts)]
        return {job_id: turn for turn in due for job_id in turn.job_ids}

    def waiting(self, cell_id: str, attempts: list[Attempt], jobs: Jobs) -> Waiting | None:
        """What became of the jobs that were to run a cell; None when it was not submitted, or they have run it.

        Args:
            attempts: the cell's, none of which is running.
        """
        turns = self._due(cell_id, attempts)
        job_ids = list(turns)
        if not job_ids:
            return None
        if jobs.slurm is None:
            return Waiting(f"submitted as {_named(job_ids)}; there is no Slurm here to ask", job_ids[0], certain=False)
        if not jobs.answers:
            return Waiting(f"submitted as {_named(job_ids)}; squeue does not answer", job_ids[0])
        known = {job_id: job for job_id in job_ids if (job := jobs.listed(job_id)) is not None}
        listed = {job_id: job for job_id, job in known.items() if may_run(job, turns[job_id].requeues)}
        if not listed:
            return Waiting(f"{_named(job_ids)} did not run it", job_ids[0], certain=False)
        running = [job_id for job_id, job in listed.items() if job.state in HOLDS]
        if running:
            verb = "has" if len(running) == 1 else "have"
            return Waiting(f"{_named(running)} {verb} not come to it yet", running[0])
        first = next((job_id for job_id, job in listed.items() if job.state in WAITS), next(iter(listed)))
        return Waiting(f"{_named(list(listed))}: squeue says {listed[first].sentence}", first)

    def not_run(self, cell_id: str, attempts: list[Attempt], jobs: Jobs) -> NotRun | None:
        """How the jobs ended that were the last to be submitted for a cell, where none of them has come to it.

        None, too, where nobody can be asked.

        Args:
            attempts: the cell's, none of which is running; nor does it wait.
        """
        due = [turn for turn in self._turns.get(cell_id, []) if _is_due(turn, attempts)]
        if not due or not jobs.answers or any(attempt.number > due[-1].tried for attempt in attempts):
            return None
        turn = due[-1]
        ends = {job_id: jobs.ended(job_id) for job_id in turn.job_ids}
        job_id = min(ends, key=lambda job_id: _rank(ends[job_id]))
        job = ends[job_id]
        named = _named([job_id, *(other for other in turn.job_ids if other != job_id)])
        reason = f"{named} did not run it: {what_was_said(job_id, job, jobs)}"
        verdict = VERDICTS.get(job.state, Verdict.LOST) if job is not None else Verdict.LOST
        never_started = job is not None and job.state == "CANCELLED" and not job.nodes
        return NotRun(None if never_started else verdict, reason, job_id, log_of(turn.submission, job_id))


def attempts_of(sweep: SweepDirectory, cells: Iterable[PlannedCell]) -> dict[str, list[Attempt]]:
    """The attempts at each cell; none where they cannot be read."""
    found: dict[str, list[Attempt]] = {}
    for cell in cells:
        try:
            found[cell.cell_id] = sweep.cell(cell.cell_id).attempts()
        except UnreadableDocument:
            found[cell.cell_id] = []
    return found


def expect(sweeps: Iterable[tuple[Queued, Mapping[str, list[Attempt]]]], jobs: Jobs) -> None:
    """Note the jobs that hold attempts at cells, or were to run the cells, so that one question serves for all.

    Those whose ids are not written down are looked for first.
    """
    sweeps = list(sweeps)
    named = jobs.named(chain.from_iterable(queued.names(attempts) for queued, attempts in sweeps))
    for queued, attempts in sweeps:
        queued.adopt(named)
        due = (queued.jobs_of(cell_id, of_cell) for cell_id, of_cell in attempts.items() if not _is_answered(of_cell))
        jobs.expect_attempts(chain.from_iterable(attempts.values()), chain.from_iterable(due))


def _turns(path: Path, jobs: Iterable[SubmittedJob], queue: Queue) -> list[tuple[str, Turn]]:
    jobs_of: dict[int, list[str]] = {}
    for job in jobs:
        for index in job.items:
            jobs_of.setdefault(index, []).append(job.job_id)
    return [
        (cell_id, Turn(path, jobs_of[item.index], queue.tried.get(cell_id, 0), queue.max_requeues > 0))
        for item in queue.items
        if item.index in jobs_of
        for cell_id in item.cells
    ]


def _is_answered(attempts: list[Attempt]) -> bool:
    return any(attempt.answers for attempt in attempts)


def _rank(job: JobState | None) -> int:
    known = list(VERDICTS)
    return known.index(job.state) if job is not None and job.state in known else len(known)


def _is_due(turn: Turn, attempts: list[Attempt]) -> bool:
    """Whether the submission's jobs have still to run the cell: they have not, or were ended while they did."""
    since = [attempt for attempt in attempts if attempt.number > turn.tried]
    return all(attempt.record is None or attempt.record.verdict in GOES_ON for attempt in since)


def _named(job_ids: list[str]) -> str:
    return f"job {job_ids[0]}" if len(job_ids) == 1 else f"job {job_ids[0]} and {len(job_ids) - 1} more"
