"""The table of shared prefixes: how much of what sharing can save was saved."""

import csv
import io
import math
from pathlib import Path
from typing import Any

import pytest
from scipy import stats
from synthetic_runs import Axes, SyntheticSweep, cell_axes, planned

from scalerlt.analysis.judging import judged
from scalerlt.analysis.reading import read_runs
from scalerlt.analysis.table_spec import TableSpec, load_tables
from scalerlt.analysis.tables import Table, build_tables, to_csv, to_markdown
from scalerlt.records.record import Metric, Verdict

LIMIT = 12.5
TIMES = {
    "none": (2.0, 2.2, 1.9, 2.1, 2.05),
    "prefix": (0.25, 0.26, 0.24, 0.25, 0.27),
    "joint": (0.5, 0.51, 0.47, 0.52, 0.5),
}


def sweep_of(path: Path, **without: Any) -> SyntheticSweep:
    """`without` names arms that ended otherwise than measured."""
    sweep, cells = SyntheticSweep(path), list[Axes]()
    for checkpoint, seconds in TIMES.items():
        for cohort, value in enumerate(seconds):
            shape: Axes = {"task.prompt_length": 256, "task.response_length": 8}
            axes = cell_axes("actor_update", "fp32", "small", "none", seed=cohort, cohort=cohort)
            axes |= {"checkpoint": checkpoint, **shape}
            cells.append(axes)

            def edit(metrics: dict[str, Metric], value: float = value) -> None:
                metrics["actor_update_seconds"] = Metric(value=value, unit="s", scope="actor_update")
                metrics["sharing_token_limit"] = Metric(value=16.5)
                metrics["sharing_flop_limit"] = Metric(value=LIMIT)
                metrics["token_calls"] = Metric(value=3840, unit="row")

            verdict = without.get(checkpoint, Verdict.MEASURED)
            sweep.record(axes, verdict, edit=edit if verdict is Verdict.MEASURED else None)
    sweep.plan([planned(axes) for axes in cells], swept=["checkpoint", "cohort"])
    return sweep


def table_of(sweep: SyntheticSweep, **changes: Any) -> Table:
    results = read_runs(sweep.path).sweeps[0]
    [spec] = [spec for spec in load_tables() if spec.name == "shared_prefix"]
    spec = TableSpec.model_validate(spec.model_dump() | {"sweeps": ()} | changes)
    [table] = build_tables(spec, judged(results.cells, results.path), results.swept)
    return table


def test_the_share_is_the_ratio_and_its_interval_over_the_limit(tmp_path: Path) -> None:
    table = table_of(sweep_of(tmp_path / "shared_prefix"))
    headers = [column.header for column in table.columns]
    by_name = {line.labels[table.names.index("checkpoint")]: line.entries for line in table.lines}
    logs = [math.log(theirs / ours) for ours, theirs in zip(TIMES["prefix"], TIMES["none"], strict=True)]
    middle, half = sum(logs) / 5, stats.t.ppf(0.975, 4) * stats.tstd(logs) / math.sqrt(5)
    ratio = by_name["prefix"][headers.index("× faster than none")]
    share = by_name["prefix"][headers.index("share of the FLOP limit")]
    assert ratio.value == pytest.approx(math.exp(middle))
    assert share.value == pytest.approx(math.exp(middle) / LIMIT)
    assert (share.low, share.high) == pytest.approx((math.exp(middle - half) / LIMIT, math.exp(middle + half) / LIMIT))
    assert (share.n, share.p) == (5, None)
    assert by_name["none"][headers.index("share of the FLOP limit")].state == "baseline"
    assert by_name["joint"][headers.index("FLOP limit")].value == LIMIT
    assert f"{math.exp(middle) / LIMIT:.3f} \\[" in to_markdown(table)
    assert "interval over cohorts, both divided by sharing_flop_limit of the row." in table.caption
    [row] = [row for row in csv.DictReader(io.StringIO(to_csv(table))) if row["checkpoint"] == "prefix"]
    name = "actor_update_seconds baseline/row / sharing_flop_limit, geometric_mean_of_cohorts"
    assert float(row[f"{name} estimate"]) == share.value
    assert f"{name} p" not in row


def test_a_baseline_that_was_not_measured_leaves_its_word(tmp_path: Path) -> None:
    table = table_of(sweep_of(tmp_path / "shared_prefix", none=Verdict.OOM))
    share = [column.header for column in table.columns].index("share of the FLOP limit")
    found = {line.labels[table.names.index("checkpoint")]: line.entries[share] for line in table.lines}
    assert found["none"].state == "oom"
    assert found["prefix"].state == "not_measured"
    assert any("of the baseline" in note for note in found["prefix"].notes)


def test_a_row_without_its_limit_or_with_two_has_no_share(tmp_path: Path) -> None:
    sweep = sweep_of(tmp_path / "shared_prefix")
    column = {
        "metric": "actor_update_seconds",
        "header": "share",
        "estimator": "geometric_mean_of_cohorts",
        "ratio": "baseline/row",
    }
    for per, reason in (("no_such_limit", "no number for"), ("actor_update_seconds", "not one number above 0")):
        table = table_of(sweep, columns=[column | {"per": per}])
        [entry] = [line.entries[0] for line in table.lines if "prefix" in line.labels]
        assert entry.state == "not_measured"
        assert any(reason in note for note in entry.notes)


@pytest.mark.parametrize("change", [{"estimator": "median"}, {"correction": "holm"}])
def test_what_can_be_divided_is_a_ratio_without_a_test(change: dict[str, Any]) -> None:
    column = {"metric": "x", "header": "x", "estimator": "geometric_mean_of_cohorts", "per": "y"} | change
    values = {"name": "t", "experiment": "actor_update", "caption": "T.", "rows": [], "baseline": {"checkpoint": "a"}}
    with pytest.raises(ValueError, match="per goes with an estimator of ratios"):
        TableSpec.model_validate(values | {"columns": [column]})
