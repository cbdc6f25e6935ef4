"""Cells become items, items jobs, jobs arrays."""

import math
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from launching.slurm.slurm_sweeps import resolved_cells, settings_of
from worker.frozen import freeze

from scalerlt.errors import RequestErrors
from scalerlt.launching.slurm.arrays import arrays, job_count
from scalerlt.launching.slurm.items import check_nodes, resource_groups
from scalerlt.launching.slurm.items import settings_of as settings_of_group
from scalerlt.planning.hydra_bridge import compose
from scalerlt.planning.plan import make_plan
from scalerlt.planning.resolve import resolve_all
from scalerlt.records.plan import PlannedCell
from scalerlt.records.store import SweepDirectory
from scalerlt.schema.machine import Machine

CLUSTER = Machine(gpus=0, gpu_reason="none", cpus=1, nodes=16)


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    items=st.integers(1, 400),
    slots=st.integers(1, 5),
    max_jobs=st.none() | st.integers(1, 50),
    parallelism=st.none() | st.integers(1, 30),
    largest=st.integers(0, 60),
)
def test_arrays_hold_every_item_once_and_no_limit_is_passed(
    items: int, slots: int, max_jobs: int | None, parallelism: int | None, largest: int
) -> None:
    limits = settings_of(pack={"slots": slots}, max_jobs=max_jobs, array_parallelism=parallelism)
    parts = arrays(items, limits, largest)
    jobs = [item for part in parts for item in part.items]
    assert len(jobs) == job_count(items, limits) <= items
    if len(jobs) == items:
        assert jobs == list(range(items)), "each has an item of its own"
    else:
        assert set(jobs) == {None}, "they share the queue"
        assert max_jobs is not None or len(jobs) == math.ceil(items / slots)
    assert all(1 <= len(part.items) <= max(largest, 1) for part in parts)
    assert all(1 <= part.parallelism <= len(part.items) for part in parts)
    if parallelism is not None:
        chained = any(part.after_previous for part in parts)
        at_once = max if chained else sum
        assert at_once(part.parallelism for part in parts) <= parallelism
        assert [part.after_previous for part in parts] == [chained and index > 0 for index in range(len(parts))]


def test_an_array_is_split_evenly_and_its_limit_with_it() -> None:
    parts = arrays(2500, settings_of(array_parallelism=100), 1001)
    assert [len(part.items) for part in parts] == [833, 834, 833]
    assert [part.parallelism for part in parts] == [34, 33, 33]
    assert [part.after_previous for part in arrays(10, settings_of(array_parallelism=2), 3)] == [False, *[True] * 3]


def test_a_bundle_is_one_item_and_nodes_part_the_groups(tmp_path_factory: pytest.TempPathFactory) -> None:
    sweep = tmp_path_factory.mktemp("sweeps") / "arms.yaml"
    sweep.write_text("grid: {precision: [fp32, bf16], seed: [0, 1]}\ncompare: precision\n")
    request = compose([f"+sweeps={sweep}", "hydra/launcher=slurm"])
    cells = resolve_all(request.cells, CLUSTER)
    plan = make_plan(request, cells, {})
    by_id = {cell.cell_id: cell for cell in cells}
    seconds = {plan.cells[0].cell_id: 10.0, plan.cells[1].cell_id: 20.0, plan.cells[2].cell_id: 5.0}
    [group] = resource_groups(plan.cells, by_id, settings_of(), lambda cell: seconds.get(cell.cell_id))
    assert [item.cells for item in group.items] == [
        [cell.cell_id for cell in plan.cells[:2]],
        [cell.cell_id for cell in plan.cells[2:]],
    ]
    assert [item.bundle for item in group.items] == [plan.cells[0].bundle, plan.cells[2].bundle]
    assert [item.seconds for item in group.items] == [30.0, None], "unknown where one of its cells is"
    assert [item.timed for item in group.items] == [True, True]
    assert [item.index for item in group.items] == [0, 1]
    assert resource_groups(plan.cells[1:2], by_id, settings_of(), lambda cell: None)[0].items[0].cells == [
        plan.cells[1].cell_id
    ], "only what is to run"


def test_a_bundle_has_what_the_most_demanding_of_its_cells_needs(tmp_path: Path) -> None:
    for cell_id, device in (("a", {"threads": 3}), ("b", {"name": "cuda", "type": "cuda"}), ("c", {"threads": 2})):
        freeze(
            tmp_path / "sweep", "measures", cell_id=cell_id, device=device, ranks=(1, 2) if cell_id == "a" else (1, 1)
        )
    by_id = {cell.cell_id: cell for cell in resolved_cells(SweepDirectory(tmp_path / "sweep"))}
    planned = [
        PlannedCell(cell_id=cell_id, axes={}, bundle=bundle)
        for cell_id, bundle in (("a", "x"), ("b", "x"), ("c", None))
    ]

    def asked(**given: Any) -> list[tuple[int, bool, int | None, int]]:
        groups = resource_groups(planned, by_id, settings_of(**given), lambda cell: None)
        return [(group.nodes, group.gpus, group.cpus, len(group.items)) for group in groups]

    assert asked(gpus_per_node=1, cpus_per_task=4) == [(1, True, 6, 1), (1, False, 4, 1)]
    assert asked(cpus_per_task=4) == [(1, False, 6, 1), (1, False, 4, 1)]
    assert asked() == [(1, False, None, 2)], "the cluster's default is one for all"
    assert asked(cpus_per_task=8) == [(1, False, 8, 2)]
    assert asked(cpus_per_task=8, pack={"slots": 2}) == [(1, False, 12, 1), (1, False, 8, 1)]


def test_cells_of_several_nodes_have_jobs_of_their_own() -> None:
    one = resolve_all(compose(["experiment=gsm8k_eval"]).cells, CLUSTER)
    many = resolve_all(compose(["experiment=all_reduce", "parallel=ranks", "parallel.nodes=2"]).cells, CLUSTER)
    planned = [PlannedCell(cell_id=cell.cell_id, axes=cell.axes) for cell in (*one, *many)]
    by_id = {cell.cell_id: cell for cell in (*one, *many)}
    packed = settings_of(pack={"slots": 2}, cpus_per_task=2)
    groups = resource_groups(planned, by_id, packed, lambda cell: None)
    assert [(group.nodes, group.items[0].cells[0]) for group in groups] == [
        (1, one[0].cell_id),
        (2, many[0].cell_id),
    ]
    assert not groups[0].items[0].timed, "an accuracy is no time"
    assert [settings_of_group(group, packed).pack.slots for group in groups] == [2, 1]
    check_nodes(by_id.values(), packed)
    check_nodes(one, settings_of(use_srun=False))
    with pytest.raises(RequestErrors, match=f"{many[0].cell_id} is spread over 2 nodes, and srun starts them"):
        check_nodes(by_id.values(), settings_of(use_srun=False))
