"""What a plan's cells are at, what they will cost, whether they fit, and what they can show. Nothing is written."""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from scalerlt.errors import RequestErrors
from scalerlt.measure.environment import environment
from scalerlt.planning.capacity import Capacity, MemoryPlan
from scalerlt.planning.cost import Cost, Costs, Total, measured, total
from scalerlt.planning.launcher import SlurmSettings, read_launcher
from scalerlt.planning.margins import Margin, margins
from scalerlt.planning.memory import memory_plan
from scalerlt.planning.request import Request
from scalerlt.planning.resolve import ResolvedCell
from scalerlt.planning.retry import why_again
from scalerlt.records.base import UnreadableDocument
from scalerlt.records.plan import Plan, PlannedCell
from scalerlt.records.store import Attempt, SweepDirectory, standing

TO_RUN = "to run"


@dataclass(frozen=True)
class UnderWay:
    """A cell that somebody is at.

    Attributes:
        state: `running`, or `queued`: a job that was submitted is going to run it.
        reason: of a queued one why it waits.
        job: Slurm's id of the job that a queued one waits for.
    """

    state: str
    reason: str | None = None
    job: str | None = None


FindUnderWay = Callable[[Mapping[str, list[Attempt]]], Mapping[str, UnderWay]]
"""Finds them among cells with these attempts."""


@dataclass(frozen=True)
class CellForecast:
    """One cell of a plan.

    Attributes:
        state: `to run`, `running`, `queued`, what its record says, or what the plan says of a cell that is ruled out.
        reason: why; None where there is nothing to say.
        job: Slurm's id of the job that a queued cell waits for.
        cost: of one attempt; None of a cell that is ruled out.
        memory: None of a cell that is ruled out, and of one of which nothing is known.
    """

    planned: PlannedCell
    state: str
    reason: str | None
    cost: Cost | None
    memory: MemoryPlan | None
    job: str | None = None


@dataclass(frozen=True)
class Forecast:
    """A plan with what is known before it runs.

    Attributes:
        cells: in plan order.
        total: the cost of the cells that are to run.
        margins: what each comparison can detect.
    """

    plan: Plan
    cells: list[CellForecast]
    total: Total
    margins: list[Margin]

    @property
    def states(self) -> Counter[str]:
        """How many cells are in each state."""
        return Counter(cell.state for cell in self.cells)

    def to_plain(self) -> dict[str, Any]:
        """Everything, as plain data for JSON: the plan's own keys, and `now`, `cost` and `memory` of each cell."""
        plain = self.plan.model_dump(mode="json")
        for entry, cell in zip(plain["cells"], self.cells, strict=True):
            entry["now"] = {"state": cell.state, "reason": cell.reason, "job": cell.job}
            entry["cost"] = None if cell.cost is None else asdict(cell.cost)
            entry["memory"] = None if cell.memory is None else _memory(cell.memory)
        states = dict(self.states)
        return plain | {"total": {"states": states, **asdict(self.total)}, "margins": [asdict(m) for m in self.margins]}


def forecast(plan: Plan, cells: Iterable[ResolvedCell], request: Request, find_under_way: FindUnderWay) -> Forecast:
    """Look at the records of `runs_dir` and at this machine.

    Args:
        plan: of the request.
        cells: its resolved cells.
        find_under_way: asked once, of all cells that are not ruled out.
    """
    resolved = {cell.cell_id: cell for cell in cells}
    sweep = SweepDirectory(Path(request.runs_dir) / plan.sweep)
    earlier = measured(Path(request.runs_dir))
    costs, capacity = Costs(earlier), capacity_of(request.launcher)
    attempts, faults = _attempts(sweep, plan)
    held = find_under_way(attempts)
    seen = []
    for planned in plan.cells:
        job = None
        if planned.cell_id in attempts:
            state, reason = _state(attempts[planned.cell_id], request, plan)
            at_work = held.get(planned.cell_id)
            if at_work is not None and (state == TO_RUN or at_work.state == "running"):
                state, reason, job = at_work.state, at_work.reason, at_work.job
        elif planned.cell_id in faults:
            state, reason = "unreadable", faults[planned.cell_id]
        else:
            state, reason = planned.state, planned.reason
        known = resolved.get(planned.cell_id) if planned.state == "planned" else None
        cost = None if known is None else costs.of(known)
        memory = None if known is None else memory_plan(known.cell, capacity)
        seen.append(CellForecast(planned, state, reason, cost, memory, job))
    due = [cell.cost for cell in seen if cell.state == TO_RUN and cell.cost is not None]
    return Forecast(plan, seen, total(due), margins(plan.cells, _compared(request), earlier))


def refuse_above(limit: float | None, seen: Forecast) -> None:
    """RequestErrors when the cells that are to run need more than `max_gpu_hours`."""
    if limit is None or seen.total.gpu_hours <= limit:
        return
    unknown = (
        f", and {seen.total.unknown} more cell{_s(seen.total.unknown)} of unknown cost" if seen.total.unknown else ""
    )
    count = sum(seen.total.cells.values())
    need = "the cell to run needs" if count == 1 else f"the {count} cells to run need"
    hours = f"some {seen.total.gpu_hours:.3g} GPU-hours{unknown}"
    raise RequestErrors([f"max_gpu_hours={limit:g}: {need} {hours}; run fewer cells or raise the limit"])


def capacity_of(launcher: Mapping[str, Any]) -> Capacity:
    """What the machine has that the cells run on: this one, or a node of the cluster, as far as that is known."""
    settings = read_launcher(launcher) if launcher else None
    if not isinstance(settings, SlurmSettings):
        return this_capacity()
    memory = None if settings.mem_gb is None else int(settings.mem_gb * 2**30)
    return Capacity(host=memory, host_is="hydra.launcher.mem_gb", gpu=None)


def this_capacity() -> Capacity:
    """What this machine has."""
    known = environment()
    group = known["cgroup"].get("memory_bytes")
    limited = group is not None and group < known["memory_bytes"]
    gpus = [float(gpu["memory.total"]) for gpu in known["gpus"] if gpu["memory.total"].replace(".", "").isdigit()]
    return Capacity(
        host=int(group) if limited else known["memory_bytes"],
        host_is="the control group's limit" if limited else "the host's memory",
        gpu=int(min(gpus) * 2**20) if gpus else None,
    )


def _attempts(sweep: SweepDirectory, plan: Plan) -> tuple[dict[str, list[Attempt]], dict[str, str]]:
    """The attempts at each cell that is not ruled out, and of those that cannot be read the reason."""
    attempts: dict[str, list[Attempt]] = {}
    faults: dict[str, str] = {}
    for planned in plan.cells:
        if planned.state == "planned":
            try:
                attempts[planned.cell_id] = sweep.cell(planned.cell_id).attempts()
            except UnreadableDocument as fault:
                faults[planned.cell_id] = str(fault)
    return attempts, faults


def _state(attempts: list[Attempt], request: Request, plan: Plan) -> tuple[str, str | None]:
    """What the records say of a cell, and why."""
    record = standing(attempts)
    if record is None:
        return TO_RUN, "its attempts have no readable record" if attempts else None
    if again := why_again(record, request.retry, plan.provenance.get("git_revision")):
        return TO_RUN, again
    return record.verdict.value, record.reason or "not run again"


def _s(count: int) -> str:
    return "" if count == 1 else "s"


def _compared(request: Request) -> dict[str, Iterable[str]]:
    """The keys in which arms differ: the one that the sweep compares, else each that varies."""
    if request.sweep is not None and request.sweep.compare is not None:
        return {request.sweep.compare: request.sweep.arm_keys}
    return {key: (key,) for key in request.swept}


def _memory(plan: MemoryPlan) -> dict[str, Any]:
    return {**asdict(plan), "step": plan.step, "needed": plan.needed, "peak_phase": plan.peak_phase, "fits": plan.fits}
