"""Why a job must end before its queue is empty, and what that means for the cells that it runs."""

import signal
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from queue import Empty, SimpleQueue
from types import FrameType, TracebackType
from typing import Any, Literal

from scalerlt.records.queue import Queue
from scalerlt.records.record import Failure, Verdict
from scalerlt.worker.processes import HELD_BACK, PREEMPT
from scalerlt.worker.slurm import SlurmJob, in_words, is_preempted, is_requeued
from scalerlt.worker.verdict import Outcome

Kind = Literal["time_limit", "preempted", "cancelled"]
EARLY_SECONDS = 60.0
"""Slurm looks at its clock now and then: its signal may come so much earlier than it was asked for."""
TERMINATION_SECONDS = 20.0
"""Of the 30 seconds that Slurm, unless it is told otherwise, leaves between SIGTERM and SIGKILL."""
DECIDE_SECONDS = 30.0
CLOCKS_SECONDS = 5.0
"""By how much the clocks of two hosts may differ."""
_SIGNALS = (PREEMPT, signal.SIGTERM, signal.SIGINT)


class Signals:
    """The signals to this process, one after another; what handled them before is put back afterwards.

    One that was held back while the process started is the first.

    Not SIGUSR2: it asks for nothing more of a job that is at its end, and what submitit does on it would start a
    finished job again.
    """

    def __init__(self) -> None:
        self._came: SimpleQueue[int] = SimpleQueue()
        self._before: dict[signal.Signals, Any] = {}

    def __enter__(self) -> "Signals":
        if threading.current_thread() is threading.main_thread():  # Python allows handlers nowhere else
            self._before = {number: signal.signal(number, self._note) for number in _SIGNALS}
            signal.pthread_sigmask(signal.SIG_UNBLOCK, HELD_BACK)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        for number, handler in self._before.items():
            signal.signal(number, signal.SIG_IGN if number is PREEMPT else handler)

    def next(self, seconds: float) -> int | None:
        """The next signal, waited for at most so long."""
        try:
            return self._came.get(timeout=seconds)
        except Empty:
            return None

    def _note(self, number: int, frame: FrameType | None) -> None:
        self._came.put(number)


class JobEnd:
    """When and why this job ends. Nothing that submitit guesses comes into it.

    SIGUSR2 comes some time before the limit, or before another job takes the nodes; SIGTERM when the limit is there,
    when the nodes are taken without warning, or when somebody cancels the job. Which it is Slurm tells, and the clock.

    Attributes:
        kind: None while the job may go on.
        requeued: whether Slurm has put the job back into its queue of itself.
        grace: seconds that the cells have to save their state; 0: none.
    """

    def __init__(self, job: SlurmJob, queue: Queue) -> None:
        self.kind: Kind | None = None
        self.requeued = False
        self.grace = 0.0
        self._job = job
        self._signal_delay = float(queue.signal_delay_s)
        self._timeout_min = queue.timeout_min
        self._max_requeues = queue.max_requeues
        self._ends_at = job.end or job.ends_at() or (time.time() + 60.0 * queue.timeout_min if job.job_id else None)
        self._said: Mapping[str, str] = {}
        self._asked = threading.Event()
        self._asked_at = 0.0
        self._decided = threading.Event()

    def is_set(self) -> bool:
        """Whether the cells must end."""
        return self._asked.is_set()

    def seconds_left(self) -> float:
        """Until the cells are asked to end."""
        return float("inf") if self._ends_at is None else self._ends_at - self._signal_delay - time.time()

    def is_due(self) -> bool:
        """Whether the cells should have been asked to end by now: Slurm's signal did not arrive."""
        if self.is_set() or self.seconds_left() > 0:
            return False
        self._ends_at = self._job.ends_at() or self._ends_at  # the limit may have been raised
        return self.seconds_left() <= 0

    def take(self, number: int | None) -> None:
        """Find out what a signal means, and have the cells end; None: the time is over."""
        if self.kind is not None:
            self._take_another(number)
            return
        if number in (None, PREEMPT):
            self._ask(max(1.0, 0.8 * self._signal_delay))  # every second counts; why can be found out meanwhile
        self._hear()
        self.kind = self._meaning(number)
        if not self.is_set():
            self._ask(0.0 if self.kind == "cancelled" else TERMINATION_SECONDS)
        self._decided.set()

    def _take_another(self, number: int | None) -> None:
        if number in (None, PREEMPT):
            return
        self.grace = min(self.grace, time.monotonic() - self._asked_at + TERMINATION_SECONDS)
        self._hear()
        if self._meaning(number) == "cancelled":
            self.kind = "cancelled"

    def _ask(self, grace: float) -> None:
        self.grace, self._asked_at = grace, time.monotonic()
        self._asked.set()

    def _hear(self) -> None:
        self._said = self._job.says()
        self.requeued = is_requeued(self._said, self._job.restarts)

    def outcome(self, saved: str | None, had_all_the_time: bool) -> Outcome:
        """What is recorded of a cell that had to end.

        Args:
            saved: what it says of the state that it saved; None: it saved none.
            had_all_the_time: whether the job ran nothing else before it.
        """
        self._decided.wait(DECIDE_SECONDS)  # Slurm signals the cells as well, and they may be the faster
        if self.kind == "cancelled":
            return _ended(Verdict.KILLED, f"the job was cancelled ({in_words(self._said)})")
        if self.kind == "time_limit" and saved is None and had_all_the_time:
            return _ended(Verdict.TIMEOUT, f"exceeded the job's time limit of {self._timeout_min} min")
        why = {
            "time_limit": f"the job's time limit of {self._timeout_min} min is reached",
            "preempted": f"the job was preempted ({in_words(self._said)})",
            None: "asked to end by a signal that did not reach the job",
        }[self.kind]
        requeues = self._max_requeues
        last = f"; the job is not requeued again (max_requeues={requeues})" if self._job.restarts >= requeues else ""
        return _ended(Verdict.PREEMPTED, f"{why}; {saved or 'ended without having saved its state'}{last}")

    def _meaning(self, number: int | None) -> Kind:
        if is_preempted(self._said, self._job.restarts):
            return "preempted"
        left = float("inf") if self._ends_at is None else self._ends_at - time.time()
        if number in (None, PREEMPT):
            return "time_limit" if left <= self._signal_delay + EARLY_SECONDS else "preempted"
        return "time_limit" if left <= CLOCKS_SECONDS else "cancelled"


@dataclass
class CellEnd:
    """The same for one attempt: what its watch asks.

    Attributes:
        facts: the record's part of the job; gets `ended` and `saved` of an attempt that had to end.
        had_all_the_time: whether the job ran nothing else before it.
    """

    job: JobEnd
    facts: dict[str, Any]
    had_all_the_time: bool

    @property
    def grace(self) -> float:
        """Seconds that it has to save its state, from when it was asked."""
        return self.job.grace

    def is_set(self) -> bool:
        """Whether it must end."""
        return self.job.is_set()

    def outcome(self, saved: str | None) -> Outcome:
        """What is recorded of it."""
        outcome = self.job.outcome(saved, self.had_all_the_time)
        self.facts |= {"ended": self.job.kind, "saved": saved is not None}
        return outcome


def _ended(verdict: Verdict, reason: str) -> Outcome:
    return Outcome(verdict, reason, Failure(type="JobEnd", message=reason))
