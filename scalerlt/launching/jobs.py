"""What Slurm says of the jobs that hold attempts: asked for all of them at once, and again when the answer is old."""

import re
import time
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol, TypeGuard

from scalerlt.records.base import UnreadableDocument
from scalerlt.records.lease import Lease
from scalerlt.records.store import Attempt, CellDirectory

REMEMBER_SECONDS = 10.0
"""A display that is drawn every second must not ask the controller every second."""
UNKNOWN_SECONDS = 60.0
"""Nor accounting about jobs that are forgotten; it may be behind, though, and is asked again after so long."""
SETTLED_SECONDS = 30.0
"""Three heartbeats: a younger one is of a process that lives, whatever Slurm says, or whose record is on its way."""
HOLDS = frozenset({"RUNNING", "SUSPENDED", "STOPPED", "SIGNALING", "RESIZING", "STAGE_OUT"})
"""States of a job whose processes exist."""
WAITS = frozenset({"PENDING", "CONFIGURING", "REQUEUED", "REQUEUE_HOLD", "REQUEUE_FED", "SPECIAL_EXIT"})
OPEN = HOLDS | WAITS | {"COMPLETING"}
"""States of a job from which it may still run what was submitted."""
PREEMPTED = "PREEMPTED"
"""The state of a job on its way back into the queue, or of one that has ended, as its submission wants it."""


class JobState(Protocol):
    """What Slurm says of one job."""

    @property
    def job_id(self) -> str:
        """`123`, or `123_4` of an element of an array."""
        ...

    @property
    def state(self) -> str:
        """RUNNING, PENDING, NODE_FAIL, ...: one word."""
        ...

    @property
    def sentence(self) -> str:
        """The state, with why it waits or who cancelled it: `PENDING (Priority)`."""
        ...

    @property
    def source(self) -> str:
        """The command that said so: squeue, sacct or scontrol."""
        ...

    @property
    def nodes(self) -> str:
        """On which nodes it is or was; empty of one that never started."""
        ...

    @property
    def script(self) -> str:
        """The path of its script, where it was asked for by its name."""
        ...

    @property
    def started(self) -> str | None:
        """When it started the last time, ISO 8601 with a time zone; None of one that has not, or unknown."""
        ...


class Slurm(Protocol):
    """How Slurm is asked."""

    @property
    def is_silent(self) -> bool:
        """Whether squeue gave no answer when it was last asked: then that a job is not listed means nothing."""
        ...

    def queue(self, job_ids: Iterable[str]) -> Mapping[str, JobState]:
        """Of these jobs those that squeue lists."""
        ...

    def history(self, job_ids: Iterable[str]) -> Mapping[str, JobState]:
        """How these jobs stand or ended, as far as it is known, by accounting or by the controller's memory."""
        ...

    def named(self, names: Iterable[str]) -> Mapping[str, JobState]:
        """The jobs of these names that squeue lists, whoever's they are."""
        ...


@dataclass
class Jobs:
    """The jobs of some attempts and submissions, and what Slurm says of them.

    Attributes:
        slurm: None where there is none to ask: then heartbeats decide.
    """

    slurm: Slurm | None = None

    def __post_init__(self) -> None:
        self._ids: set[str] = set()
        self._open: set[str] = set()
        """Jobs about whose end may be asked."""
        self._queue: Mapping[str, JobState] | None = None
        self._asked: set[str] = set()
        self._asked_at = float("-inf")
        self._ended: dict[str, JobState | None] = {}
        self._unknown_until = float("-inf")
        self._named: tuple[float, set[str], list[JobState]] = (float("-inf"), set(), [])

    def expect(self, cells: Iterable[CellDirectory], ids: Iterable[str] = ()) -> None:
        """Note the jobs whose state may be asked for, so that one question serves for all.

        Args:
            cells: whose attempts without a record are looked at.
            ids: further jobs, which were to run cells and have not.
        """
        attempts: list[Attempt] = []
        for cell in cells:
            with suppress(UnreadableDocument):
                attempts += cell.attempts()
        self.expect_attempts(attempts, ids)

    def expect_attempts(self, attempts: Iterable[Attempt], ids: Iterable[str] = ()) -> None:
        """The same, where the attempts have been read."""
        unrecorded = [attempt for attempt in attempts if attempt.record is None]
        held = [attempt.lease.slurm_job_id for attempt in unrecorded if attempt.lease is not None]
        self._open |= set(filter(is_job_id, [*held, *ids]))
        self._ids |= self._open

    @property
    def knows_any(self) -> bool:
        """Whether there is a job to ask about."""
        return bool(self._ids)

    @property
    def answers(self) -> bool:
        """Whether squeue has said which jobs wait and run."""
        return self._look() is not None

    def listed(self, job_id: str) -> JobState | None:
        """What squeue says of a job; None when it does not list it, or does not answer."""
        if is_job_id(job_id):
            self._ids.add(job_id)
        return (self._look() or {}).get(job_id)

    def ended(self, job_id: str) -> JobState | None:
        """What is known of a job by any command, that it still runs too."""
        if (listed := self.listed(job_id)) is not None:
            return listed
        if job_id not in self._ended and self.slurm is not None and is_job_id(job_id):
            unlisted = [known for known in self._open if known not in (self._look() or {})]
            wanted = sorted({job_id, *unlisted} - self._ended.keys())
            found = self.slurm.history(wanted)
            self._unknown_until = time.monotonic() + UNKNOWN_SECONDS
            self._ended |= {known: found.get(known) for known in wanted}
        return self._ended.get(job_id)

    def named(self, names: Iterable[str]) -> list[JobState]:
        """The jobs of these names that squeue lists, whoever's they are; none where it does not answer."""
        wanted = set(names)
        if self.slurm is None or not wanted:
            return []
        asked_at, asked, found = self._named
        if wanted != asked or time.monotonic() - asked_at > REMEMBER_SECONDS:
            found = list(self.slurm.named(sorted(wanted)).values())
            self._named = (time.monotonic(), wanted, found)
        return found

    def started_again(self, lease: Lease) -> bool:
        """Whether Slurm has put the job of an attempt back into its queue since, or has started it again."""
        job = None if lease.slurm_job_id is None else self.listed(lease.slurm_job_id)
        return job is not None and (job.state in WAITS or (job.state in HOLDS and _started_after(job, lease)))

    def runs(self, attempt: Attempt) -> bool:
        """Whether a living process holds an attempt and has not recorded it yet.

        On this host its process says it. On another a fresh heartbeat does, or that its job runs: one that Slurm lists
        as running is alive however old its heartbeat is, and one that Slurm does not list is dead.
        """
        lease = attempt.lease
        if attempt.record is not None or attempt.fault is not None or lease is None or lease.is_of_this_host:
            return attempt.is_running
        if not is_job_id(lease.slurm_job_id):
            return attempt.is_running
        job = self.listed(lease.slurm_job_id)
        if not self.answers:
            return attempt.is_running
        if job is not None and job.state in HOLDS and not _started_after(job, lease):
            return True
        return lease.age_seconds() < SETTLED_SECONDS

    def _look(self) -> Mapping[str, JobState] | None:
        if self.slurm is None or not self._ids:
            return None
        if self._ids - self._asked or time.monotonic() - self._asked_at > REMEMBER_SECONDS:
            listed = self.slurm.queue(sorted(self._ids))
            self._queue = None if self.slurm.is_silent else listed
            self._asked, self._asked_at = set(self._ids), time.monotonic()
            remembers = time.monotonic() < self._unknown_until
            self._ended = {
                job: known
                for job, known in self._ended.items()
                if (remembers if known is None else known.state not in OPEN)
            }
        return self._queue


def _started_after(job: JobState, lease: Lease) -> bool:
    """Whether the job was put back and started again since: the attempt is of its earlier life."""
    return job.started is not None and datetime.fromisoformat(job.started) > datetime.fromisoformat(lease.started)


def may_run(job: JobState, requeues: bool) -> bool:
    """Whether a job that squeue lists may still run what was submitted.

    Args:
        requeues: whether it goes back into the queue when it is preempted.
    """
    return job.state in OPEN or (requeues and job.state == PREEMPTED)


def is_job_id(text: str | None) -> TypeGuard[str]:
    """Whether this is how Slurm names a job (`123`, `123_4`): it refuses a whole question for one that is not."""
    return text is not None and re.fullmatch(r"\d+(_\d+)?", text) is not None
