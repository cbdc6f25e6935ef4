"""Watching an attempt's processes from their start to the end of the last one.

While a cell measures, the watch sleeps: it wakes five times a second to look at a few files of /proc.
"""

import math
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

from scalerlt.measure.cgroup import oom_kills
from scalerlt.records.base import UnwritableFile, now
from scalerlt.records.journal import Journal
from scalerlt.records.lease import Lease
from scalerlt.records.store import LEASE_FILE
from scalerlt.worker.processes import PREEMPT
from scalerlt.worker.starting import Job, Starter
from scalerlt.worker.verdict import CUT_OFF, INTERRUPTED, MEASURED, Outcome, Rank, culprit, of_rank, of_time_limit

LOOK_SECONDS = 0.2
HEARTBEAT_SECONDS = 10.0
SETTLE_SECONDS = 0.5
GRACE_SECONDS = 2.0
"""Between SIGTERM and SIGKILL."""


class Flag(Protocol):
    """What threading.Event is: set when the running cell must end now."""

    def is_set(self) -> bool:
        """Whether it must."""
        ...


class Preemption(Protocol):
    """What a Slurm job asks of its running cell when the job itself must end."""

    @property
    def grace(self) -> float:
        """Seconds that the cell has to save its state, from when it was asked; 0: it is ended at once."""
        ...

    def is_set(self) -> bool:
        """Whether the cell must end."""
        ...

    def outcome(self, saved: str | None) -> Outcome:
        """What is recorded of a cell that had to end; asked once it has.

        Args:
            saved: what it says of the state that it saved; None: it saved none.
        """
        ...


@dataclass(frozen=True)
class Glimpse:
    """Where a running cell is, about five times a second; the first comes as it starts.

    Attributes:
        elapsed: seconds since its processes were started.
        done, total, what: how far the phase is, where the experiment says so.
        rss_bytes: resident memory of all ranks.
    """

    attempt: Path
    elapsed: float
    phase: str | None
    done: int | None
    total: int | None
    what: str
    rss_bytes: int


class Watch:
    """The processes of one attempt.

    Args:
        starter: starts them and tells of their ends.
        lease: the attempt's, whose heartbeat is renewed.
        time_limit: seconds, or None.
        stop: set when the attempt must end now.
        preempt: set when the attempt must save its state and end.
        on_event: called with a Glimpse at each look; must return at once.
    """

    def __init__(
        self,
        attempt: Path,
        starter: Starter,
        lease: Lease,
        time_limit: float | None,
        stop: Flag | None,
        preempt: Preemption | None,
        on_event: Callable[[Glimpse], None] | None,
    ) -> None:
        self.ranks: list[Rank] = []
        self._attempt = attempt
        self._starter = starter
        self._lease = lease
        self._time_limit = math.inf if time_limit is None else time_limit
        self._stop = stop
        self._preempt = preempt
        self._asked_at: float | None = None
        self._on_event = on_event

    def run(self, jobs: list[Job]) -> Outcome:
        """Start one process per job and watch them to their end; when one ends badly the others are ended too."""
        self._began = time.monotonic()
        self._next_heartbeat = self._began + HEARTBEAT_SECONDS
        self._oom_kills = oom_kills()
        try:
            for job in jobs:
                self._start(job)
            return self._until_all_have_ended()
        finally:
            while self._running():  # an exception is on its way up: nothing may be left behind
                self._signal(signal.SIGKILL)
                self._take_exits()

    def _start(self, job: Job) -> None:
        handle = self._starter.start(job)
        rank = Rank(job.rank, job.node, handle, now(), Journal.of(self._attempt, job.rank))
        rank.saw(self._starter.look(handle))
        self.ranks.append(rank)

    def _until_all_have_ended(self) -> Outcome:
        outcome: Outcome | None = None
        kill_at = math.inf
        self._look()
        while self._running():
            ended = self._take_exits()
            self._look()
            if outcome is None and (outcome := self._cause_to_end(ended)) is not None:
                self._signal(signal.SIGTERM)
                kill_at = time.monotonic() + GRACE_SECONDS
            elif time.monotonic() >= kill_at:
                self._signal(signal.SIGKILL)
        if all(rank.measured for rank in self.ranks):
            return MEASURED
        if self._asked_at is not None:
            return self._ended_early()
        return outcome or MEASURED

    def _cause_to_end(self, ended: list[Rank]) -> Outcome | None:
        bad = not all(rank.measured or rank.saved for rank in ended)
        if self._asked_at is not None:
            return CUT_OFF if bad or time.monotonic() >= self._asked_at + self._grace() else None
        if bad:
            self._let_settle()
            rank = culprit(self.ranks)
            here = rank.node == 0 and oom_kills() > self._oom_kills
            return of_rank(rank, self.ranks, kernel_killed=here or rank.kernel_killed)
        running = self._running()
        if running and self._stop is not None and self._stop.is_set():
            return INTERRUPTED
        asked = self._preempt is not None and self._preempt.is_set()
        if asked or any(rank.saved for rank in ended):  # Slurm may have signalled the ranks itself
            return self._have_it_saved()
        if running and time.monotonic() - self._began > self._time_limit:
            return of_time_limit(running[0], self._time_limit)
        return None

    def _have_it_saved(self) -> Outcome | None:
        self._asked_at = time.monotonic()
        if not self._grace():
            return CUT_OFF
        for rank in self._running():
            self._starter.signal(rank.handle, PREEMPT, leader_only=True)
        return None

    def _grace(self) -> float:
        asked = self._preempt is not None and self._preempt.is_set()
        return self._preempt.grace if self._preempt is not None and asked else GRACE_SECONDS

    def _ended_early(self) -> Outcome:
        found = of_rank(culprit(self.ranks), self.ranks, kernel_killed=False)
        if self._preempt is None:
            return found
        saved = all(rank.measured or rank.saved for rank in self.ranks)
        return replace(self._preempt.outcome(found.reason if saved else None), failure=found.failure)

    def _let_settle(self) -> None:
        """Wait a moment for further ends: a rank that fails because another has died may be seen first."""
        began = time.monotonic()
        until = began + SETTLE_SECONDS
        while self._running() and ((left := until - time.monotonic()) > 0 or not self._starter.heard_from_all(began)):
            self._take_exits(left if left > 0 else LOOK_SECONDS)

    def _running(self) -> list[Rank]:
        return [rank for rank in self.ranks if rank.runs]

    def _signal(self, number: signal.Signals) -> None:
        for rank in self._running():
            self._starter.signal(rank.handle, number)

    def _take_exits(self, seconds: float = LOOK_SECONDS) -> list[Rank]:
        """Sleep until a process ends, at most so long; the ranks whose processes ended."""
        by_handle = {rank.handle: rank for rank in self.ranks}
        ended = []
        for end in self._starter.wait(seconds):
            rank = by_handle[end.handle]
            if rank.node:  # of its whole life, since its node tells of it now and then
                rank.saw(self._starter.look(rank.handle))
            rank.took(end)
            rank.journal.read_on()
            ended.append(rank)
        return ended

    def _look(self) -> None:
        for rank in self._running():
            rank.saw(self._starter.look(rank.handle))
            rank.journal.read_on()
        moment = time.monotonic()
        if moment >= self._next_heartbeat:
            self._next_heartbeat = moment + HEARTBEAT_SECONDS
            self._lease.heartbeat = now()
            # A lease that cannot be written is no reason to end what measures: here the process is the sign of life.
            with suppress(UnwritableFile):
                self._lease.write(self._attempt / LEASE_FILE)
        if self._on_event is not None:
            self._on_event(self._glimpse(moment))

    def _glimpse(self, moment: float) -> Glimpse:
        first = self.ranks[0].journal
        memory = sum(rank.rss_bytes for rank in self._running())
        elapsed = moment - self._began
        return Glimpse(self._attempt, elapsed, first.phase, first.done, first.total, first.what, memory)
