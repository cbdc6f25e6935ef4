"""What a plan's cells are at, what they will cost, whether they fit, and what they can show. Nothing is written."""

from collections import Counter
from collections.abc import Iterable, Mapping
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
from scalerlt.records.store import CellDirectory, SweepDirectory

TO_RUN = "to run"


@dataclass(frozen=True)
class CellForecast:
    """One cell of a plan.

    Attributes:
        state: `to run`, `running`, what its record says, or what the plan says of a cell that is ruled out.
        reason: why; None where there is nothing to say.
        cost: of one attempt; None of a cell that is ruled out.
        memory: None of a cell that is ruled out, and of one of which nothing is known.
    """

    planned: PlannedCell
    state: str
    reason: str | None
    cost: Cost | None
    memory: MemoryPlan | None


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
            entry["now"] = {"state": cell.state, "reason": cell.reason}
            entry["cost"] = None if cell.cost is None else asdict(cell.cost)
            entry["memory"] = None if cell.memory is None else _memory(cell.memory)
        states = dict(self.states)
        return plain | {"total": {"states": states, **asdict(self.total)}, "margins": [asdict(m) for m in self.margins]}


def forecast(plan: Plan, cells: Iterable[ResolvedCell], request: Request) -> Forecast:
    """Look at the records of `runs_dir` and at this machine.

    Args:
        plan: of the request.
        cells: its resolved cells.
    """
    resolved = {cell.cell_id: cell for cell in cells}
    sweep = SweepDirectory(Path(request.runs_dir) / plan.sweep)
    earlier = measured(Path(request.runs_dir))
    costs, capacity = Costs(earlier), capacity_of(request.launcher)
    seen = []
    for planned in plan.cells:
        state, reason = _state(planned, sweep.cell(planned.cell_id), request, plan)
        known = resolved.get(planned.cell_id) if planned.state == "planned" else None
        cost = None if known is None else costs.of(known)
        memory = None if known is None else memory_plan(known.cell, capacity)
        seen.append(CellForecast(planned, state, reason, cost, memory))
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


def _state(planned: PlannedCell, directory: CellDirectory, request: Request, plan: Plan) -> tuple[str, str | None]:
    if planned.state != "planned":
        return planned.state, planned.reason
    try:
        attempts = directory.attempts()
        record = directory.last_record() if attempts else None
    except UnreadableDocument as fault:
        return "unreadable", str(fault)
    if any(attempt.is_running for attempt in attempts):
        return "running", None
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
