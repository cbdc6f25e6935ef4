from pathlib import Path

import pytest
from synthetic_runs import Axes, SyntheticSweep, planned
from synthetic_training import attempt_directory, series, training_axes, write_answers, write_series

from scalerlt.analysis.samples import find_cell, show_samples
from scalerlt.errors import UserError
from scalerlt.records.record import Verdict
from scalerlt.records.store import CellDirectory

AXES = training_axes()


@pytest.fixture
def sweep(tmp_path: Path) -> SyntheticSweep:
    return SyntheticSweep(tmp_path / "runs" / "trial")


def begin(sweep: SyntheticSweep, axes: Axes = AXES, attempt: int = 1, first: int = 0, **more: object) -> Path:
    """A cell with a frozen configuration and an attempt with rows from step `first` on."""
    sweep.plan([planned(axes)])
    directory = sweep.record(axes, Verdict.PREEMPTED, attempt=attempt, **more).parent
    write_series(directory, [row for row in series(axes, 0.1) if row["step"] >= first])
    (directory.parent / "cell.yaml").write_text("")
    return directory


def show(
    sweep: SyntheticSweep,
    capsys: pytest.CaptureFixture[str],
    axes: Axes = AXES,
    *,
    step: int | None = None,
    wrong: bool = False,
    limit: int = 10,
    other: Axes | None = None,
) -> list[str]:
    cells = [None if one is None else CellDirectory(attempt_directory(sweep, one, 1).parent) for one in (axes, other)]
    assert cells[0] is not None
    capsys.readouterr()
    show_samples(cells[0], step=step, wrong=wrong, limit=limit, other=cells[1])
    return capsys.readouterr().out.splitlines()


def test_an_answer_with_its_grade_and_depths(sweep: SyntheticSweep, capsys: pytest.CaptureFixture[str]) -> None:
    attempt = begin(sweep)
    write_answers(
        attempt,
        3,
        [True, False],
        kind="step",
        advantage=-0.70711,
        exit_depths=[4, 2],
        finish_reason="length",
        text="one\ntwo\x1b[2J\t",
    )
    found = show(sweep, capsys)
    assert found[0] == f"{attempt.parent.name}, training, step 3: 1 of 2 answers are right"
    assert found[1:6] == [
        "",
        "arithmetic/test/0000: What is 0 + 1?",
        "    one",
        "    two\\x1b[2J\\t",
        "  [gold 1, read 1, strict correct, flexible correct, reward 1, 2 tokens, length, advantage -0.707, depths 42]",
    ]
    assert found[10].startswith("  [gold 2, read 3, strict wrong, flexible wrong, reward 0,")


def test_a_sample_with_nothing_but_tokens(sweep: SyntheticSweep, capsys: pytest.CaptureFixture[str]) -> None:
    attempt = begin(sweep)
    bare = dict.fromkeys(("question", "gold", "text", "extracted", "strict", "flexible"))
    write_answers(attempt, 3, [False], **bare)
    assert "arithmetic/test/0000: " in show(sweep, capsys)
    assert any("read nothing" in line for line in show(sweep, capsys))


def test_only_wrong_ones_and_a_limit(sweep: SyntheticSweep, capsys: pytest.CaptureFixture[str]) -> None:
    write_answers(begin(sweep), 0, [True, False, True, False, False])
    found = show(sweep, capsys, wrong=True, limit=2)
    assert found[0].endswith("evaluation, step 0: 2 of 5 answers are right")
    assert [line.partition(":")[0] for line in found if line.startswith("arithmetic")] == [
        "arithmetic/test/0001",
        "arithmetic/test/0003",
    ]
    assert "1 more; --limit N shows them" in found
    assert not any("more; --limit" in line for line in show(sweep, capsys, wrong=True, limit=3))


def test_a_step_has_its_training_and_its_evaluation(sweep: SyntheticSweep, capsys: pytest.CaptureFixture[str]) -> None:
    attempt = begin(sweep)
    write_answers(attempt, 0, [False])
    write_answers(attempt, 3, [True], kind="step")
    write_answers(attempt, 3, [True, True])
    heads = [line.partition(", ")[2] for line in show(sweep, capsys) if "answers are right" in line]
    assert heads == ["training, step 3: 1 of 1 answers are right", "evaluation, step 3: 2 of 2 answers are right"]
    assert show(sweep, capsys, step=0)[0].endswith("evaluation, step 0: 0 of 1 answers are right")
    with pytest.raises(UserError, match=r"no samples of step 2; there are 0, 3$"):
        show(sweep, capsys, step=2)


def test_samples_behind_the_step_that_was_gone_on_from_do_not_count(
    sweep: SyntheticSweep, capsys: pytest.CaptureFixture[str]
) -> None:
    first = begin(sweep)
    for step in (0, 3, 6):
        write_answers(first, step, [False])
    second = begin(sweep, attempt=2, first=4, continues=1)
    assert show(sweep, capsys)[0].endswith("evaluation, step 3: 0 of 1 answers are right")
    write_answers(second, 6, [True])
    assert show(sweep, capsys)[0].endswith("evaluation, step 6: 1 of 1 answers are right")
    assert show(sweep, capsys, step=0)[0].endswith("step 0: 0 of 1 answers are right")


def test_no_samples_and_broken_ones(sweep: SyntheticSweep, capsys: pytest.CaptureFixture[str]) -> None:
    attempt = begin(sweep)
    with pytest.raises(UserError, match="no samples; gsm8k_reward and gsm8k_eval leave them"):
        show(sweep, capsys)
    path = write_answers(attempt, 0, [True])
    (path.parent / "notes.jsonl").write_text("")
    path.write_text(path.read_text()[:-20])
    with pytest.raises(UserError, match=r"eval-000000.jsonl, line 2: not a sample"):
        show(sweep, capsys)


def test_the_difference_of_two_cells_of_other_seeds(sweep: SyntheticSweep, capsys: pytest.CaptureFixture[str]) -> None:
    other = training_axes(1)
    write_answers(begin(sweep), 6, [True, True, False, False, True])
    theirs = begin(sweep, other)
    write_answers(theirs, 6, [True, False, True, False], seed=7)
    write_answers(theirs, 6, [True], kind="step")
    found = show(sweep, capsys, other=other)
    ours, name = (attempt_directory(sweep, axes, 1).parent.name for axes in (AXES, other))
    assert found[1:4] == [
        "4 answers to the same problems, of which one cell alone has right:",
        f"  1 {ours}",
        f"  1 {name}",
    ]
    shown = [line.partition(":")[0] for line in found if line.startswith("arithmetic")]
    assert shown == ["arithmetic/test/0001", "arithmetic/test/0002"]
    assert sum("gold 2," in line for line in found) == 2
    assert [line for line in show(sweep, capsys, other=other, wrong=True) if line.startswith("arithmetic")] == [
        "arithmetic/test/0002: What is 2 + 1?"
    ]
    write_answers(begin(sweep, training_axes(2)), 3, [True])
    with pytest.raises(UserError, match="no samples of step 6; there are 3"):
        show(sweep, capsys, other=training_axes(2))


def test_the_answers_of_a_prompt_group_are_compared_one_by_one(
    sweep: SyntheticSweep, capsys: pytest.CaptureFixture[str]
) -> None:
    other = training_axes(1)
    write_answers(begin(sweep), 6, [True, False, False], kind="step", problem_id="same")
    write_answers(begin(sweep, other), 6, [True, True, False], kind="step", problem_id="same")
    found = show(sweep, capsys, other=other)
    assert found[1].startswith("3 answers to the same problems")
    assert [line.strip()[0] for line in found[2:4]] == ["0", "1"]


def test_a_cell_is_found_by_directory_by_id_and_by_a_part_of_it(sweep: SyntheticSweep) -> None:
    directory = begin(sweep).parent
    begin(sweep, training_axes(1))
    runs = sweep.path.parent
    name = directory.name
    assert find_cell(str(directory)).path == directory
    for part in (name, name[2:], "cpu-0-0"):
        assert find_cell(part, runs).path == directory
    with pytest.raises(UserError, match="gsm8k_reward names 2 cells: "):
        find_cell("gsm8k_reward", runs)
    with pytest.raises(UserError, match="nobody: neither a cell's directory nor a part of the id"):
        find_cell("nobody", runs)
    begin(SyntheticSweep(runs / "another"))  # the same cell in a second sweep
    with pytest.raises(UserError, match=r"names 2 cells: .*another.*trial"):
        find_cell(name, runs)
