"""Bundles: the arms of one comparison and cohort stand together, there and back, under one name."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from scalerlt.planning.arms import arm_axes
from scalerlt.planning.bundles import arranged, bundle_id
from scalerlt.planning.hydra_bridge import compose
from scalerlt.planning.margins import margins
from scalerlt.planning.plan import make_plan
from scalerlt.planning.resolve import resolve_all
from scalerlt.planning.sweep_file import SweepFile, _sweep
from scalerlt.records.base import Scalar
from scalerlt.records.plan import Plan, PlannedCell
from scalerlt.schema.machine import Machine

CPU = Machine(gpus=0, gpu_reason="none here", cpus=2)


def plan_of(directory: Path, definition: dict[str, Any], *overrides: str) -> Plan:
    file = directory / "mine.yaml"
    file.write_text(yaml.safe_dump(definition, sort_keys=False))
    request = compose([f"+sweeps={file}", *overrides])
    return make_plan(request, resolve_all(request.cells, CPU), {})


def sweep_of(definition: dict[str, Any]) -> SweepFile:
    problems: list[str] = []
    sweep = _sweep("mine", definition, problems)
    assert not problems
    return sweep


def shown(plan: Plan) -> list[tuple[Any, ...]]:
    keys = ("precision", "checkpoint", "cohort", "seed", "block")
    return [tuple(cell.axes[key] for key in keys) for cell in plan.cells]


def test_two_arms_run_a_b_b_a_in_each_comparison_and_cohort(tmp_path: Path) -> None:
    definition = {
        "grid": {"precision": ["fp32", "bf16"], "checkpoint": ["none", "layer"]},
        "cohorts": 2,
        "compare": "checkpoint",
        "blocks": "ABBA",
    }
    plan = plan_of(tmp_path, definition)
    assert shown(plan) == [
        (precision, checkpoint, cohort, cohort, block)
        for cohort in (0, 1)
        for precision in ("fp32", "bf16")
        for checkpoint, block in (("none", 0), ("layer", 0), ("layer", 1), ("none", 1))
    ]
    assert [cell.order for cell in plan.cells] == list(range(16))
    bundles = [cell.bundle for cell in plan.cells]
    assert [bundles[start : start + 4] for start in range(0, 16, 4)] == [
        [bundles[start]] * 4 for start in range(0, 16, 4)
    ]
    assert len(set(bundles)) == 4
    assert all((cell.bundle or "").startswith(f"c{cell.axes['cohort']}-") for cell in plan.cells)

    reworded = plan_of(tmp_path, definition, "batch=small")
    assert [cell.bundle for cell in reworded.cells] == bundles, "a bundle goes by its cells and not by their spelling"
    other = plan_of(tmp_path, definition, "batch=medium", "cohort=1")
    assert len(other.cells) == 8 and not {cell.bundle for cell in other.cells} & set(bundles)

    alone = plan_of(tmp_path, definition, "checkpoint=layer", "cohort=0")
    assert shown(alone) == [(precision, "layer", 0, 0, block) for precision in ("fp32", "bf16") for block in (0, 1)]
    assert {cell.bundle for cell in alone.cells} <= set(bundles), "one arm, for a look at it, is in the same bundle"


def test_three_arms_run_forward_and_then_in_reverse(tmp_path: Path) -> None:
    plan = plan_of(
        tmp_path,
        {"grid": {"checkpoint": ["none", "layer", "loop"]}, "compare": "checkpoint", "blocks": "ABBA"},
    )
    assert [cell.axes["checkpoint"] for cell in plan.cells] == ["none", "layer", "loop", "loop", "layer", "none"]
    assert [cell.axes["block"] for cell in plan.cells] == [0, 0, 0, 1, 1, 1]


def test_arms_far_apart_in_the_sweep_come_together_whatever_part_they_stand_in() -> None:
    sweep = sweep_of(
        {
            "union": [{"grid": {"rollout": "dense", "seed": [0, 1]}}, {"grid": {"rollout": "greedy", "seed": [1, 0]}}],
            "compare": "rollout",
        }
    )
    cells = [
        PlannedCell(
            cell_id=f"{rollout}{seed}", axes={"rollout": rollout, "rollout.x": rollout, "seed": seed, "block": 0}
        )
        for rollout, seed in (("dense", 0), ("dense", 1), ("greedy", 1), ("greedy", 0))
    ]
    arrangement = arranged(cells, sweep)
    assert [cell.cell_id for cell in arrangement] == ["dense0", "greedy0", "dense1", "greedy1"]
    assert [cell.order for cell in arrangement] == [0, 1, 2, 3]
    assert [cell.order for cell in arranged(cells, None)] == [0, 1, 2, 3]
    assert [cell.bundle for cell in arranged(cells, None)] == [None] * 4


def test_what_a_zip_binds_to_the_compared_key_belongs_to_the_arm() -> None:
    sweep = sweep_of(
        {
            "grid": {"seed": [0], "zip": {"precision": ["fp32", "bf16"], "batch.microbatch_tokens": [1024, 2048]}},
            "compare": "precision",
        }
    )
    assert sweep.arm_keys == {"precision", "batch.microbatch_tokens"}
    one: dict[str, Scalar] = {
        "precision": "fp32",
        "precision.x": 1,
        "batch.microbatch_tokens": 1024,
        "seed": 0,
        "block": 0,
    }
    two: dict[str, Scalar] = {"precision": "bf16", "batch.microbatch_tokens": 2048, "seed": 0, "block": 1}
    both = arm_axes([one, two], sweep.arm_keys)
    assert both == {"precision", "precision.x", "batch.microbatch_tokens"}
    assert bundle_id(one, both) == bundle_id(two, both)
    assert bundle_id(one, both - {"batch.microbatch_tokens"}) != bundle_id(two, both - {"batch.microbatch_tokens"})


@pytest.mark.parametrize(
    ("compare", "first", "second", "below", "values"),
    [
        ("rollout", "dense", "last_exited", "rollout.temperature", [0.5, 1.0]),
        ("optimizer", "adamw", "sgd", "optimizer.learning_rate", [0.1, 0.2]),
        ("batch", "small", "medium", "batch.microbatch_tokens", [512, 2048]),
    ],
)
def test_arms_agree_in_what_is_swept_below_the_compared_group(
    tmp_path: Path, compare: str, first: str, second: str, below: str, values: list[Any]
) -> None:
    """And differ in what the options themselves say, such as an exit threshold that only one of them has."""
    definition = {"grid": {compare: [first, second], below: values}, "compare": compare, "blocks": "ABBA"}
    plan = plan_of(tmp_path, definition)
    assert [(cell.axes[below], cell.axes[compare], cell.axes["block"]) for cell in plan.cells] == [
        (value, option, block)
        for value in values
        for option, block in ((first, 0), (second, 0), (second, 1), (first, 1))
    ]
    bundles = [cell.bundle for cell in plan.cells]
    assert bundles == [bundles[0]] * 4 + [bundles[4]] * 4 and bundles[0] != bundles[4]
    narrowed = plan_of(tmp_path, definition, f"{below}={values[0]}")
    assert [cell.bundle for cell in narrowed.cells] == bundles[:4]
    found = margins(plan.cells, {compare: (compare,)}, [])
    assert [(margin.arms, margin.comparisons) for margin in found] == [((first, second), 2)]


def test_what_only_one_option_has_belongs_to_its_arm_even_where_it_varies() -> None:
    cells: list[dict[str, Scalar]] = [
        {"rollout": "dense", "rollout.schedule": "dense", "rollout.tokens": 32},
        {"rollout": "last", "rollout.schedule": "last", "rollout.tokens": 32, "rollout.threshold": 0.8},
        {"rollout": "last", "rollout.schedule": "last", "rollout.tokens": 32, "rollout.threshold": 0.9},
    ]
    assert arm_axes(cells, {"rollout"}) == {"rollout", "rollout.schedule", "rollout.threshold"}


@pytest.mark.parametrize("key", ["seed", "cohort", "batch", "precisions"])
def test_cells_that_differ_in_more_than_the_arm_are_not_of_one_bundle(key: str) -> None:
    axes: dict[str, Scalar] = {
        "precision": "fp32",
        "seed": 0,
        "cohort": 0,
        "batch": "small",
        "precisions": 1,
        "block": 0,
    }
    arms = frozenset({"precision"})
    assert bundle_id({**axes, key: "other"}, arms) != bundle_id(axes, arms)


def test_an_arm_that_is_ruled_out_is_told_in_its_bundle(tmp_path: Path) -> None:
    plan = plan_of(
        tmp_path,
        {
            "grid": {"precision": ["fp32", "bf16"]},
            "compare": "precision",
            "blocks": "ABBA",
            "rules": [{"skip": {"precision": "bf16", "block": 1}, "reason": "r"}],
        },
    )
    assert [(cell.axes["precision"], cell.axes["block"], cell.state) for cell in plan.cells] == [
        ("fp32", 0, "planned"),
        ("bf16", 0, "planned"),
        ("bf16", 1, "skipped"),
        ("fp32", 1, "planned"),
    ]
    assert len({cell.bundle for cell in plan.cells}) == 1
