"""What a cell that is out of memory implies, and what it does not."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scalerlt.errors import UserError
from scalerlt.planning.inference import implied, infers_oom, is_larger, no_longer_implied, with_inferred
from scalerlt.records.base import Scalar
from scalerlt.records.plan import Plan, PlannedCell
from scalerlt.records.record import Record, Verdict
from scalerlt.records.store import CellDirectory, SweepDirectory

SIZES = {
    "batch.prompts_per_step": 4,
    "batch.group_size": 4,
    "batch.minibatch_responses": 16,
    "batch.microbatch_tokens": 1024,
    "batch.rollout_concurrency": 16,
}


def cell(cell_id: str, **axes: Scalar) -> PlannedCell:
    named = {("batch." + key if f"batch.{key}" in SIZES else key): value for key, value in axes.items()}
    return PlannedCell(cell_id=cell_id, axes={"batch": "small", **SIZES, "seed": 0, "precision": "fp32", **named})


def attempt(sweep: Path, cell_id: str, verdict: Verdict) -> None:
    (sweep / cell_id).mkdir(parents=True, exist_ok=True)
    number, path = CellDirectory(sweep / cell_id).claim()
    Record(
        sweep=sweep.name,
        cell_id=cell_id,
        axes={},
        attempt=number,
        verdict=verdict,
        started="2026-01-01T00:00:00+00:00",
        ended="2026-01-01T00:00:01+00:00",
    ).write(path / "record.json")


def plan(*cells: PlannedCell) -> Plan:
    return Plan(sweep="s", created="", overrides=[], cells=list(cells))


def skipped(plan: Plan) -> dict[str, str | None]:
    return {cell.cell_id: cell.inferred_from for cell in plan.cells if cell.state == "skipped"}


DEFAULT = {"failed", "killed", "lost", "timeout"}
LADDER = [cell(f"g{size}", group_size=size) for size in (4, 8, 16, 32, 64)]


def test_larger_batches_of_the_same_cell_are_skipped_and_say_why(tmp_path: Path) -> None:
    attempt(tmp_path, "g16", Verdict.OOM)
    others = [
        cell("other-seed", group_size=32, seed=1),
        cell("other-precision", group_size=32, precision="bf16"),
        cell("larger-and-smaller", group_size=32, microbatch_tokens=512),
        cell("larger-twice", group_size=32, microbatch_tokens=2048),
        cell("preset", batch="large", group_size=16, prompts_per_step=16, minibatch_responses=256),
        cell("preset-of-a-smaller-size", batch="odd", group_size=32, prompts_per_step=2),
    ]
    found = with_inferred(plan(*LADDER, *others), SweepDirectory(tmp_path), DEFAULT)
    assert skipped(found) == {"g32": "g16", "g64": "g16", "larger-twice": "g16", "preset": "g16"}
    reasons = {cell.cell_id: cell.reason for cell in found.cells if cell.state == "skipped"}
    assert reasons["g64"] == (
        "inferred: g16 is out of memory, and this cell differs from it only in a larger batch "
        "(batch.group_size=64 instead of 16)"
    )
    assert "(batch=large instead of small)" in (reasons["preset"] or "")


def test_only_what_was_never_tried_and_only_while_the_record_stands(tmp_path: Path) -> None:
    sweep = SweepDirectory(tmp_path)
    attempt(tmp_path, "g16", Verdict.OOM)
    attempt(tmp_path, "g32", Verdict.MEASURED)
    attempt(tmp_path, "g64", Verdict.FAILED)
    assert skipped(with_inferred(plan(*LADDER), sweep, DEFAULT)) == {}
    larger = [*LADDER, cell("g128", group_size=128)]
    assert skipped(with_inferred(plan(*larger), sweep, DEFAULT)) == {"g128": "g16"}
    assert skipped(with_inferred(plan(*larger), sweep, {"oom"})) == {}, "it runs again: nothing is known yet"
    assert skipped(with_inferred(plan(*larger), sweep, {"all"})) == {}
    attempt(tmp_path, "g16", Verdict.MEASURED)
    assert skipped(with_inferred(plan(*larger), sweep, DEFAULT)) == {}, "measured after all"


@pytest.mark.parametrize("verdict", [verdict for verdict in Verdict if verdict is not Verdict.OOM])
def test_nothing_follows_from_any_other_verdict(tmp_path: Path, verdict: Verdict) -> None:
    attempt(tmp_path, "g4", verdict)
    assert skipped(with_inferred(plan(*LADDER), SweepDirectory(tmp_path), DEFAULT)) == {}


def test_what_a_plan_inferred_is_undone_by_a_measurement(tmp_path: Path) -> None:
    sweep = SweepDirectory(tmp_path)
    attempt(tmp_path, "g16", Verdict.OOM)
    sweep.add_plan(plan(*LADDER))
    sweep.add_plan(plan(*implied(LADDER, lambda cell: cell.cell_id == "g16", sweep)))
    assert no_longer_implied("g4", sweep) == []
    undone = no_longer_implied("g16", sweep)
    assert [(cell.cell_id, cell.state, cell.reason, cell.inferred_from) for cell in undone] == [
        ("g32", "planned", None, None),
        ("g64", "planned", None, None),
    ]
    sweep.add_plan(plan(*undone))
    assert no_longer_implied("g16", sweep) == []


sizes = st.fixed_dictionaries({"batch.group_size": st.integers(1, 3), "batch.microbatch_tokens": st.integers(1, 3)})


@given(sizes, sizes)
def test_larger_is_a_strict_partial_order(one: dict[str, Scalar], other: dict[str, Scalar]) -> None:
    keys = list(one)
    pairs = [(one[key], other[key]) for key in keys]
    expected = one != other and all(isinstance(a, int) and isinstance(b, int) and a >= b for a, b in pairs)
    assert is_larger(one, other) == expected
    assert not (is_larger(one, other) and is_larger(other, one))


def test_a_size_that_is_no_number_is_not_compared() -> None:
    assert not is_larger({"batch.group_size": 8, "batch.kind": "x"}, {"batch.group_size": 4, "batch.kind": "x"})
    assert not is_larger({"batch.group_size": 8, "batch.new": 1}, {"batch.group_size": 4})


def test_the_switch_is_a_truth_value() -> None:
    assert infers_oom({}) and infers_oom({"infer_oom": True}) and not infers_oom({"infer_oom": False})
    with pytest.raises(UserError, match=r"hydra\.launcher\.infer_oom=perhaps: give true or false"):
        infers_oom({"infer_oom": "perhaps"})
