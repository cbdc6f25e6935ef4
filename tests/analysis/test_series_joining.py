import json
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from synthetic_runs import SyntheticSweep, planned
from synthetic_training import attempt_directory, series, training_axes, write_series, write_training

from scalerlt.analysis import load_series
from scalerlt.analysis.series import read_rows
from scalerlt.errors import UserError
from scalerlt.records.record import Verdict

AXES = training_axes()


@pytest.fixture
def sweep(tmp_path: Path) -> SyntheticSweep:
    sweep = SyntheticSweep(tmp_path / "trial")
    sweep.plan([planned(AXES)])
    return sweep


def rows_of(attempt: int, first: int, last: int) -> list[dict[str, Any]]:
    """Rows of an attempt that began at step `first`; their reward tells who wrote them."""
    rows = [row for row in series(AXES, 0.1) if first <= row["step"] <= last]
    return [{**row, "reward": float(attempt)} if "reward" in row else row for row in rows]


def begin(sweep: SyntheticSweep, attempt: int, first: int, last: int, **journal: int) -> Path:
    """An attempt without a record, as one that still runs leaves it."""
    directory = attempt_directory(sweep, AXES, attempt)
    write_series(directory, rows_of(attempt, first, last))
    if journal:
        (directory / ".progress-rank0").write_text(json.dumps(journal) + "\n")
    return directory


def end(sweep: SyntheticSweep, attempt: int, verdict: Verdict, first: int, last: int, **more: Any) -> None:
    sweep.record(AXES, verdict, attempt=attempt, **more)
    write_series(attempt_directory(sweep, AXES, attempt), rows_of(attempt, first, last))


def joined(sweep: SyntheticSweep) -> list[tuple[int, str, int]]:
    frame = load_series(sweep.path)
    keys = frame[["sweep", "cell_id", "step", "kind"]]
    assert not keys.duplicated().any()
    train = frame[frame["kind"] == "train"]
    assert (train["reward"] == train["attempt"]).all()
    return list(zip(frame["step"], frame["kind"], frame["attempt"], strict=True))


def steps_of(attempt: int, first: int, last: int) -> list[tuple[int, str, int]]:
    return [(row["step"], "eval" if "accuracy" in row else "train", attempt) for row in rows_of(attempt, first, last)]


def test_an_attempt_stands_behind_the_part_that_it_went_on_from(sweep: SyntheticSweep) -> None:
    end(sweep, 1, Verdict.PREEMPTED, 0, 5)
    end(sweep, 2, Verdict.MEASURED, 4, 6, continues=1)
    assert joined(sweep) == steps_of(1, 0, 3) + steps_of(2, 4, 6)


def test_going_on_twice_from_each_other_and_twice_from_the_same(sweep: SyntheticSweep) -> None:
    end(sweep, 1, Verdict.PREEMPTED, 0, 3)
    end(sweep, 2, Verdict.KILLED, 3, 5, continues=1)
    end(sweep, 3, Verdict.MEASURED, 5, 6, continues=2)
    assert joined(sweep) == steps_of(1, 0, 2) + steps_of(2, 3, 4) + steps_of(3, 5, 6)
    sweep.record(AXES, attempt=3, continues=1)  # attempt 2 had saved nothing, and is no part of the run
    assert joined(sweep) == steps_of(1, 0, 3) + steps_of(3, 5, 6)


def test_an_attempt_that_began_from_nothing_replaces(sweep: SyntheticSweep) -> None:
    end(sweep, 1, Verdict.FAILED, 0, 5)
    end(sweep, 2, Verdict.FAILED, 0, 2)
    assert joined(sweep) == steps_of(2, 0, 2)


def test_an_attempt_that_came_to_nothing_replaces_nothing(sweep: SyntheticSweep) -> None:
    end(sweep, 1, Verdict.PREEMPTED, 0, 5)
    sweep.record(AXES, Verdict.FAILED, attempt=2)
    assert joined(sweep) == steps_of(1, 0, 5)


@pytest.mark.parametrize("journal", [{}, {"continues": 1}])
def test_a_running_attempt_is_joined_by_its_journal_or_by_its_rows(
    sweep: SyntheticSweep, journal: dict[str, int]
) -> None:
    end(sweep, 1, Verdict.PREEMPTED, 0, 5)
    begin(sweep, 2, 4, 5, **journal)
    assert joined(sweep) == steps_of(1, 0, 3) + steps_of(2, 4, 5)


def test_a_running_attempt_that_has_only_begun_to_go_on_shows_what_it_goes_on_from(sweep: SyntheticSweep) -> None:
    end(sweep, 1, Verdict.PREEMPTED, 0, 5)
    begin(sweep, 2, 9, 9, continues=1)
    assert joined(sweep) == steps_of(1, 0, 5)


def test_without_a_journal_the_attempt_that_came_as_far_is_gone_on_from(sweep: SyntheticSweep) -> None:
    end(sweep, 1, Verdict.PREEMPTED, 0, 5)
    end(sweep, 2, Verdict.KILLED, 0, 1)
    begin(sweep, 3, 4, 4)
    assert joined(sweep) == steps_of(1, 0, 3) + steps_of(3, 4, 4)


def test_the_attempt_that_answered_counts_though_a_later_one_runs(sweep: SyntheticSweep) -> None:
    end(sweep, 1, Verdict.MEASURED, 0, 6)
    begin(sweep, 2, 0, 2)
    assert joined(sweep) == steps_of(1, 0, 6)


def test_a_record_that_continues_itself_or_a_later_attempt_ends(sweep: SyntheticSweep) -> None:
    end(sweep, 1, Verdict.MEASURED, 2, 6, continues=1)
    assert joined(sweep) == steps_of(1, 2, 6)


def test_a_line_that_was_cut_off_is_passed_over_and_a_broken_one_is_named(tmp_path: Path) -> None:
    file = tmp_path / "series.jsonl"
    good = '{"step": 1, "reward": "NaN", "a": "Infinity", "b": "-Infinity", "word": "x", "flag": true}\n'
    file.write_text(good + '{"step": 2, "reward": 0.5}\n{"step": 3, "rew')
    rows, problems = read_rows(file)
    assert problems == []
    assert [row["step"] for row in rows] == [1, 2]
    assert rows[0]["reward"] != rows[0]["reward"]
    assert (rows[0]["a"], rows[0]["b"], rows[0]["word"], rows[0]["flag"]) == (float("inf"), -float("inf"), "x", True)
    file.write_text('{"step": 1}\n{"step": 2}')  # nothing but its line end is missing
    assert [row["step"] for row in read_rows(file)[0]] == [1, 2]
    for broken in (
        '{"step": 3, "rew',
        '{"step": 3, "x": NaN}',
        '{"x": 1}',
        '{"step": true}',
        "[1]",
        '{"step": 1, "x": []}',
    ):
        file.write_text(f'{{"step": 1}}\n{broken}\n{{"step": 4}}\n')
        rows, problems = read_rows(file)
        assert [row["step"] for row in rows] == [1, 4]
        assert problems == [f"line 2 is not a row of a series: {broken!r}"]
    assert read_rows(tmp_path / "none") == ([], [])


def test_columns_and_dtypes(sweep: SyntheticSweep) -> None:
    other = training_axes(1, "last_exited")
    sweep.plan([planned(AXES), planned(other), planned(training_axes(2))])
    write_training(sweep, AXES, (70, 30, 10, 90))
    attempt = write_training(sweep, other, (70, 30, 10, 90))
    with (attempt / "series.jsonl").open("a") as file:
        file.write('{"step": 7, "seed": 3, "done": true, "reward": "NaN"}\nnonsense\n')
    frame = load_series(sweep.path.parent)
    assert list(frame.columns[:6]) == ["sweep", "cell_id", "state", "step", "kind", "attempt"]
    assert list(frame.columns[6:8]) == ["experiment", "experiment.repeats"]
    for name, dtype in {
        "step": "Int64",
        "attempt": "Int64",
        "samples": "Int64",
        "loop/exit_depth_hist_2": "Int64",
        "tokens": "Int64",
        "reward": "float64",
        "accuracy": "float64",
        "seed": "object",
        "batch.group_size": "object",
        "series.seed": "Int64",
        "done": "boolean",
    }.items():
        assert str(frame[name].dtype) == dtype, name
    assert set(frame["state"]) == {"measured"}
    assert set(frame["seed"]) == {0, 1}  # the third cell has no row
    missing = frame[frame["reward"].isna()]
    assert set(missing["kind"][missing["step"] < 7]) == {"eval"}
    assert len(missing) == (frame["kind"] == "eval").sum() + 1
    [problem] = frame.attrs["problems"]
    assert problem.startswith("trial/gsm8k_reward-")
    assert problem.endswith("series.jsonl: line 11 is not a row of a series: 'nonsense'")
    empty = load_series(SyntheticSweep(sweep.path.parent.parent / "other").path)
    assert isinstance(empty, pd.DataFrame)
    assert list(empty.columns) == ["sweep", "cell_id", "state", "step", "kind", "attempt"]
    with pytest.raises(UserError, match="is not a directory"):
        load_series(sweep.path / "missing")
