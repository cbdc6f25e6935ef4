"""The memory table says where a live peak does not fall although the saved bytes do."""

from pathlib import Path

import pytest
from synthetic_runs import SyntheticSweep, cell_axes, planned

from scalerlt.analysis.latex import to_latex
from scalerlt.analysis.reading import read_runs
from scalerlt.analysis.table_spec import TableSpec, load_tables
from scalerlt.analysis.tables import Table, build_tables, to_csv, to_markdown
from scalerlt.records.record import Metric, Verdict

Bytes = tuple[int, int]
"""Saved, live peak."""
SAID = "live peak does not fall below that of checkpoint=none although saved_bytes does"


def table_of(path: Path, found: dict[str, list[Bytes | Verdict]], precision: str = "fp32") -> Table:
    """Of checkpoint schedules the bytes of each cohort, or what else became of it."""
    sweep, cells = SyntheticSweep(path), []
    for checkpoint, cohorts in found.items():
        for cohort, value in enumerate(cohorts):
            axes = cell_axes("actor_update", precision, "small", checkpoint, seed=cohort, cohort=cohort)
            cells.append(axes)
            if isinstance(value, Verdict):
                sweep.record(axes, value, reason="so it went")
                continue

            def edit(metrics: dict[str, Metric], value: Bytes = value) -> None:
                for name, number in zip(("saved_bytes", "live_peak_bytes"), value, strict=True):
                    metrics[name] = Metric(value=number, unit="B")

            sweep.record(axes, edit=edit)
    sweep.plan([planned(axes) for axes in cells], swept=["checkpoint", "cohort"])
    results = read_runs(path).sweeps[0]
    [spec] = [spec for spec in load_tables() if spec.name == "actor_update_memory"]
    [table] = build_tables(spec, results.cells, results.swept)
    return table


def notes_of(table: Table, checkpoint: str) -> tuple[str, ...]:
    [live] = [number for number, column in enumerate(table.columns) if column.metric == "live_peak_bytes"]
    [line] = [line for line in table.lines if checkpoint in line.labels]
    return line.entries[live].notes


@pytest.mark.parametrize("live", [2**21, 2**21 + 1])
def test_a_peak_that_does_not_fall_has_a_mark_and_a_sentence(tmp_path: Path, live: int) -> None:
    table = table_of(tmp_path / "trial", {"none": [(2**20, 2**21)], "layer": [(2**19, live)], "loop": [(2**19, 2**20)]})
    [note] = notes_of(table, "layer")
    assert note.startswith(f"{SAID}: 2.000 against 2.000 MiB, and saved_bytes 0.5000 against 1.000 MiB")
    assert notes_of(table, "none") == notes_of(table, "loop") == ()
    assert "] live peak does not fall below" in to_markdown(table)
    assert SAID in to_csv(table)
    assert "does not fall below" in to_latex(table)


def test_one_that_keeps_as_much_is_expected_to_need_as_much(tmp_path: Path) -> None:
    table = table_of(tmp_path / "trial", {"none": [(100, 200)], "layer": [(100, 300)], "loop": [(101, 300)]})
    assert notes_of(table, "layer") == notes_of(table, "loop") == ()


def test_cohorts_are_compared_by_their_medians(tmp_path: Path) -> None:
    none: list[Bytes | Verdict] = [(100, 200), (100, 220), (100, 210)]
    high = table_of(tmp_path / "high", {"none": none, "layer": [(50, 100), (50, 211), (50, 212)]})
    low = table_of(tmp_path / "low", {"none": none, "layer": [(50, 209), (50, 100), (50, 300)]})
    assert len(notes_of(high, "layer")) == 1 and notes_of(low, "layer") == ()


@pytest.mark.parametrize("baseline", [None, Verdict.OOM])
def test_without_a_baseline_nothing_is_said(tmp_path: Path, baseline: Verdict | None) -> None:
    found: dict[str, list[Bytes | Verdict]] = {"layer": [(50, 300)]}
    if baseline is not None:
        found = {"none": [baseline], **found}
    assert notes_of(table_of(tmp_path / "trial", found), "layer") == ()


def test_a_row_without_a_number_keeps_its_word(tmp_path: Path) -> None:
    table = table_of(tmp_path / "trial", {"none": [(100, 200)], "layer": [Verdict.KILLED]})
    assert notes_of(table, "layer") == ("killed: so it went",)


def test_a_column_that_follows_takes_a_baseline_and_medians() -> None:
    column = {"metric": "x", "header": "x", "follows": "y"}
    values = {"name": "t", "experiment": "actor_update", "caption": "T.", "rows": ["checkpoint"]}
    with pytest.raises(ValueError, match="baseline is missing: column 'x' compares with it"):
        TableSpec.model_validate(values | {"columns": [column]})
    with pytest.raises(ValueError, match="follows goes with the estimator median"):
        TableSpec.model_validate(
            values | {"baseline": {"checkpoint": "none"}, "columns": [column | {"estimator": "mean"}]}
        )
