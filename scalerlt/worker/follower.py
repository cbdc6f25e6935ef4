"""The task on a node that follows: starts the ranks that the leader orders, tells of them, and ends them.

It claims nothing and records nothing. Its ranks end with it, however it ends.
"""

import signal
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from scalerlt.errors import UserError
from scalerlt.measure.cgroup import oom_kills
from scalerlt.measure.environment import environment
from scalerlt.records.base import now
from scalerlt.worker.beat import Beat, Heard
from scalerlt.worker.nodes import ORDERS_FILE, REPORT_FILE, Orders, Place, RankNews, Report
from scalerlt.worker.processes import HELD_BACK
from scalerlt.worker.starting import Job, Spawner

LOOK_SECONDS = 0.2
IGNORED = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR2)
"""What Slurm sends to all tasks of a job: the leader gets it too, and says what is to be done."""


def follow(folder: Path, place: Place) -> int:
    """Do what the leader orders until it needs nobody any more, or is gone.

    Args:
        folder: the leader's, which all nodes see.

    Returns:
        The exit code: 0 when the leader has ended, 1 when it is gone without a word.
    """
    for number in IGNORED:
        signal.signal(number, lambda *_: None)  # a handler, and not SIG_IGN, which the ranks would inherit
    signal.pthread_sigmask(signal.SIG_UNBLOCK, HELD_BACK)  # as which the process was started
    folder.mkdir(parents=True, exist_ok=True)
    here = _Here(place.node)
    beat = Beat(folder / REPORT_FILE.format(node=place.node), lambda: here.report)
    leader = Heard(folder / ORDERS_FILE, Orders, beat)
    try:
        while True:
            if leader.look() and leader.latest is not None:
                here.obey(leader.latest)
                beat.tell()
            if leader.latest is not None and leader.latest.over:
                return 0
            if leader.silence is not None:
                return 1
            if here.has_news():
                beat.tell()
    finally:
        here.end_all()
        beat.close()


@dataclass
class _Here:
    """The ranks of this node."""

    node: int
    report: Report = field(default_factory=Report)
    """Never changed but replaced: the beat's thread reads it at any moment."""
    _environment: dict[str, Any] = field(default_factory=environment)
    _spawner: Spawner = field(default_factory=Spawner)
    _running: dict[int, int] = field(default_factory=dict)
    """Rank by pid."""
    _news: dict[int, RankNews] = field(default_factory=dict)
    _attempt: int = 0
    _signals: int = 0
    """How many of the attempt's were sent."""
    _oom_kills: int = 0

    def obey(self, orders: Orders) -> None:
        """Start what is to be started, and send what is to be sent."""
        if orders.attempt != self._attempt or orders.over:
            self.end_all()
            self._attempt, self._signals, self._news, self._oom_kills = orders.attempt, 0, {}, oom_kills()
            self._environment = environment()
        for job in (Job(**plain) for plain in orders.jobs):
            if job.node == self.node and job.rank not in self._news:
                self._start(job)
        for sent in orders.signals[self._signals :]:
            for pid in [pid for pid, rank in self._running.items() if rank == sent.rank]:
                self._spawner.signal(pid, signal.Signals(sent.number), leader_only=sent.leader_only)
        self._signals = len(orders.signals)
        self._tell()

    def has_news(self) -> bool:
        """Sleep until a rank ends, for a moment at most; whether one has."""
        exits = self._spawner.wait(LOOK_SECONDS)
        for end in exits:
            rank = self._running.pop(end.handle)
            killed = oom_kills() > self._oom_kills
            ended = {"ended": now(), "exit_code": end.exit_code, "signal": end.signal, "kernel_killed": killed}
            self._news[rank] = self._news[rank].model_copy(update=ended)
        for pid, rank in self._running.items():
            self._see(pid, rank)
        self._tell()
        return bool(exits)

    def end_all(self) -> None:
        """Kill what runs, and wait for it."""
        while self._running:
            for pid in self._running:
                self._spawner.signal(pid, signal.SIGKILL)
            self.has_news()

    def _start(self, job: Job) -> None:
        try:
            pid = self._spawner.start(job)
        except (OSError, UserError) as error:
            self._news[job.rank] = RankNews(rank=job.rank, ended=now(), fault=f"could not be started ({error})")
            return
        self._running[pid] = job.rank
        self._news[job.rank] = RankNews(rank=job.rank)
        self._see(pid, job.rank)

    def _see(self, pid: int, rank: int) -> None:
        sight, before = self._spawner.look(pid), self._news[rank]
        seen = {
            "pid": pid,
            "rss_bytes": sight.rss_bytes or before.rss_bytes,
            "rss_peak_bytes": max(sight.rss_peak_bytes, before.rss_peak_bytes),
        }
        self._news[rank] = before.model_copy(update=seen)

    def _tell(self) -> None:
        self.report = Report(attempt=self._attempt, ranks=list(self._news.values()), environment=self._environment)
