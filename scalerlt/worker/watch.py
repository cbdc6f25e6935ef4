"""Watching an attempt's processes from their start to the end of the last one.

While a cell measures, the watch sleeps: it wakes five times a second to look at a few files of /proc.
"""

import math
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from scalerlt.measure.cgroup import oom_kills
from scalerlt.records.base import now
from scalerlt.records.journal import Journal
from scalerlt.records.lease import Lease
from scalerlt.records.store import LEASE_FILE
from scalerlt.worker.processes import ResidentMemory, signal_session
from scalerlt.worker.starting import Job, Starter
from scalerlt.worker.verdict import INTERRUPTED, MEASURED, Outcome, Rank, culprit, of_rank, of_time_limit

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
        on_event: called with a Glimpse at each look; must return at once.
    """

    def __init__(
        self,
        attempt: Path,
        starter: Starter,
        lease: Lease,
        time_limit: float | None,
        stop: Flag | None,
        on_event: Callable[[Glimpse], None] | None,
    ) -> None:
        self.ranks: list[Rank] = []
        self._attempt = attempt
        self._starter = starter
        self._lease = lease
        self._time_limit = math.inf if time_limit is None else time_limit
        self._stop = stop
        self._on_event = on_event
        self._memory: dict[int, ResidentMemory] = {}

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
        pid = self._starter.start(job)
        self.ranks.append(Rank(job.rank, pid, now(), Journal.of(self._attempt, job.rank)))
        self._memory[pid] = ResidentMemory(pid)

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
        if outcome is None or all(rank.measured for rank in self.ranks):
            return MEASURED
        return outcome

    def _cause_to_end(self, ended: list[Rank]) -> Outcome | None:
        if not all(rank.measured for rank in ended):
            self._let_settle()
            return of_rank(culprit(self.ranks), len(self.ranks), kernel_killed=oom_kills() > self._oom_kills)
        running = self._running()
        if running and self._stop is not None and self._stop.is_set():
            return INTERRUPTED
        if running and time.monotonic() - self._began > self._time_limit:
            return of_time_limit(running[0], self._time_limit)
        return None

    def _let_settle(self) -> None:
        """Wait a moment for further ends: a rank that fails because another has died may be seen first."""
        until = time.monotonic() + SETTLE_SECONDS
        while self._running() and (left := until - time.monotonic()) > 0:
            self._take_exits(left)

    def _running(self) -> list[Rank]:
        return [rank for rank in self.ranks if rank.runs]

    def _signal(self, number: signal.Signals) -> None:
        for rank in self._running():
            signal_session(rank.pid, number)

    def _take_exits(self, seconds: float = LOOK_SECONDS) -> list[Rank]:
        """Sleep until a process ends, at most so long; the ranks whose processes ended."""
        by_pid = {rank.pid: rank for rank in self.ranks}
        ended = []
        for pid, exit_code, number in self._starter.wait(seconds):
            rank = by_pid[pid]
            rank.ended, rank.exit_code, rank.signal = now(), exit_code, number
            rank.journal.read_on()
            ended.append(rank)
        return ended

    def _look(self) -> None:
        for rank in self._running():
            rank.saw(self._memory[rank.pid].bytes())
            rank.journal.read_on()
        moment = time.monotonic()
        if moment >= self._next_heartbeat:
            self._next_heartbeat = moment + HEARTBEAT_SECONDS
            self._lease.heartbeat = now()
            self._lease.write(self._attempt / LEASE_FILE)
        if self._on_event is not None:
            self._on_event(self._glimpse(moment))

    def _glimpse(self, moment: float) -> Glimpse:
        first = self.ranks[0].journal
        memory = sum(rank.rss_bytes for rank in self._running())
        elapsed = moment - self._began
        return Glimpse(self._attempt, elapsed, first.phase, first.done, first.total, first.what, memory)
