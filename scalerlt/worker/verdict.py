"""How the end of an attempt becomes its verdict, its reason and its failure."""

import signal
import traceback
from dataclasses import dataclass

from scalerlt.errors import UserError
from scalerlt.records.journal import Journal
from scalerlt.records.record import Failure, RankReport, Verdict


@dataclass
class Rank:
    """One process of an attempt, as the supervisor sees it. Times are in UTC, ISO 8601."""

    rank: int
    pid: int
    started: str
    journal: Journal
    ended: str | None = None
    exit_code: int | None = None
    signal: int | None = None
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

    def saw(self, rss_bytes: int) -> None:
        """Note a sample of its resident memory; none is left of a process that has just ended."""
        if rss_bytes:
            self.rss_bytes = rss_bytes
            self.rss_peak_bytes = max(self.rss_peak_bytes, rss_bytes)

    def report(self) -> RankReport:
        """Its part of the record."""
        ending = self.journal.ending
        return RankReport(
            rank=self.rank,
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


def culprit(ranks: list[Rank]) -> Rank:
    """Of the ranks that ended without a result, the one to name: one that died, else the one that raised first."""
    bad = [rank for rank in ranks if not rank.runs and not rank.measured]
    return min(bad, key=lambda rank: (rank.journal.ending is not None, rank.journal.ended_at, rank.rank))


def of_rank(rank: Rank, of: int, kernel_killed: bool) -> Outcome:
    """The outcome of an attempt that ends because one of its ranks did.

    Args:
        of: number of ranks; with more than one the reason names the rank.
        kernel_killed: whether the kernel has killed a process of this cgroup for want of memory since the start.
    """
    named = f"rank {rank.rank}: " if of > 1 else ""
    if (ending := rank.journal.ending) is not None:
        return Outcome(ending.verdict, named + (ending.reason or _first_line(ending.failure)), ending.failure)
    where = _where(rank)
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
