"""The rollout's sweeps plan as they say, and every comparison has its baseline in the same bundle."""

from collections import Counter

import pytest
from planning.test_learner_sweeps import cohorts, plan_of

from scalerlt.planning.arms import arm_axes
from scalerlt.planning.hydra_bridge import compose
from scalerlt.planning.sweep_file import SHIPPED, find, read
from scalerlt.records.plan import Plan, PlannedCell

SCHEDULES = {"dense", "last_exited", "delayed_exit", "deferred_fill", "shared_kv"}
BASELINES = {
    "rollout": ("rollout", "dense"),
    "rollout_accuracy": ("rollout", "dense"),
    "rollout_bench": ("rollout", "dense"),
    "rollout_gpu": ("rollout", "dense"),
    "rollout_batching": ("rollout.engine", "plain"),
    "engines": ("rollout.engine", "native"),
    "rollout_prefill": ("rollout.engine.shared_prefill", None),
    "rollout_deterministic": ("rollout.deterministic", None),
}
"""Of each sweep the axis of its arms and the one that the others are compared with (None: the value by default)."""


def bundles(plan: Plan) -> list[list[PlannedCell]]:
    found: dict[str | None, list[PlannedCell]] = {}
    for cell in plan.cells:
        found.setdefault(cell.bundle, []).append(cell)
    assert None not in found
    return list(found.values())


@pytest.mark.parametrize("name", BASELINES)
def test_every_bundle_has_its_baseline_once_and_another_arm(name: str) -> None:
    axis, baseline = BASELINES[name]
    sweep = read(find(name))
    plan = plan_of(name)
    arm = arm_axes((cell.axes for cell in plan.cells), sweep.arm_keys)
    for bundle in bundles(plan):
        assert Counter(cell.axes.get(axis) == baseline for cell in bundle)[True] == 1
        assert len(bundle) > 1
        for key in {key for cell in bundle for key in cell.axes} - arm:
            assert len({cell.axes.get(key) for cell in bundle}) == 1, key
    assert all(not isinstance(value, list | dict) for cell in plan.cells for value in cell.axes.values())


@pytest.mark.parametrize("name", sorted(path.stem for path in SHIPPED.glob("*.yaml")))
def test_every_shipped_sweep_plans(name: str) -> None:
    """Here, where most of them are planned already. verl 1080, 7430: shipped examples with keys that are no more."""
    cells = plan_of(name).cells
    assert len(cells) == len({cell.cell_id for cell in cells}) >= 1


def test_rollout() -> None:
    plan = plan_of("rollout")
    assert {cell.state for cell in plan.cells} == {"planned"}
    keys = ("precision", "batch.rollout_concurrency", "rollout.ignore_eos", "rollout")
    found = {tuple(cell.axes[key] for key in keys) for cell in plan.cells}
    assert len(found) == 2 * 2 * 2 * 6 and len(plan.cells) == 5 * len(found)
    assert {cell.axes["rollout"] for cell in plan.cells} == SCHEDULES | {"trace"}
    assert cohorts(plan.cells) == {(n, n) for n in range(5)}


def test_rollout_accuracy() -> None:
    plan = plan_of("rollout_accuracy")
    assert {(cell.axes["precision"], cell.axes["rollout"]) for cell in plan.cells} == {
        (precision, schedule) for precision in ("fp32", "bf16") for schedule in SCHEDULES
    }
    assert len(plan.cells) == 10
    assert {cell.axes["experiment.problems"] for cell in plan.cells} == {1000}


def test_engines() -> None:
    plan = plan_of("engines")
    assert {cell.state for cell in plan.cells} == {"planned"}
    keys = ("model", "rollout.engine", "batch.rollout_concurrency")
    engines = {"small_ouro": ("native", "vllm"), "hf": ("native", "vllm", "hf")}
    assert {tuple(cell.axes[key] for key in keys) for cell in plan.cells} == {
        (model, engine, count) for model in engines for engine in engines[model] for count in (8, 32, 64)
    }
    assert cohorts(plan.cells) == {(n, n) for n in range(5)} and len(plan.cells) == 75


def test_rollout_bench() -> None:
    plan = plan_of("rollout_bench")
    assert cohorts(plan.cells) == {(n, n) for n in range(3)}
    early = "[0.0, 0.753, 0.19, 0.057]"
    usual = "[0.0, 0.632, 0.181, 0.187]"
    arms = Counter(
        (
            cell.axes["rollout"],
            cell.axes.get("rollout.kv"),
            cell.axes.get("rollout.depth_shares"),
            cell.axes.get("rollout.engine.refill"),
        )
        for cell in plan.cells
    )
    assert arms == {
        ("dense", None, None, None): 3,
        ("trace", None, usual, None): 3,
        ("trace", "shared_kv", usual, None): 3,
        ("trace", "deferred_fill", usual, None): 3,
        ("trace", None, early, None): 3,
        ("trace", "shared_kv", early, None): 3,
        ("trace", None, usual, False): 3,
    }


def test_the_gpus_cells_are_unsupported_without_one() -> None:
    plan = plan_of("rollout_gpu")
    assert {cell.state for cell in plan.cells} == {"unsupported"}
    assert all("needs a GPU" in (cell.reason or "") for cell in plan.cells)
    assert {cell.axes["model"] for cell in plan.cells} == {"ouro_1_4b"}
    assert Counter(cell.axes.get("rollout.engine.captured_graphs") for cell in plan.cells) == {None: 12, True: 12}


def test_a_cohort_may_be_asked_for_alone() -> None:
    request = compose(["+sweeps=rollout_bench", "cohort=0"])
    assert len(request.cells) == 7
