"""The learner's sweeps plan as they say, and every comparison has its baseline in the same bundle."""

from collections.abc import Iterable
from functools import cache

from scalerlt.planning.hydra_bridge import compose
from scalerlt.planning.plan import make_plan
from scalerlt.planning.resolve import resolve_all
from scalerlt.records.plan import Plan, PlannedCell
from scalerlt.schema.machine import Machine

CPU = Machine(gpus=0, gpu_reason="none here", cpus=2)


@cache
def plan_of(name: str, *overrides: str) -> Plan:
    """The plan of a shipped sweep, made once whatever is asked of it."""
    request = compose([f"+sweeps={name}", *overrides])
    return make_plan(request, resolve_all(request.cells, CPU), {})


def cohorts(cells: Iterable[PlannedCell]) -> set[tuple[object, object]]:
    return {(cell.axes["cohort"], cell.axes["seed"]) for cell in cells}


def test_shared_prefix() -> None:
    plan = plan_of("shared_prefix")
    assert {cell.state for cell in plan.cells} == {"planned", "skipped"}
    skipped = [cell for cell in plan.cells if cell.state == "skipped"]
    assert {(cell.axes["model"], cell.axes["block"]) for cell in skipped} == {("fixture_ouro_256", 1)}
    planned = [cell for cell in plan.cells if cell.state == "planned"]
    workloads: dict[tuple[object, ...], list[PlannedCell]] = {}
    for cell in planned:
        keys = ("task.prompt_length", "task.response_length", "batch.group_size", "model.hidden_size")
        workloads.setdefault(tuple(cell.axes[key] for key in keys), []).append(cell)
    assert list(workloads) == [
        *((256, 8, 32, width) for width in (8, 64, 256)),
        *((4, 16, 1, 8), (24, 4, 32, 8)),
        *((100, 200, 8, 256), (900, 200, 8, 256), (130, 1024, 16, 256)),
    ]
    for (prompt, *_), cells in workloads.items():
        assert cohorts(cells) == {(n, n) for n in range(3 if prompt in (900, 130) else 5)}
        assert {cell.axes["device.threads"] for cell in cells} == {1, 2}
        assert {"none", "auto"} <= {cell.axes["checkpoint"] for cell in cells}
    bundles: dict[str | None, set[object]] = {}
    for cell in planned:
        bundles.setdefault(cell.bundle, set()).add(cell.axes["checkpoint"])
    assert all("none" in arms for arms in bundles.values())


def test_checkpoint_schedules() -> None:
    plan = plan_of("checkpoint_schedules")
    cells = {(cell.axes["precision"], cell.axes["batch"], cell.axes["checkpoint"]) for cell in plan.cells}
    assert len(cells) == 2 * 2 * 9 and len(plan.cells) == 2 * 5 * len(cells)
    assert {cell.state for cell in plan.cells} == {"planned"}


def test_published_fixtures() -> None:
    plan = plan_of("published_fixtures")
    assert {cell.state for cell in plan.cells} == {"planned"}
    assert len(plan.cells) == 3 + 2 * 4 + 1
