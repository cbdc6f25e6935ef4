"""How the end of an attempt becomes its verdict, its reason and its failure."""

import signal
import traceback
from dataclasses import dataclass

from scalerlt.errors import UserError
from scalerlt.records.base import now
from scalerlt.records.journal import Journal
from scalerlt.records.record import Failure, RankReport, Verdict
from scalerlt.worker.processes import UNWRITABLE
from scalerlt.worker.starting import Exit, Sight


@dataclass
class Rank:
    """One process of an attempt, as the supervisor sees it. Times are in UTC, ISO 8601.

    Attributes:
        node: which of the attempt's nodes it is on; 0 is the supervisor's own.
        handle: what its starter knows it by.
        pid: None while its node has not told it.
        kernel_killed: of another node: whether the kernel killed a process there for want of memory.
        lost: why nobody can tell how it ended.
        fault: of another node: why it could not be started there.
    """

    rank: int
    node: int
    handle: int
    started: str
    journal: Journal
    host: str = ""
    pid: int | None = None
    ended: str | None = None
    exit_code: int | None = None
    signal: int | None = None
    kernel_killed: bool = False
    lost: str | None = None
    fault: str | None = None
    rss_bytes: int = 0
    rss_peak_bytes: int = 0

    @property
    def runs(self) -> bool:
        """Whether its process has not ended."""
        return self.ended is None

    @property
    def measured(self) -> bool:
        """Whether its experiment came to its end."""
        return self.journal.ending is not None and self.journal.ending.verdict is Verdict.MEASURED

    @property
    def saved(self) -> bool:
        """Whether it was asked to end early and has saved its state."""
        return self.journal.ending is not None and self.journal.ending.verdict is Verdict.PREEMPTED

    def saw(self, sight: Sight) -> None:
        """Note where it is, and a sample of its resident memory; none is left of a process that has just ended."""
        self.host, self.pid = sight.host, sight.pid
        self.rss_bytes = sight.rss_bytes or self.rss_bytes
        self.rss_peak_bytes = max(self.rss_peak_bytes, sight.rss_peak_bytes)

    def took(self, end: Exit) -> None:
        """Note its end."""
        self.ended, self.exit_code, self.signal = end.ended or now(), end.exit_code, end.signal
        self.kernel_killed, self.lost, self.fault = end.kernel_killed, end.lost, end.fault

    def report(self) -> RankReport:
        """Its part of the record."""
        ending = self.journal.ending
        return RankReport(
            rank=self.rank,
            host=self.host,
            pid=self.pid,
            exit_code=self.exit_code,
            signal=self.signal,
            started=self.started,
            ended=self.ended,
            experiment_seconds=ending.experiment_seconds if ending else None,
            rss_peak_bytes=self.rss_peak_bytes or None,
            phase=None if self.measured else self.journal.phase,
            metrics=self.journal.metrics if self.rank else {},
        )


@dataclass(frozen=True)
class Outcome:
    """An attempt's verdict, and why it is not `measured`."""

    verdict: Verdict
    reason: str | None = None
    failure: Failure | None = None


MEASURED = Outcome(Verdict.MEASURED)
INTERRUPTED = Outcome(Verdict.KILLED, "interrupted", Failure(type="Interrupted", message="ended by the user"))

CUT_OFF = Outcome(Verdict.PREEMPTED, "ended before its state was saved")
"""Of an attempt that had no time left for it; what is recorded says why."""


def culprit(ranks: list[Rank]) -> Rank:
    """Of the ranks that ended without a result the one to name: the first that died, else the first that raised."""
    bad = [rank for rank in ranks if not rank.runs and not rank.measured]
    return min(bad, key=lambda rank: (rank.journal.ending is not None, rank.journal.ended_at or rank.ended, rank.rank))


def of_rank(rank: Rank, ranks: list[Rank], kernel_killed: bool) -> Outcome:
    """The outcome of an attempt that ends because one of its ranks did.

    Args:
        ranks: all ranks; of more than one the reason names the rank, and of several nodes its host.
        kernel_killed: whether the kernel has killed a process of its node for want of memory since the start.
    """
    host = f" on {rank.host}" if any(other.node != rank.node for other in ranks) else ""
    named = f"rank {rank.rank}{host}: " if len(ranks) > 1 else ""
    if (ending := rank.journal.ending) is not None:
        return Outcome(ending.verdict, named + (ending.reason or _first_line(ending.failure)), ending.failure)
    where = _where(rank)
    if rank.fault is not None:
        return Outcome(Verdict.FAILED, f"{named}{rank.fault}", _failure(rank, "NotStarted", rank.fault))
    if rank.lost is not None:
        return Outcome(Verdict.KILLED, f"{named}{rank.lost}{where}", _failure(rank, "NodeLost", rank.lost))
    if rank.exit_code == UNWRITABLE:
        text = (
            f"could not write {rank.journal.path.name}: the disk is full, or its directory gone or not to be written to"
        )
        return Outcome(Verdict.FAILED, f"{named}{text}{where}", _failure(rank, "UnwritableFile", text))
    if rank.signal is None:
        text = f"exited with code {rank.exit_code} without a result"
        return Outcome(Verdict.FAILED, f"{named}{text}{where}", _failure(rank, "Exit", text))
    name = signal_name(rank.signal)
    if rank.signal == signal.SIGKILL and kernel_killed:
        text = "killed by the kernel because memory ran out"
        return Outcome(Verdict.OOM, f"{named}{text}{where}", _failure(rank, name, text))
    text = f"killed by {name}"
    return Outcome(Verdict.KILLED, f"{named}{text}{where}", _failure(rank, name, text))


def of_time_limit(rank: Rank, seconds: float) -> Outcome:
    """The outcome of an attempt that was ended for its time limit; `rank` is one that was still running."""
    text = f"exceeded its time limit of {seconds:g} s"
    return Outcome(Verdict.TIMEOUT, text + _where(rank), _failure(rank, "TimeLimit", text))


def of_error(error: Exception) -> Outcome:
    """The outcome of an attempt that could not be started or watched."""
    failure = Failure(
        type=type(error).__name__,
        message=str(error),
        phase="start",
        traceback=None if isinstance(error, UserError) else "".join(traceback.format_exception(error)),
    )
    return Outcome(Verdict.FAILED, _first_line(failure), failure)


def signal_name(number: int) -> str:
    """SIGKILL for 9; the number itself for one without a name."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def _failure(rank: Rank, kind: str, message: str) -> Failure:
    return Failure(
        type=kind,
        message=message,
        phase=rank.journal.phase,
        signal=rank.signal,
        exit_code=rank.exit_code,
        rss_bytes=rank.rss_bytes or None,
    )


def _where(rank: Rank) -> str:
    memory = f", {rank.rss_bytes / 2**20:.0f} MiB resident" if rank.rss_bytes else ""
    return f" (phase {rank.journal.phase or 'start'}{memory})"


def _first_line(failure: Failure | None) -> str:
    if failure is None:
        return "no reason given"
    message = failure.message.strip()
    return f"{failure.type}: {message.splitlines()[0]}" if message else failure.type
