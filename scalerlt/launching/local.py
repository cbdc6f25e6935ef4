"""The local queue: the cells of a plan, one after another, on this machine."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from scalerlt.launching.devices import devices_of, hold
from scalerlt.launching.due import is_settled
from scalerlt.launching.interrupts import Interrupts
from scalerlt.launching.jobs import Jobs
from scalerlt.launching.progress import Display
from scalerlt.launching.queued import Queued, attempts_of, expect
from scalerlt.launching.recovery import reconcile
from scalerlt.launching.status import CellStatus, of_cell, totals
from scalerlt.planning.cost import Cost
from scalerlt.planning.inference import implied, no_longer_implied
from scalerlt.planning.retry import DEFAULT
from scalerlt.records.base import FileFault, UnwritableFile, now
from scalerlt.records.plan import Plan, PlannedCell
from scalerlt.records.record import Record, Verdict
from scalerlt.records.store import CellClaimed, SweepDirectory
from scalerlt.schema.frozen import load_frozen
from scalerlt.schema.registry import schema_of
from scalerlt.worker.supervisor import ForkServer, Glimpse, NotRecorded, Placement, Supervisor, crowded, preloaded


@dataclass(frozen=True)
class Outcome:
    """How a queue ended.

    Attributes:
        cells: the state of each cell of the plan, those ruled out too.
        faults: cells that could not be started, each with the reason.
        interrupted: whether the user ended the queue.
    """

    cells: list[CellStatus]
    faults: dict[str, str]
    interrupted: bool

    @property
    def bad(self) -> list[CellStatus]:
        """Cells whose attempt ended without an answer."""
        return [cell for cell in self.cells if cell.is_bad]

    @property
    def exit_code(self) -> int:
        """130 interrupted; 1 some cells failed, were killed, lost or timed out; else 0."""
        if self.interrupted:
            return 130
        return 1 if self.bad or self.faults else 0


def run_plan(
    sweep_dir: Path,
    plan: Plan,
    plan_name: str,
    *,
    display: Display,
    retry: frozenset[str] = DEFAULT,
    infer_oom: bool = True,
    cost_of: Callable[[str], Cost] | None = None,
    jobs: Jobs | None = None,
) -> Outcome:
    """Run the planned cells that have no answer yet, in plan order, never two on one device.

    Corrupt records are kept aside and attempts whose supervisor died are recorded first; a cell that another process
    runs, or that a Slurm job is going to run, is left to it. Ctrl-C finishes the running cell and starts no other;
    again, it ends the running cell, recorded as killed.

    Args:
        sweep_dir: runs/<sweep>, where each planned cell has its frozen cell.yaml.
        plan_name: file name of the plan, noted in the records.
        retry: which cells that have a record run again (see planning.retry).
        infer_oom: whether a cell that is out of memory rules out those with a larger batch that were never tried (see
            planning.inference). What is inferred, and what is so no more, is written as a further plan.
        cost_of: what planning expects of a cell, by its id, for the display.
        jobs: what Slurm says of jobs that hold attempts, or wait; None: there is no Slurm to ask.

    Raises:
        UserError: no cell can run here, for want of torch or safetensors, or no CPU cell. Nothing was run.
    """
    return LocalQueue(
        SweepDirectory(sweep_dir), plan, plan_name, display, retry, infer_oom, cost_of, jobs or Jobs()
    ).run()


@dataclass
class LocalQueue:
    """One invocation's queue on this machine."""

    sweep: SweepDirectory
    plan: Plan
    plan_name: str
    display: Display
    retry: frozenset[str] = DEFAULT
    infer_oom: bool = True
    cost_of: Callable[[str], Cost] | None = None
    jobs: Jobs = field(default_factory=Jobs)
    faults: dict[str, str] = field(default_factory=dict)
    _interrupts: Interrupts = field(default_factory=Interrupts)
    _said: int = 0
    _inferred: dict[str, PlannedCell] = field(default_factory=dict)
    _seen: dict[str, int] = field(default_factory=dict)
    """Of each cell with a record, the attempt that it had when the queue began."""
    _newest: dict[str, int] = field(default_factory=dict)
    """Of each cell, the attempt that it had when it was last decided whether it is to run."""
    _configs: dict[str, dict[str, Any]] = field(default_factory=dict)
    """Of each cell, its configuration at that moment."""
    _unrecorded: dict[str, str] = field(default_factory=dict)
    """Cells whose attempt has ended without a record, each with the reason."""

    def run(self) -> Outcome:
        """Run what is to run, and say how it went."""
        ordered = sorted(self.plan.cells, key=lambda cell: cell.order)
        self._queued = Queued(self.sweep.path)
        for fault in self._queued.faults:
            self.display.say(f"passed over: {fault}")
        expect([(self._queued, attempts_of(self.sweep, ordered))], self.jobs)
        with self._interrupts:
            waiting = [cell for cell in ordered if cell.state == "planned" and self._is_to_run(cell)]
            expected = {cell.cell_id: self.cost_of(cell.cell_id) for cell in waiting} if self.cost_of else {}
            self.display.begin(len(waiting), expected)
            if len(ordered) > len(waiting):
                states = totals(self._stands(cell).state for cell in ordered if cell not in waiting)
                self.display.say(f"not to run: {states}")
            if waiting:
                self._run_all(waiting)
            stands = [self._stands(self._inferred.get(cell.cell_id, cell)) for cell in ordered]
            outcome = Outcome(stands, self.faults, self._interrupts.finish.is_set())
        self.display.close()
        self._say(outcome)
        return outcome

    def _is_to_run(self, cell: PlannedCell) -> bool:
        """Whether a cell has no record, or one to be retried, and nobody is at it; first puts earlier runs in order."""
        directory = self.sweep.cell(cell.cell_id)
        try:
            for sentence in reconcile(directory, self.jobs):
                self.display.say(sentence)
            self._newest[cell.cell_id] = max((attempt.number for attempt in directory.attempts()), default=0)
            if is_settled(directory, self.retry, self.plan.provenance.get("git_revision"), self._queued, self.jobs):
                return False
            self._configs[cell.cell_id] = load_frozen(directory.cell_file)[0].config
        except FileFault as fault:
            self.faults[cell.cell_id] = str(fault)
            return False
        record = directory.last_record()
        if record is None:
            return True
        before = self._seen.setdefault(cell.cell_id, record.attempt)
        return not (record.attempt > before and record.verdict.answers)  # another queue has answered it meanwhile

    def _stands(self, cell: PlannedCell) -> CellStatus:
        stands = of_cell(self.sweep, cell, self.jobs, self._queued)
        if (fault := self._unrecorded.get(cell.cell_id)) is None or stands.state != "running":
            return stands
        return replace(stands, state=str(Verdict.LOST), reason=fault, log=None)  # only this process still lives

    def _run_all(self, waiting: list[PlannedCell]) -> None:
        configs = [self._configs[cell.cell_id] for cell in waiting]
        kinds = [config["device"]["type"] for config in configs]
        devices = [device for config in configs for device in devices_of(config)]
        holder = f"sweep {self.sweep.path.absolute()}"
        with (
            hold(devices, holder, self.display.say, self._interrupts.finish.is_set) as held,
            ForkServer(preload=preloaded(configs)) as server,
        ):
            if not held:
                return
            supervisor = Supervisor(server if "cpu" in kinds else None)
            for cell, config in zip(waiting, configs, strict=True):
                if self._interrupts.finish.is_set():
                    return
                if (inferred := self._inferred.get(cell.cell_id)) is not None:
                    self.display.passed_over(cell.cell_id, f"{inferred.state}, {inferred.reason}")
                    continue
                if not self._is_to_run(cell):  # while this queue waited for the device, another has been at it
                    self.display.passed_over(cell.cell_id, self._stands(cell).state)
                    continue
                if "cpu" in kinds:
                    server.ensure()  # takes seconds the first time, in which Ctrl-C may come
                if not self._interrupts.finish.is_set():
                    self._run_one(supervisor, cell, config)

    def _run_one(self, supervisor: Supervisor, cell: PlannedCell, config: dict[str, Any]) -> None:
        """Run a cell.

        Args:
            config: its configuration when the queue began.
        """
        notes = []
        if changes := list(_changes(config, self._configs[cell.cell_id])):
            notes.append(f"a later request of the sweep has frozen it with {', '.join(changes)}")
            self.display.say(f"{cell.cell_id}: {notes[-1]}")
        if _is_timed(config) and (note := crowded()) is not None:
            self.display.say(f"warning: {cell.cell_id}: {note}")
            notes.append(note)
        self.display.starting(cell.cell_id)
        try:
            record = supervisor.run(
                self.sweep.cell(cell.cell_id).cell_file,
                plan=self.plan_name,
                order=cell.order,
                bundle=cell.bundle,
                seen=self._newest[cell.cell_id],
                stop=self._interrupts.end_now,
                placement=Placement(notes=notes),
                on_event=self._glimpse,
            )
        except CellClaimed as claimed:
            self.display.passed_over(cell.cell_id, str(claimed))
        except NotRecorded as fault:
            self._unrecorded[cell.cell_id] = str(fault)
            self.display.passed_over(cell.cell_id, str(fault))
        except FileFault as fault:
            self.faults[cell.cell_id] = str(fault)
            self.display.passed_over(cell.cell_id, str(fault))
        else:
            self.display.finished(cell.cell_id, record)
            self._infer(cell, record)

    def _infer(self, cell: PlannedCell, record: Record) -> None:
        """Write down what the cell's result says of cells that are not tried: a larger batch has no more memory."""
        changed: list[PlannedCell] = []
        if record.verdict is Verdict.OOM and self.infer_oom:
            waiting = [other for other in self.plan.cells if other.cell_id not in self._inferred]
            changed = implied(waiting, lambda other: other.cell_id == cell.cell_id, self.sweep)
            self._inferred |= {other.cell_id: other for other in changed}
        elif record.verdict is Verdict.MEASURED:
            changed = no_longer_implied(cell.cell_id, self.sweep)
        if not changed:
            return
        try:
            self.sweep.add_plan(
                Plan(sweep=self.plan.sweep, created=now(), overrides=[], follows=self.plan_name, cells=changed)
            )
        except UnwritableFile as fault:
            self.display.say(f"what follows from the record of {cell.cell_id} is not written down: {fault}")

    def _glimpse(self, seen: Glimpse) -> None:
        level = self._interrupts.finish.is_set() + self._interrupts.end_now.is_set()
        if level > self._said:
            self._said = level
            self.display.say(
                "finishing the running cell, then stopping; Ctrl-C again ends it now"
                if level == 1
                else "ending the running cell"
            )
        self.display.glimpse(seen)

    def _say(self, outcome: Outcome) -> None:
        self.display.say(totals(cell.state for cell in outcome.cells))
        for cell in outcome.bad:
            self.display.say(f"  {cell.state} {cell.cell_id}: {cell.where_to_look}")
        for cell_id, fault in outcome.faults.items():
            self.display.say(f"  not started {cell_id}: {fault}")


def _changes(before: Any, after: Any, key: str = "") -> Iterator[str]:
    """How one configuration differs from another: `resources.timeout_s=5.0 instead of 60.0`."""
    if isinstance(before, dict) and isinstance(after, dict):
        for name in [*before, *(name for name in after if name not in before)]:
            yield from _changes(before.get(name), after.get(name), f"{key}.{name}" if key else name)
    elif before != after:
        yield f"{key}={after} instead of {before}"


def _is_timed(config: dict[str, Any]) -> bool:
    timed: bool = schema_of("experiment", config["experiment"]["name"]).timed
    return timed
