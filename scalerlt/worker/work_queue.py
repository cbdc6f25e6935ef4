"""What is left of a submission's queue, and which of it this process has taken."""

import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from scalerlt.records.base import FileFault, UnreadableDocument, UnwritableFile
from scalerlt.records.lease import Lease
from scalerlt.records.plan import Plan, PlannedCell
from scalerlt.records.queue import CLAIMS, Queue, QueueItem
from scalerlt.records.record import Record, Verdict
from scalerlt.records.store import Attempt, CellDirectory, SweepDirectory
from scalerlt.worker.claims import Claims
from scalerlt.worker.slurm import SlurmJob

MOST_LOSSES = 2
"""So many attempts at a cell that took their supervisor with them are enough."""

Reconcile = Callable[[CellDirectory], list[str]]
"""Puts a cell's earlier attempts in order, and says what it did."""


def nothing_to_reconcile(cell: CellDirectory) -> list[str]:
    """Leaves attempts without a record to whoever looks at the sweep next."""
    return []


class WorkQueue:
    """One submission's queue as one process works through it; for several threads at once.

    Args:
        path: the queue's file, `runs/<sweep>/submissions/NNN/queue.json`.
        job: this process's.
        only: index of the one item that it may take; None: any.
        reconcile: asked before a cell is looked at.

    Attributes:
        faults: cells that cannot be run, each with the reason.

    Raises:
        UnreadableDocument: there is no such queue, or its plan cannot be read.
    """

    def __init__(
        self, path: Path, job: SlurmJob, only: int | None = None, reconcile: Reconcile = nothing_to_reconcile
    ) -> None:
        self.queue = Queue.read(path)
        self.sweep = SweepDirectory(path.parents[2])
        self.faults: dict[str, str] = {}
        self._job = job
        self._reconcile = reconcile
        plan = Plan.read(self.sweep.path / "plans" / self.queue.plan)
        self._planned = {cell.cell_id: cell for cell in plan.cells}
        self._items = [item for item in self.queue.items if only in (None, item.index)]
        self._claims = Claims(path.parent / CLAIMS, job.raw_id)
        self._taken: set[int] = set()
        self._closed: set[int] = set()
        self._skipped: dict[str, str] = {}
        self._plans_read: set[str] = set()
        self._lock = threading.RLock()

    def planned(self, cell_id: str) -> PlannedCell:
        """What the plan says of a cell."""
        return self._planned[cell_id]

    def directory(self, cell_id: str) -> CellDirectory:
        """Where a cell's attempts are."""
        return self.sweep.cell(cell_id)

    @property
    def cells(self) -> list[PlannedCell]:
        """The cells of the items that this process may take."""
        return [self._planned[cell_id] for item in self._items for cell_id in item.cells]

    def take(self, fits: Callable[[Sequence[str], QueueItem], bool]) -> QueueItem | None:
        """Claim the first item that has a cell to run, that nobody holds, and that fits; None when there is none.

        Args:
            fits: asked of an item and those of its cells that are to run.
        """
        with self._lock:
            for item in self._open():
                left = self.left_of(item)
                if fits(left, item) and self._claim(item):
                    self._taken.add(item.index)
                    if self.left_of(item):  # whoever had it may have finished it in between
                        return item
                    self.give_back(item)
            return None

    def give_back(self, item: QueueItem) -> None:
        """Let go of an item, whether or not its cells have all been run."""
        with self._lock:
            self._taken.discard(item.index)
            try:
                self._claims.release(item.index)
            except UnwritableFile as fault:  # the claim ends with this process
                print(fault, flush=True)

    def renew(self) -> None:
        """Renew the heartbeat of what this process holds."""
        with self._lock:
            self._claims.renew()

    def left(self) -> list[str]:
        """The cells that are to run and that nobody, this process included, has in hand."""
        with self._lock:
            return [cell_id for item in self._open() if not self._is_held(item) for cell_id in self.left_of(item)]

    @property
    def waits_for_earlier_self(self) -> bool:
        """Whether an item is held by what this job was before it was requeued, on a host that cannot be asked."""
        with self._lock:
            leases = (self._claims.holder(item.index) for item in self._open()) if self._job.restarts else ()
            return any(lease is not None and self._is_earlier_self(lease) for lease in leases)

    def left_of(self, item: QueueItem) -> list[str]:
        """The cells of an item that are to run."""
        return [cell_id for cell_id in item.cells if self.to_run_after(cell_id) is not None]

    def to_run_after(self, cell_id: str) -> int | None:
        """Whether a cell has not been run since it was submitted, nothing rules it out, and nobody is at it.

        An attempt that was preempted, or lost with its node, is not done with it. Nor is one that ended with the job,
        if Slurm has started the job again.

        Returns:
            Number of the newest attempt that this was decided by, 0 of none; None: it is not to run.
        """
        if cell_id in self.faults or cell_id in self._now_skipped():
            return None
        directory = self.directory(cell_id)
        try:
            for sentence in self._reconcile(directory):
                print(sentence, flush=True)
            attempts = directory.attempts()
            if any(attempt.record is None and not attempt.is_running for attempt in attempts):
                attempts = directory.attempts()  # whoever held it may have recorded it, and ended, since it was read
        except FileFault as fault:
            self.faults[cell_id] = str(fault)
            return None
        return max((attempt.number for attempt in attempts), default=0) if self._is_to_run(cell_id, attempts) else None

    def _is_to_run(self, cell_id: str, attempts: list[Attempt]) -> bool:
        if any(attempt.is_running for attempt in attempts):
            return False
        since = [attempt for attempt in attempts if attempt.number > self.queue.tried.get(cell_id, 0)]
        if any(attempt.record is not None and attempt.record.verdict.answers for attempt in since):
            return False
        if sum(attempt.record is None or attempt.record.verdict is Verdict.LOST for attempt in since) >= MOST_LOSSES:
            return False
        return not since or since[-1].record is None or self._goes_on(since[-1].record)

    def _claim(self, item: QueueItem) -> bool:
        try:
            return self._claims.take(item.index)
        except UnwritableFile as fault:
            self.faults |= dict.fromkeys(item.cells, str(fault))
            return False

    def _goes_on(self, record: Record) -> bool:
        if record.verdict in (Verdict.PREEMPTED, Verdict.LOST):
            return True
        told = record.slurm.get("ended") == "cancelled" and record.slurm.get("job_id") == self._job.job_id
        return record.verdict is Verdict.KILLED and told and self._job.restarts > record.slurm.get("restarts", 0)

    def _open(self) -> Iterator[QueueItem]:
        """The items that this process does not have, and that have something to run."""
        for item in self._items:
            if item.index in self._taken or item.index in self._closed:
                continue
            if self.left_of(item):
                yield item
            elif not any(self._is_running(cell_id) for cell_id in item.cells):
                self._closed.add(item.index)

    def _is_running(self, cell_id: str) -> bool:
        try:
            return any(attempt.is_running for attempt in self.directory(cell_id).attempts())
        except UnreadableDocument:
            return False

    def _is_held(self, item: QueueItem) -> bool:
        lease = self._claims.holder(item.index)
        return lease is not None and lease.is_alive()

    def _is_earlier_self(self, lease: Lease) -> bool:
        return (
            lease.slurm_job_id == self._job.raw_id and lease.host != Lease.of_this_process().host and lease.is_alive()
        )

    def _now_skipped(self) -> dict[str, str]:
        """The cells that later plans rule out because of what was measured since."""
        for path in sorted((self.sweep.path / "plans").glob("[0-9]*.json")):
            if path.name not in self._plans_read:
                self._plans_read.add(path.name)
                self._read_later(path)
        return self._skipped

    def _read_later(self, path: Path) -> None:
        try:
            plan = Plan.read(path)
        except UnreadableDocument:
            return
        for cell in plan.cells if plan.follows == self.queue.plan else ():
            if cell.state == "skipped":
                self._skipped[cell.cell_id] = cell.reason or ""
            else:
                self._skipped.pop(cell.cell_id, None)
