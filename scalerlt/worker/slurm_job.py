"""A Slurm job works through a submission's queue: several cells at the same time, and whatever happens to it is told.

Each slot is a thread with its part of the job's CPUs and GPUs, a supervisor and a fork server: what the thread starts
inherits its CPUs. The main thread takes the signals, and keeps the claims alive.
"""

import os
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from scalerlt.measure.environment import gpus
from scalerlt.records.base import FileFault, UnreadableDocument
from scalerlt.records.cell import FrozenCell
from scalerlt.records.lease import STALE_AFTER_SECONDS
from scalerlt.records.queue import Asked, QueueItem
from scalerlt.records.record import Record, Verdict
from scalerlt.records.store import CellClaimed
from scalerlt.worker.ending import CellEnd, JobEnd, Signals
from scalerlt.worker.follower import follow
from scalerlt.worker.fork_server import ForkServer, preloaded
from scalerlt.worker.nodes import Leader, Place
from scalerlt.worker.shortfall import of_job
from scalerlt.worker.slots import LOOK_SECONDS, Company, Neighbours, Share, shares, usable_cpus, visible_gpus
from scalerlt.worker.slurm import SlurmJob
from scalerlt.worker.supervisor import Placement, Supervisor
from scalerlt.worker.watch import HEARTBEAT_SECONDS
from scalerlt.worker.work_queue import Reconcile, WorkQueue, nothing_to_reconcile

Finished = Callable[[Record], None]


def _nothing_follows(record: Record) -> None:
    pass


def work_through(
    queue_path: str,
    item: int | None = None,
    *,
    reconcile: Reconcile = nothing_to_reconcile,
    finished: Finished = _nothing_follows,
) -> int:
    """Run the cells of a queue until it is empty or the job has no time left for the next one.

    Called once on each node of a job; on all but the first it starts what the first has it start, and returns with it.

    Two jobs never run one cell; what a job has taken and not finished goes back into the queue. A job that must end
    early, or has no time left, has its running cells save their state, and puts itself back into Slurm's queue: at most
    `max_requeues` times, and after its whole time only if it got any further.

    Args:
        queue_path: the queue's file.
        item: index of the only item that this job may take; None: any.
        reconcile: puts a cell's earlier attempts in order before it is looked at.
        finished: told of each record.

    Returns:
        1 if a cell that this process ran, or could not run, has no answer; else 0.

    Raises:
        UnreadableDocument: the queue or its plan cannot be read.
    """
    path = Path(queue_path).absolute()
    if int(os.environ.get("SLURM_JOB_NUM_NODES") or 1) == 1:
        with Signals() as signals:
            return JobRun(path, item, reconcile, finished, signals).run()
    place = Place.in_slurm()
    folder = place.folder(path.parent / "nodes")
    if not place.leads:
        return follow(folder, place)
    with Signals() as signals, Leader(folder, place.hosts) as leader:
        return JobRun(path, item, reconcile, finished, signals, leader).run()


class JobRun:
    """What the one process does that runs a job's cells."""

    def __init__(
        self,
        path: Path,
        only: int | None,
        reconcile: Reconcile,
        finished: Finished,
        signals: Signals,
        nodes: Leader | None = None,
    ) -> None:
        self.job = SlurmJob.of_this_process()
        self.work = WorkQueue(path, self.job, only, reconcile)
        self.queue = self.work.queue
        self.asked = _asked(self.queue.asked)
        self.finished = finished
        self.nodes = nodes
        self.neighbours = Neighbours()
        self.records: list[Record] = []
        self.failure: BaseException | None = None
        self.end = JobEnd(self.job, self.queue)
        self._signals = signals
        self._began = time.monotonic()

    def run(self) -> int:
        """Work, and say how it went."""
        self.preload = self._preload()
        slots = self._slots()
        self._take_signal(0.0)  # one that came while the process started: nothing is begun then
        for slot in slots:
            slot.start()
        self._follow(slots)
        if self.failure is not None:
            raise self.failure
        self._put_back()
        for cell_id, fault in self.work.faults.items():
            print(f"{cell_id}: not run: {fault}", flush=True)
        return 0 if not self.work.faults and all(record.verdict.answers for record in self.records) else 1

    def _slots(self) -> list["Slot"]:
        cpus, gpus = usable_cpus(), self._gpus()
        divided = shares(self.queue.slots, cpus, gpus)
        notes = of_job(self.asked, len(cpus), None if gpus is None else len(gpus))
        if len(divided) < self.queue.slots:
            notes.append(f"{len(divided)} cells at a time instead of {self.queue.slots}: there are no more GPUs")
        facts = {**self.job.plain(), "job_cpus": cpus, "job_gpus": gpus, "slots": len(divided)}
        return [Slot(self, share, {**facts, **share.plain()}, notes) for share in divided]

    def _gpus(self) -> list[str] | None:
        """The job's GPUs; None when no cell needs one."""
        if not any(cell.axes.get("device") == "cuda" for cell in self.work.cells):
            return None
        visible = visible_gpus()
        return [gpu["index"] for gpu in gpus()] if visible is None else visible

    def _preload(self) -> list[str]:
        configs = []
        for cell in self.work.cells:
            with suppress(UnreadableDocument):  # told when its turn comes
                configs.append(FrozenCell.read(self.work.directory(cell.cell_id).cell_file).config)
        return preloaded(configs)

    def _follow(self, slots: Sequence["Slot"]) -> None:
        """Until the last slot has ended: take signals, look at the clock, keep the claims alive."""
        renewed = time.monotonic()
        while any(slot.is_alive() for slot in slots):
            self._take_signal(LOOK_SECONDS)
            if time.monotonic() - renewed > HEARTBEAT_SECONDS:
                renewed = time.monotonic()
                self.work.renew()
        for slot in slots:
            slot.join()

    def _take_signal(self, seconds: float) -> None:
        """The next one, waited for at most so long, or that the time is over."""
        number = self._signals.next(seconds)
        if number is not None or self.end.is_due():
            self.end.take(number)
            print(f"the job ends: {self.end.kind}", flush=True)

    def waits(self) -> bool:
        """Whether something will come free: a requeued job's own claims of before, until they have gone stale."""
        return time.monotonic() - self._began < 2 * STALE_AFTER_SECONDS and self.work.waits_for_earlier_self

    def _put_back(self) -> None:
        """Have Slurm start the job again, if something is left and that is not in vain."""
        left = [] if self.end.kind == "cancelled" or self.end.requeued else self.work.left()
        if not left or self.job.job_id is None:
            return
        print(f"{len(left)} cells are left", flush=True)
        if self.job.restarts >= self.queue.max_requeues:
            print(f"not requeued again: max_requeues={self.queue.max_requeues}", flush=True)
        elif not self._is_worth_another_start:
            print("not requeued: no cell got any further", flush=True)
        elif (fault := self.job.requeue()) is not None:
            print(f"not requeued: {fault}", flush=True)

    @property
    def _is_worth_another_start(self) -> bool:
        """Whether a cell got any further; or could not have: nothing had begun, or the job was taken away early."""
        return not self.records or self.end.kind == "preempted" or any(map(_got_further, self.records))


class Slot(threading.Thread):
    """Runs one cell after another on its share of the job."""

    def __init__(self, job: JobRun, share: Share, facts: Mapping[str, Any], notes: Sequence[str]) -> None:
        super().__init__(name=f"slot-{share.number}")
        self._job = job
        self._share = share
        self._facts = dict(facts)
        self._notes = notes
        self._ran = 0

    def run(self) -> None:
        """Until nothing is left that fits."""
        try:
            os.sched_setaffinity(0, self._share.cpus)  # of this thread, and of all that it starts
            with ForkServer(preload=self._job.preload) as server:
                while (item := self._next()) is not None:
                    try:
                        self._run_item(item, server)
                    finally:
                        self._job.work.give_back(item)
        except BaseException as error:  # raised again by the main thread
            self._job.failure = error

    def _next(self) -> QueueItem | None:
        while not self._job.end.is_set() and self._job.failure is None:
            item = self._job.work.take(self._fits)
            if item is not None or not self._job.waits():
                return item
            time.sleep(LOOK_SECONDS)
        return None

    def _fits(self, cells: Sequence[str], item: QueueItem) -> bool:
        """Whether there is time for some cells of an item; what comes first is tried in any case."""
        left = self._job.end.seconds_left()
        if item.seconds is None or self._comes_first:
            return left > 0
        return item.seconds * len(cells) / len(item.cells) <= left

    @property
    def _comes_first(self) -> bool:
        """Whether what it runs next has the whole time of the job."""
        return not self._ran and not self._job.records

    def _run_item(self, item: QueueItem, server: ForkServer) -> None:
        work = self._job.work
        alone = item.timed and self._job.queue.timed == "exclusive"
        for cell_id in item.cells:
            with self._job.neighbours.turn(cell_id, alone=alone, give_up=self._job.end.is_set) as company:
                if company is None or not self._fits([cell_id], item):
                    return
                if (seen := work.to_run_after(cell_id)) is not None:
                    self._run_cell(cell_id, seen, server, company)

    def _run_cell(self, cell_id: str, seen: int, server: ForkServer, company: Company) -> None:
        work, planned = self._job.work, self._job.work.planned(cell_id)
        facts = dict(self._facts)
        placement = Placement(
            environment=self._share.environment,
            slurm=facts,
            notes=self._notes,
            asked=self._job.asked,
            submitted=self._job.queue.provenance,
            beside=company.tell,
        )
        company.begin()
        try:
            needs_server = planned.axes.get("device") != "cuda"
            record = Supervisor(server if needs_server else None, self._job.nodes).run(
                work.directory(cell_id).cell_file,
                plan=self._job.queue.plan,
                order=planned.order,
                bundle=planned.bundle,
                seen=seen,
                preempt=CellEnd(self._job.end, facts, had_all_the_time=self._comes_first),
                placement=placement,
            )
        except CellClaimed as claimed:
            print(f"{cell_id}: {claimed}", flush=True)
            return
        except FileFault as fault:
            print(f"{cell_id}: {fault}", flush=True)
            work.faults[cell_id] = str(fault)
            return
        self._ran += 1
        self._job.records.append(record)
        print(f"{cell_id}: {record.verdict}" + (f" ({record.reason})" if record.reason else ""), flush=True)
        try:
            self._job.finished(record)
        except FileFault as fault:
            print(f"{cell_id}: what follows from its record is not written down: {fault}", flush=True)


def _got_further(record: Record) -> bool:
    """Whether an attempt decided its cell, or saved more than there was."""
    return record.verdict is not Verdict.PREEMPTED or record.slurm.get("saved") is True


def _asked(asked: Asked) -> Asked:
    """What each node was asked for; where the cluster's default holds, what Slurm says that it gave."""
    given = {"cpus": os.environ.get("SLURM_CPUS_PER_TASK", ""), "gpus": os.environ.get("SLURM_GPUS_ON_NODE", "")}
    told = {name: int(number) for name, number in given.items() if number.isdigit()}
    return asked.model_copy(update={name: number for name, number in told.items() if getattr(asked, name) is None})
