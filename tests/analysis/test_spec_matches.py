"""A reader's own definitions that find nothing are named, each with the nearest name there is."""

from pathlib import Path

import pytest
from synthetic_runs import write_quickstart

from scalerlt.analysis import build_report
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
def runs(tmp_path: Path) -> Path:
    write_quickstart(tmp_path / "runs" / "quickstart")
    return tmp_path / "runs" / "quickstart"


def problems(runs: Path, folder: str, name: str, text: str) -> list[str]:
    specs = runs.parent.parent / "specs"
    (specs / folder).mkdir(parents=True)
    (specs / folder / f"{name}.yaml").write_text(text)
    built = build_report(runs, runs.parent.parent / "out", specs)
    return [problem for problem in built.problems if problem.startswith(str(specs))]


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
def test_a_table(runs: Path, change: dict[str, str], said: str | None) -> None:
    found = problems(runs, "tables", "mine", TABLE.format(**(RIGHT | change)))
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
def test_a_figure(runs: Path, change: dict[str, str], said: str | None) -> None:
    found = problems(runs, "figures", "drawn", FIGURE.format(**({"x": "checkpoint", "metric": "saved_bytes"} | change)))
    assert len(found) == (said is not None)
    assert said is None or said in found[0]


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
