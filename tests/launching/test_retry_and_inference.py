"""The queue runs what `retry` names, and passes over what a cell that is out of memory implies."""

import io
from pathlib import Path

import pytest
from launching.queue_process import plan_of
from rich.console import Console
from worker.frozen import freeze

from scalerlt.analysis.reading import read_runs
from scalerlt.launching.local import Outcome, run_plan
from scalerlt.launching.progress import Display
from scalerlt.launching.status import status
from scalerlt.records.plan import Plan, PlannedCell
from scalerlt.records.record import Record, Verdict
from scalerlt.records.store import SweepDirectory

pytestmark = pytest.mark.usefixtures("one_server")

TIGHT = {"memory_limit": "300MiB"}
"""The probe wants 384 MiB."""
SIZES = (4, 8, 16)


def run(sweep: Path, plan: Plan, retry: frozenset[str] | None = None, infer_oom: bool = True) -> tuple[Outcome, str]:
    directory, shown = SweepDirectory(sweep), io.StringIO()
    name = directory.add_plan(plan).name
    display = Display(Console(file=shown, markup=False, highlight=False, soft_wrap=True))
    words = {} if retry is None else {"retry": retry}
    return run_plan(sweep, plan, name, display=display, infer_oom=infer_oom, **words), shown.getvalue()


def planned(name: str, order: int, **axes: int) -> PlannedCell:
    sizes = {"batch.group_size": 4, "batch.microbatch_tokens": 64} | {
        f"batch.{key}": size for key, size in axes.items()
    }
    return PlannedCell(cell_id=name, axes={"batch": "small", **sizes}, order=order)


def ladder(sweep: Path) -> Plan:
    """Three sizes, of which the second has too little memory, and a cell of another shape."""
    freeze(sweep, "measures", cell_id="g4")
    freeze(sweep, "allocates_by_torch", cell_id="g8", device=TIGHT)
    freeze(sweep, "measures", cell_id="g16")
    freeze(sweep, "measures", cell_id="smaller-tokens")
    cells = [planned(f"g{size}", order, group_size=size) for order, size in enumerate(SIZES)]
    odd = planned("smaller-tokens", 3, group_size=16, microbatch_tokens=32)
    return Plan(sweep=sweep.name, created="", overrides=[], cells=[*cells, odd])


def states(sweep: Path) -> dict[str, str]:
    """From the files alone; the analysis says the same, but for what it calls a cell that has not run."""
    found = {cell.cell_id: cell.state for cell in status(sweep)}
    (read,) = read_runs(sweep).sweeps
    assert {cell.cell_id: cell.state.replace("not_run", "planned") for cell in read.cells} == found
    return found


def attempts(sweep: Path, cell_id: str) -> int:
    return len(list((sweep / cell_id).glob("attempt-*")))


def test_larger_cells_are_skipped_and_the_plan_stays_as_it_was(tmp_path: Path) -> None:
    sweep = tmp_path / "sweep"
    plan = ladder(sweep)
    outcome, shown = run(sweep, plan)
    expected = {"g4": "measured", "g8": "oom", "g16": "skipped", "smaller-tokens": "measured"}
    assert {cell.cell_id: cell.state for cell in outcome.cells} == states(sweep) == expected
    assert outcome.exit_code == 0
    assert attempts(sweep, "g16") == 0
    reason = next(cell.reason for cell in status(sweep) if cell.cell_id == "g16")
    assert reason == (
        "inferred: g8 is out of memory, and this cell differs from it only in a larger batch "
        "(batch.group_size=16 instead of 8)"
    )
    assert f"g16 skipped, {reason}" in shown
    assert next(cell.reason for cell in read_runs(sweep).cells if cell.cell_id == "g16") == reason
    plans = dict(SweepDirectory(sweep).plans())
    assert plans[sweep / "plans" / "001.json"] == plan, "what was planned stays"
    (follower,) = [found for path, found in plans.items() if path.name == "002.json"]
    assert isinstance(follower, Plan) and follower.follows == "001.json"
    assert [(cell.cell_id, cell.inferred_from) for cell in follower.cells] == [("g16", "g8")]


def test_the_switch_turns_it_off(tmp_path: Path) -> None:
    sweep = tmp_path / "sweep"
    outcome, _ = run(sweep, ladder(sweep), infer_oom=False)
    assert [cell.state for cell in outcome.cells] == ["measured", "oom", "measured", "measured"]
    assert len(list((sweep / "plans").iterdir())) == 1


def test_a_retry_that_is_measured_undoes_the_inference(tmp_path: Path) -> None:
    """Even when only that one cell is run again, and without a word to the plan that skipped the others."""
    sweep = tmp_path / "sweep"
    plan = ladder(sweep)
    run(sweep, plan)
    alone = plan.model_copy(update={"cells": [plan.cells[1]]})
    run(sweep, alone)
    assert attempts(sweep, "g8") == 1, "an answer is not run again"
    run(sweep, alone, retry=frozenset({"oom"}))
    assert attempts(sweep, "g8") == 2 and states(sweep)["g16"] == "skipped", "out of memory again"
    (sweep / "g8" / "cell.yaml").unlink()
    for attempt in (sweep / "g8").iterdir():
        attempt.rename(tmp_path / attempt.name)
    (sweep / "g8").rmdir()
    freeze(sweep, "allocates_by_torch", cell_id="g8")  # now with memory
    for number in (1, 2):
        (tmp_path / f"attempt-{number:03d}").rename(sweep / "g8" / f"attempt-{number:03d}")
    run(sweep, alone, retry=frozenset({"oom"}))
    assert states(sweep) == {"g4": "measured", "g8": "measured", "g16": "planned", "smaller-tokens": "measured"}
    run(sweep, plan)
    assert states(sweep)["g16"] == "measured"


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ({"failed"}, {"raises": 2, "exits_with_9": 2, "measures": 1, "kills_itself": 1}),
        ({"killed"}, {"raises": 1, "exits_with_9": 1, "measures": 1, "kills_itself": 2}),
        ({"all"}, {"raises": 2, "exits_with_9": 2, "measures": 2, "kills_itself": 2}),
        ({"none"}, {"raises": 1, "exits_with_9": 1, "measures": 1, "kills_itself": 1}),
        ({"other_revision"}, {"raises": 1, "exits_with_9": 1, "measures": 2, "kills_itself": 1}),
    ],
)
def test_what_is_named_runs_again_and_nothing_else(tmp_path: Path, words: set[str], expected: dict[str, int]) -> None:
    for probe in expected:
        freeze(tmp_path, probe)
    directory = SweepDirectory(tmp_path)
    run(tmp_path, plan_of(directory))
    other = plan_of(directory).model_copy(update={"provenance": {"git_revision": "0" * 40}})
    outcome, _ = run(tmp_path, other, retry=frozenset(words))
    assert {probe: attempts(tmp_path, probe) for probe in expected} == expected
    assert outcome.exit_code == 1, "what failed and was not tried again is still without an answer"


def test_of_two_measured_attempts_the_newer_counts(tmp_path: Path) -> None:
    freeze(tmp_path, "measures")
    directory = SweepDirectory(tmp_path)
    for _ in range(2):
        run(tmp_path, plan_of(directory), retry=frozenset({"all"}))
    (found,) = status(tmp_path)
    assert (found.state, found.attempt) == ("measured", 2)
    (read,) = read_runs(tmp_path).cells
    assert read.record is not None and read.record.attempt == 2


def test_what_another_queue_has_answered_meanwhile_is_not_run_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two `retry=all` of one sweep: the second waits for the device, and the first measures the cell in that time."""
    freeze(tmp_path, "measures")
    directory = SweepDirectory(tmp_path)
    run(tmp_path, plan_of(directory))
    from scalerlt.launching import local

    hold = local.hold

    def hold_later(*arguments: object) -> object:
        monkeypatch.setattr(local, "hold", hold)
        run(tmp_path, plan_of(directory), retry=frozenset({"all"}))
        return hold(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(local, "hold", hold_later)
    run(tmp_path, plan_of(directory), retry=frozenset({"all"}))
    assert attempts(tmp_path, "measures") == 2
    record = Record.read(tmp_path / "measures" / "attempt-002" / "record.json")
    assert record.verdict is Verdict.MEASURED
