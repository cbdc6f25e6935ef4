import csv
import io
import math
from pathlib import Path
from typing import Any

import pytest
import yaml
from synthetic_runs import SyntheticSweep, cell_axes, planned, write_quickstart

from scalerlt import cli
from scalerlt.analysis import build_report
from scalerlt.analysis.judging import judged
from scalerlt.analysis.latex import to_latex
from scalerlt.analysis.reading import read_runs
from scalerlt.analysis.spec_files import read_spec, spec_files
from scalerlt.analysis.table_spec import Column, TableSpec, load_tables
from scalerlt.analysis.tables import build_all, build_tables, to_csv, to_markdown
from scalerlt.errors import UserError
from scalerlt.records.record import Metric

SPEED: dict[str, Any] = {
    "name": "speed",
    "experiment": "rollout_throughput",
    "caption": "Speed.",
    "rows": ["precision"],
    "columns": [{"metric": "tokens_per_second", "header": "speed"}],
}


SHIPPED = [
    *("rollout_throughput", "rollout_memory", "actor_update", "actor_update_memory", "gradient_error"),
    *("gradient_error_groups", "update_error", "reward", "reward_mismatch", "reward_time", "evaluation"),
]


def write(directory: Path, **changes: Any) -> Path:
    """A user's directory with one table; a key whose value is None is left out."""
    content = {key: value for key, value in {**SPEED, **changes}.items() if value is not None}
    file = directory / "tables" / f"{content['name']}.yaml"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(yaml.safe_dump(content, sort_keys=False), encoding="utf-8")
    return file


def table(**changes: Any) -> TableSpec:
    return TableSpec.model_validate({**SPEED, **changes})


def test_the_tables_that_ship() -> None:
    names = [spec.name for spec in load_tables()]
    assert [name for name in names if name in SHIPPED] == SHIPPED
    for file in spec_files("tables"):
        assert read_spec(file)["name"] == file.name.removesuffix(".yaml")


def only(**keys: Any) -> dict[str, Any]:
    """One column with these keys."""
    return {"columns": [{"metric": "x", "header": "x", **keys}]}


FAULTS: list[tuple[dict[str, Any], str]] = [
    ({"colums": []}, "colums is no key; did you mean columns?"),
    ({"caption": None}, "caption is missing"),
    ({"columns": None}, "columns is missing"),
    ({"columns": []}, "columns"),
    ({"columns": [{"metric": "x"}]}, "columns.0.header is missing"),
    (only(frm="error"), "columns.0.frm is no key; did you mean form?"),
    (only(form="errors"), "columns.0.form is 'errors'; did you mean error?"),
    (
        only(estimator="matched_pairs_mean"),
        "columns.0.estimator is 'matched_pairs_mean'; did you mean matched_pair_mean?",
    ),
    (only(unit="parsec"), "columns.0: unit 'parsec' takes a scale; known without one are B"),
    (only(scale=2.0), "columns.0: scale takes a unit"),
    (only(estimator="paired_accuracy"), "baseline is missing: column 'x' compares with it"),
    ({"baseline": {"precision": "fp32"}}, "baseline is given, but no column's estimator compares"),
    (only(margin=1.0), "columns.0: margin goes with the estimator paired_accuracy"),
    (only(correction="holm"), "columns.0: correction goes with an estimator that compares"),
    (only(ratio="row/baseline"), "columns.0: ratio goes with an estimator of ratios"),
    (
        only(estimator="interquartile_mean", spread=True),
        "columns.0: interquartile_mean goes with neither spread nor form",
    ),
    (only(device="cpu"), "column 'x' is of one device, which takes per_device: true"),
    ({"columns": only()["columns"] * 2}, "columns has x with the estimator median twice"),
    ({"name": "coverage"}, "name is coverage, a table about the sweep itself"),
    ({"label": "tab:a}b"}, "label is 'tab:a}b'"),
    ({"order": "first"}, "order is 'first'"),
]


@pytest.mark.parametrize(("changes", "message"), FAULTS)
def test_a_fault_is_named_with_its_file_its_key_and_what_would_be_right(
    tmp_path: Path, changes: dict[str, Any], message: str
) -> None:
    file = write(tmp_path, **changes)
    with pytest.raises(UserError) as found:
        load_tables([tmp_path])
    assert str(found.value).startswith(f"{file}: ")
    assert message in str(found.value)
    assert len(str(found.value).splitlines()) == 1


def test_all_faults_of_all_files_are_named_at_once(tmp_path: Path) -> None:
    one = write(tmp_path, name="one", caption=None, colour="red")
    two = write(tmp_path, name="two", rows=None)
    three = tmp_path / "tables" / "three.yaml"
    three.write_text("name: three\nname: four\n")
    four = tmp_path / "tables" / "four.yaml"
    four.write_text("- a list\n")
    five = tmp_path / "tables" / "five.yaml"
    five.write_text("name: 5\n")
    with pytest.raises(UserError) as found:
        load_tables([tmp_path])
    lines = str(found.value).splitlines()
    for file, message in [
        (one, "caption is missing"),
        (one, "colour is no key"),
        (two, "rows is missing"),
        (three, "name stands twice"),
        (four, "must hold keys and values"),
        (five, "name is 5; it must be that of the file, 'five'"),
    ]:
        assert any(line.startswith(f"{file}:") and message in line for line in lines), (message, lines)


def test_a_directory_that_is_none(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="nowhere is not a directory"):
        load_tables([tmp_path / "nowhere"])


def test_a_table_added_by_one_file_is_in_all_three_outputs(tmp_path: Path) -> None:
    sweep = SyntheticSweep(tmp_path / "runs" / "trial")
    axes = cell_axes("rollout_throughput", "fp32", "small")
    sweep.plan([planned(axes)])
    sweep.record(axes, edit=lambda metrics: metrics.update(share=Metric(value=0.123456789, unit="fraction")))
    own = tmp_path / "own"
    write(
        own,
        caption="My 50 % of_it.",
        label="tab:mine",
        columns=[{"metric": "share", "header": "share_of", "unit": "%", "scale": 100.0}],
    )
    report = tmp_path / "report"
    assert cli.main(["report", str(sweep.path), "--out", str(report), "--specs", str(own)]) == 0
    markdown, table_csv, latex = (
        (report / "tables" / f"speed.{ending}").read_text() for ending in ("md", "csv", "tex")
    )
    assert r"| precision | n | share_of (%) | evidence |" in markdown
    assert "| fp32 | 1 | 12.35 | cpu |" in markdown
    [row] = csv.DictReader(io.StringIO(table_csv))
    assert row["share (fraction)"] == "0.123456789"
    assert r"\caption{My 50 \% of\_it.}" in latex
    assert r"\label{tab:mine}" in latex
    assert r"{\shortstack{\strut share\_of\\\strut (\%)}}" in latex
    assert "fp32 & 1 & 12.35 & cpu" in latex
    assert "12.35" in (report / "report.md").read_text()


def test_a_users_table_takes_the_place_of_a_shipped_one_of_its_name(tmp_path: Path) -> None:
    sweep = SyntheticSweep(tmp_path / "trial")
    sweep.plan([planned(cell_axes("rollout_throughput", "fp32", batch)) for batch in ("small", "large")])
    write(tmp_path / "own", name="rollout_throughput", order=10)
    build_report(sweep.path, tmp_path / "report", tmp_path / "own")
    text = (tmp_path / "report/tables/rollout_throughput.md").read_text()
    assert text.startswith("Speed.\n")
    assert "| precision | batch | n | speed | evidence |" in text


def test_a_wrong_definition_stops_the_report_before_anything_is_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_quickstart(tmp_path / "runs" / "quickstart")
    write(tmp_path / "own", colour="red")
    out = tmp_path / "report"
    assert cli.main(["report", str(tmp_path / "runs"), "--out", str(out), "--specs", str(tmp_path / "own")]) == 2
    assert "colour is no key" in capsys.readouterr().err
    assert not out.exists()


def test_sweeps_experiments_and_order(tmp_path: Path) -> None:
    write_quickstart(tmp_path / "quickstart")
    sweep = read_runs(tmp_path / "quickstart").sweeps[0]
    assert build_tables(table(sweeps="elsewhere"), sweep.cells, sweep.swept) == []
    assert len(build_tables(table(sweeps=["elsewhere", "quickstart"]), sweep.cells, sweep.swept)) == 1
    [both] = build_tables(table(experiment=["rollout_throughput", "actor_update"]), sweep.cells, sweep.swept)
    assert "experiment" in both.names
    assert len(both.lines) == 24
    first, second = build_all([table(), table(name="other")], sweep.cells, sweep.swept)
    assert (first.name, second.name) == ("speed", "other")
    with pytest.raises(UserError, match="two tables are called speed_cpu"):
        build_all([table(per_device=True), table(name="speed_CPU")], sweep.cells, sweep.swept)


def test_units_that_are_asked_for(tmp_path: Path) -> None:
    write_quickstart(tmp_path / "quickstart")
    sweep = read_runs(tmp_path / "quickstart").sweeps[0]

    def shown(column: Column) -> str:
        [found] = build_tables(table().model_copy(update={"columns": (column,)}), sweep.cells[:1], [])
        return to_markdown(found)

    seconds = Column(metric="rollout_seconds", header="time", unit="µs")
    value = sweep.cells[0].metrics["rollout_seconds"].value
    assert isinstance(value, float)
    assert "time (µs)" in shown(seconds)
    assert f"| {value * 1e6:,.0f} |" in shown(seconds)
    assert "(kilotoken)" in shown(Column(metric="generated_tokens", header="work", unit="kilotoken", scale=1e-3))
    with pytest.raises(
        UserError, match=r"column 'time' is to be in KiB, but rollout_seconds is recorded in s; it has µs, ms, s"
    ):
        shown(seconds.model_copy(update={"unit": "KiB"}))


NAMES = ("NA", "1e5", "inf", "null", "007", "nan", "true")


def test_names_that_look_like_numbers_stay_what_they_are(tmp_path: Path) -> None:
    """A model named NA, a hash 1e5: text in every output; and a cell that lacks the key is a row, too."""
    sweep = SyntheticSweep(tmp_path / "trial")
    cells = [cell_axes("rollout_throughput", "fp32", "small", **{"x.hash": name}) for name in NAMES]
    cells.append(cell_axes("rollout_throughput", "fp32", "small"))
    sweep.plan([planned(axes) for axes in cells], swept=["x.hash"])
    for axes in cells:
        sweep.record(axes)
    results = read_runs(sweep.path).sweeps[0]
    [found] = build_tables(table(), results.cells, results.swept)
    assert [row["x.hash"] for row in csv.DictReader(io.StringIO(to_csv(found)))] == [*NAMES, ""]
    assert [line.split("|")[2].strip() for line in to_markdown(found).splitlines()[4:]] == [*NAMES, "–"]
    assert [line.split("&")[1].strip() for line in to_latex(found).splitlines() if " fp32 &" in line] == [
        *NAMES,
        "--{}",
    ]


def test_a_figure_that_no_float_holds_is_infinite_and_stops_nothing(tmp_path: Path) -> None:
    sweep = SyntheticSweep(tmp_path / "trial")
    cells = [cell_axes("actor_update", "fp32", "small", "layer", cohort=cohort) for cohort in range(3)]
    sweep.plan([planned(axes) for axes in cells])
    for axes, number in zip(cells, ("1e400", "1" + 400 * "0", "1.7e308"), strict=True):
        file = sweep.record(axes, edit=lambda metrics: metrics.update(loss=Metric(value=12345678.5)))
        file.write_text(file.read_text().replace("12345678.5", number))
    results = read_runs(sweep.path).sweeps[0]
    assert [cell.metrics["loss"].value for cell in results.cells] == [math.inf, math.inf, 1.7e308]
    cells_judged = judged(results.cells, results.path)
    for found in build_all(load_tables(), cells_judged, results.swept):
        for text in (to_markdown(found), to_csv(found), to_latex(found)):
            assert text
    [update] = [found for found in build_all(load_tables(), cells_judged, []) if found.name == "update_error"]
    assert "inf" in to_csv(update)
    interval = Column(metric="loss", header="loss", estimator="interquartile_mean")
    [found] = build_tables(
        table(experiment="actor_update").model_copy(update={"columns": (interval,)}), results.cells, []
    )
    assert found.lines[0].entries[0].state == "not_measured"
