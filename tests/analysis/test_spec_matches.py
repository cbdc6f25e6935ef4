"""A reader's own definitions that find nothing are named, each with the nearest name there is."""

from pathlib import Path

import pytest

from scalerlt.analysis import build_report
from scalerlt.analysis.figure_spec import load_figures
from scalerlt.analysis.reading import CellResult, read_runs
from scalerlt.analysis.spec_matches import unmatched
from scalerlt.analysis.table_spec import load_tables
from scalerlt.errors import RequestErrors, UserError

TABLE = """
name: mine
experiment: {experiment}
caption: c
rows: [{row}]
baseline: {{precision: {baseline}}}
columns:
  - {{metric: {metric}, header: h, follows: {follows}}}
  - {{metric: actor_update_seconds, header: r, estimator: geometric_mean_of_cohorts, per: {per}}}
"""
FIGURE = """
name: drawn
kind: bars
experiment: actor_update
caption: c
x: {x}
series: precision
columns: [{{metric: {metric}, header: h}}]
"""
RIGHT = {"experiment": "actor_update", "row": "precision", "baseline": "fp32", "metric": "saved_bytes"}
RIGHT |= {"follows": "parameter_bytes", "per": "trained_tokens"}


@pytest.fixture
def runs(quickstart: Path) -> Path:
    return quickstart / "quickstart"


@pytest.fixture(scope="module")
def cells(quickstart: Path) -> list[CellResult]:
    return read_runs(quickstart).cells


def problems(cells: list[CellResult], specs: Path, folder: str, name: str, text: str) -> list[str]:
    (specs / folder).mkdir(parents=True)
    (specs / folder / f"{name}.yaml").write_text(text)
    found = unmatched(load_tables([specs]), load_figures([specs]), [specs], cells)
    assert all(problem.startswith(str(specs)) for problem in found)
    return found


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({}, None),
        ({"experiment": "actor_updat"}, "no cell is of experiment actor_updat; did you mean actor_update?"),
        ({"row": "precison"}, "no cell has an axis precison; did you mean precision?"),
        ({"baseline": "fp61"}, "baseline: no cell has precision=fp61"),
        ({"metric": "saved_byte"}, "no cell has recorded a metric saved_byte; did you mean saved_bytes?"),
        ({"follows": "parameter_byte"}, "no cell has recorded a metric parameter_byte; did you mean parameter_bytes?"),
        ({"per": "trained_token"}, "no cell has recorded a metric trained_token; did you mean trained_tokens?"),
    ],
)
def test_a_table(cells: list[CellResult], tmp_path: Path, change: dict[str, str], said: str | None) -> None:
    found = problems(cells, tmp_path, "tables", "mine", TABLE.format(**(RIGHT | change)))
    assert len(found) == (said is not None)
    assert said is None or said in found[0]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({}, None),
        ({"x": "chekpoint"}, "no cell has an axis chekpoint; did you mean checkpoint?"),
        ({"metric": "saved_byte"}, "no cell has recorded a metric saved_byte; did you mean saved_bytes?"),
    ],
)
def test_a_figure(cells: list[CellResult], tmp_path: Path, change: dict[str, str], said: str | None) -> None:
    text = FIGURE.format(**({"x": "checkpoint", "metric": "saved_bytes"} | change))
    found = problems(cells, tmp_path, "figures", "drawn", text)
    assert len(found) == (said is not None)
    assert said is None or said in found[0]


def test_the_report_says_so_and_shows_the_figure_that_finds_something(runs: Path, tmp_path: Path) -> None:
    specs = tmp_path / "specs"
    for folder, name, text in (
        ("tables", "mine", TABLE.format(**(RIGHT | {"row": "precison"}))),
        ("figures", "drawn", FIGURE.format(x="checkpoint", metric="saved_bytes")),
    ):
        (specs / folder).mkdir(parents=True)
        (specs / folder / f"{name}.yaml").write_text(text)
    built = build_report(runs, tmp_path / "out", specs)
    [problem] = [problem for problem in built.problems if problem.startswith(str(specs))]
    assert problem == f"{specs}/tables/mine.yaml: no cell has an axis precison; did you mean precision?"
    assert any(path.name.startswith("drawn") for path in built.outputs)


def test_faults_of_tables_and_figures_are_named_together(runs: Path, tmp_path: Path) -> None:
    for folder in ("tables", "figures"):
        (tmp_path / "specs" / folder).mkdir(parents=True)
        (tmp_path / "specs" / folder / "x.yaml").write_text("name: x\n")
    with pytest.raises(RequestErrors) as caught:
        build_report(runs, tmp_path / "out", tmp_path / "specs")
    text = "\n".join(caught.value.problems)
    assert "tables/x.yaml" in text
    assert "figures/x.yaml" in text


def test_a_directory_without_definitions_is_refused(runs: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="neither tables/ nor figures/"):
        build_report(runs, tmp_path / "out", runs)
