import csv
import io
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from scipy import stats
from synthetic_runs import Axes, SyntheticSweep, cell_axes, planned
from synthetic_training import write_answers

from scalerlt.analysis.accuracy import paired_accuracy
from scalerlt.analysis.bootstrap import bootstrap_interval
from scalerlt.analysis.reading import read_runs
from scalerlt.analysis.table_spec import TableSpec, load_tables
from scalerlt.analysis.tables import Table, build_tables, to_csv, to_markdown
from scalerlt.analysis.training import with_training
from scalerlt.errors import UserError
from scalerlt.records.record import Metric, Verdict

T4 = stats.t.ppf(0.975, 4)


def spec(column: Mapping[str, Any], **more: Any) -> TableSpec:
    return TableSpec.model_validate(
        {
            "name": "compared",
            "experiment": "actor_update",
            "caption": "Compared.",
            "rows": ["checkpoint"],
            "baseline": {"checkpoint": "none"},
            "columns": [{"metric": "seconds", "header": "ratio", "estimator": "geometric_mean_of_cohorts", **column}],
            **more,
        }
    )


class Arms:
    """A sweep of checkpoint schedules with given seconds per cohort."""

    def __init__(self, path: Path) -> None:
        self.sweep = SyntheticSweep(path)
        self.cells: list[Axes] = []

    def add(self, checkpoint: str, cohort: int, value: Any, host: str = "node-1", **more: Any) -> None:
        axes = cell_axes("actor_update", "fp32", "small", checkpoint, seed=cohort, cohort=cohort, **more)
        self.cells.append(axes)
        environment = {"host": host}
        if isinstance(value, Verdict):
            self.sweep.record(axes, value, environment=environment, reason="so it went")
        elif value is not None:
            metric = value if isinstance(value, Metric) else Metric(value=value, unit="s")
            self.sweep.record(axes, environment=environment, edit=lambda metrics: metrics.update(seconds=metric))

    def series(self, **values: Sequence[float]) -> "Arms":
        for checkpoint, found in values.items():
            for cohort, value in enumerate(found):
                self.add(checkpoint, cohort, value)
        return self

    def table(self, column: Mapping[str, Any] | None = None, **more: Any) -> Table:
        self.sweep.plan([planned(axes) for axes in self.cells], swept=["checkpoint", "cohort"])
        results = read_runs(self.sweep.path).sweeps[0]
        [table] = build_tables(spec(column or {}, **more), results.cells, results.swept)
        return table


@pytest.fixture
def arms(tmp_path: Path) -> Arms:
    return Arms(tmp_path / "trial")


NONE, LAYER = (1.0, 1.1, 0.9, 1.05, 1.2), (1.3, 1.5, 1.15, 1.4, 1.5)


def test_a_ratio_is_paired_by_cohort_with_its_interval_on_the_logarithm(arms: Arms) -> None:
    table = arms.series(none=NONE, layer=LAYER).table()
    logs = [math.log(ours / theirs) for ours, theirs in zip(LAYER, NONE, strict=True)]
    middle, half = sum(logs) / 5, T4 * stats.tstd(logs) / math.sqrt(5)
    place = table.lines[1].entries[0]
    assert place.value == pytest.approx(math.exp(middle))
    assert (place.low, place.high) == pytest.approx((math.exp(middle - half), math.exp(middle + half)))
    assert (place.n, place.estimator, place.planned) == (5, "geometric_mean_of_cohorts", 5)
    assert f"{math.exp(middle):.2f} \\[{math.exp(middle - half):.2f}, {math.exp(middle + half):.2f}\\], n=5" in (
        to_markdown(table)
    )
    assert len(place.sources) == 10
    row = list(csv.DictReader(io.StringIO(to_csv(table))))[1]
    name = "seconds row/baseline, geometric_mean_of_cohorts"
    assert [float(row[f"{name} {part}"]) for part in ("estimate", "low", "high")] == [
        place.value,
        place.low,
        place.high,
    ]
    assert (row[f"{name} n"], row[f"{name} estimator"], row[f"{name} state"]) == (
        "5",
        "geometric_mean_of_cohorts",
        "measured",
    )


def test_the_other_way_round_turns_estimate_and_interval_over(arms: Arms) -> None:
    table = arms.series(none=NONE, layer=LAYER).table()
    turned = arms.table({"ratio": "baseline/row"})
    one, other = table.lines[1].entries[0], turned.lines[1].entries[0]
    assert one.value is not None and other.value is not None
    assert other.value == pytest.approx(1 / float(one.value))
    assert (other.low, other.high) == pytest.approx((1 / one.high, 1 / one.low))  # type: ignore[operator]
    assert "seconds baseline/row, geometric_mean_of_cohorts low" in to_csv(turned)


def test_the_estimator_is_the_one_that_the_column_names(arms: Arms) -> None:
    table = arms.series(none=NONE, layer=LAYER).table({"estimator": "matched_pair_mean"})
    place = table.lines[1].entries[0]
    assert place.value == pytest.approx(sum(a / b for a, b in zip(LAYER, NONE, strict=True)) / 5)
    assert place.estimator == "matched_pair_mean"


def test_the_caption_says_how_an_estimate_was_made(arms: Arms) -> None:
    table = arms.series(none=NONE, layer=LAYER).table()
    assert table.caption == (
        "Compared. Column ratio: ratio to checkpoint=none, paired by cohort: geometric mean of the cohorts' ratios "
        "with its 95 % Student t interval over cohorts."
    )
    assert "ratio of checkpoint=none" in arms.table({"ratio": "baseline/row"}).caption
    assert arms.table({"correction": "holm"}).caption.endswith("; p-values corrected by Holm's method.")
    assert arms.table({"estimator": "median"}, baseline=None).caption == "Compared."


def test_the_baseline_says_that_it_is_one(arms: Arms) -> None:
    table = arms.series(none=NONE, layer=LAYER).table()
    assert table.lines[0].entries[0].state == "baseline"
    assert "| none | 5 | baseline [1] | cpu |" in to_markdown(table)
    assert "[1] baseline: checkpoint=none is what the other rows are compared with" in to_markdown(table)


def test_one_cohort_has_no_interval(arms: Arms) -> None:
    table = arms.series(none=[1.0], layer=[1.5]).table()
    place = table.lines[1].entries[0]
    assert (place.value, place.low, place.high, place.n, place.p) == (1.5, None, None, 1, None)
    assert "| layer | 1 | 1.50, n=1 | cpu |" in to_markdown(table)


def test_blocks_are_averaged_within_their_cohort(arms: Arms) -> None:
    for cohort in range(3):
        for block, (seconds, factor) in enumerate(((1.0, 2.0), (3.0, 8.0))):
            arms.add("none", cohort, seconds * (1 + cohort), block=block)
            arms.add("layer", cohort, factor * seconds * (1 + cohort) * (1 + 0.01 * cohort), block=block)
    table = arms.table({"estimator": "matched_pair_mean"})
    layer = table.lines[1]
    assert layer.cohorts == (3, 3)
    assert layer.entries[0].n == 3
    assert layer.entries[0].value == pytest.approx((2 + 8) / 2 * (1 + 1.01 + 1.02) / 3)
    medians = arms.table({"estimator": "median"}, baseline=None).lines[1]
    assert medians.entries[0].value == pytest.approx((2 + 24) / 2 * 2 * 1.01)


def test_cohorts_on_two_hosts_are_left_out_and_said(arms: Arms) -> None:
    for cohort, (ours, theirs) in enumerate(zip(LAYER, NONE, strict=True)):
        arms.add("none", cohort, theirs)
        arms.add("layer", cohort, ours, host="node-2" if cohort == 0 else "node-1")
    table = arms.table()
    place = table.lines[1].entries[0]
    logs = [math.log(ours / theirs) for ours, theirs in zip(LAYER[1:], NONE[1:], strict=True)]
    assert place.value == pytest.approx(math.exp(sum(logs) / 4))
    assert place.n == 4
    assert "in 1 of 5 cohorts row and baseline ran on different hosts (node-1, node-2): left out" in place.notes
    assert "measured (4 of 5)" in to_csv(table)


def test_a_ratio_between_hosts_is_unpaired_and_has_no_interval(arms: Arms) -> None:
    for cohort, (ours, theirs) in enumerate(zip(LAYER, NONE, strict=True)):
        arms.add("none", cohort, theirs)
        arms.add("layer", cohort, ours, host="node-2")
    table = arms.table()
    place = table.lines[1].entries[0]
    assert place.value is not None
    assert (place.low, place.high, place.p, place.n) == (None, None, None, 5)
    assert place.estimator == "geometric_mean_of_cohorts, unpaired"
    assert place.notes == (
        "in 5 of 5 cohorts row and baseline ran on different hosts (node-1, node-2): "
        "so the ratio is unpaired and has no interval",
    )


def test_what_is_missing_is_said(arms: Arms) -> None:
    for cohort in range(3):
        arms.add("none", cohort, Verdict.OOM if cohort == 2 else 1.0)
        arms.add("layer", cohort, Verdict.KILLED if cohort == 0 else 1.5)
        arms.add("loop", cohort, None)
    table = arms.table()
    by_name = {line.labels[0]: line.entries[0] for line in table.lines}
    assert by_name["layer"].n == 1
    assert "1 of 2 cohorts: the baseline has no number there" in by_name["layer"].notes
    assert by_name["loop"].state == "not_run"


def test_a_baseline_without_a_number_and_one_that_is_not_there(arms: Arms) -> None:
    arms.add("none", 0, Verdict.OOM)
    arms.add("layer", 0, 1.5)
    table = arms.table()
    assert [line.entries[0].state for line in table.lines] == ["oom", "not_measured"]
    assert table.lines[1].entries[0].notes == ("not_measured: of the baseline, oom: so it went",)
    elsewhere = arms.table(baseline={"checkpoint": "nome"})
    assert elsewhere.lines[1].entries[0].notes == (
        "not_measured: no cell of this table has checkpoint=nome and is otherwise as this row",
    )
    zero = Arms(arms.sweep.path.parent / "zero").series(none=[0.0], layer=[1.5]).table()
    assert zero.lines[1].entries[0].state == "not_measured"
    assert zero.lines[1].entries[0].notes


def test_a_row_is_compared_only_with_what_differs_in_the_arm_alone(arms: Arms) -> None:
    for precision, factor in (("fp32", 1.0), ("bf16", 10.0)):
        for checkpoint, seconds in (("none", 1.0), ("layer", 2.0)):
            axes = {**cell_axes("actor_update", precision, "small", checkpoint), "checkpoint.segments": len(checkpoint)}
            arms.cells.append(axes)
            value = Metric(value=factor * seconds, unit="s")
            arms.sweep.record(axes, edit=lambda metrics, value=value: metrics.update(seconds=value))
    table = arms.table(rows=["precision", "checkpoint"])
    assert [place.value for line in table.lines for place in line.entries if place.value] == pytest.approx([2.0, 2.0])


def test_without_another_arm_there_is_no_comparing_column(arms: Arms) -> None:
    columns = [{"metric": "loss", "header": "loss"}, dict(spec({}).columns[0])]
    table = arms.series(none=NONE).table(columns=columns)
    assert [column.header for column in table.columns] == ["loss"]


def test_two_units_are_an_error_that_names_both(arms: Arms) -> None:
    arms.add("none", 0, 1.0)
    arms.add("layer", 0, Metric(value=1500.0, unit="ms"))
    with pytest.raises(UserError, match=r"seconds is in 'ms' in cell .* and in 's' in cell"):
        arms.table()


def test_holm_corrects_over_the_rows_of_a_column(arms: Arms) -> None:
    arms.series(none=NONE, layer=LAYER, loop=[1.02, 1.08, 0.95, 1.05, 1.19])
    plain, corrected = arms.table(), arms.table({"correction": "holm"})
    before = {line.labels[0]: line.entries[0].p for line in plain.lines}
    after = {line.labels[0]: line.entries[0].p for line in corrected.lines}
    small, large = before["layer"], before["loop"]
    assert small is not None and large is not None and small < large
    assert (after["none"], after["layer"], after["loop"]) == (None, 2 * small, max(2 * small, large))
    assert ", p=" in to_markdown(corrected)
    assert ", p=" not in to_markdown(plain)
    assert "geometric_mean_of_cohorts p, holm" in to_csv(corrected)


def test_the_interquartile_mean_has_its_bootstrap_interval(arms: Arms) -> None:
    column = {"estimator": "interquartile_mean", "unit": "ms", "over": "seed"}
    table = arms.series(layer=LAYER).table(column, baseline=None)
    expected = bootstrap_interval([LAYER])
    place = table.lines[0].entries[0]
    assert (place.value, place.low, place.high, place.n) == (expected.estimate, expected.low, expected.high, 5)
    assert f"{1000 * float(expected.estimate or 0):,.0f} \\[" in to_markdown(table)
    assert "seconds, interquartile_mean low (s)" in to_csv(table)


def evaluation(sweep: SyntheticSweep, rollout: str, right: Sequence[bool], cohort: int = 0, **more: Any) -> Axes:
    axes = {**cell_axes("gsm8k_eval", "fp32", "small", cohort=cohort), "rollout": rollout, "rollout.schedule": rollout}
    accuracy = Metric(value=sum(right) / len(right), unit="fraction", n=len(right))
    record = sweep.record(axes, edit=lambda metrics: metrics.update(accuracy=accuracy))
    write_answers(record.parent, 0, right, **more)
    return axes


def compared(sweep: SyntheticSweep, cells: Sequence[Axes]) -> tuple[Table, dict[str, str]]:
    sweep.plan([planned(axes) for axes in cells], swept=["rollout"])
    [found] = [spec for spec in load_tables() if spec.name == "evaluation"]
    results = with_training(read_runs(sweep.path).sweeps[0])
    [table] = build_tables(found, results.cells, results.swept)
    return table, list(csv.DictReader(io.StringIO(to_csv(table))))[-1]


def test_accuracy_is_compared_problem_by_problem_with_a_verdict(tmp_path: Path) -> None:
    sweep = SyntheticSweep(tmp_path / "trial")
    dense = [True] * 80 + [False] * 48
    deferred = [False] * 21 + [True] * 59 + [False] * 48
    cells = [evaluation(sweep, "dense", dense), evaluation(sweep, "last_exited", deferred)]
    table, row = compared(sweep, cells)
    expected = paired_accuracy(dense, deferred)
    name = "accuracy, paired_accuracy"
    assert float(row[f"{name} estimate (point)"]) == pytest.approx(100 * (59 - 80) / 128)
    assert float(row[f"{name} low (point)"]) == pytest.approx(100 * float(expected.low or 0))
    assert (row[f"{name} n"], row[f"{name} verdict"], float(row[f"{name} p"])) == ("128", "DEGRADED", expected.p)
    text = to_markdown(table)
    assert "n=128, DEGRADED [" in text
    assert "DEGRADED: margin " in text
    names = [
        f"{source.split('/')[0]}/attempt-001/samples/eval-000000.jsonl" for source in table.lines[1].entries[0].sources
    ]
    assert names[0] in with_training(read_runs(sweep.path).sweeps[0]).sources


def test_accuracies_of_other_problems_or_without_samples_are_not_compared(tmp_path: Path) -> None:
    sweep = SyntheticSweep(tmp_path / "trial")
    cells = [evaluation(sweep, "dense", [True] * 8), evaluation(sweep, "last_exited", [True] * 7)]
    _, row = compared(sweep, cells)
    assert row["accuracy, paired_accuracy state"] == "not_measured"
    assert "did not answer the same problems" in row["notes"]
    for file in sweep.path.glob("*/*/samples/*"):
        file.unlink()
    _, row = compared(sweep, cells)
    assert "no cohort has the samples both of its own answers and of the baseline's" in row["notes"]


def test_several_answers_to_a_problem_are_clustered(tmp_path: Path) -> None:
    sweep = SyntheticSweep(tmp_path / "trial")
    cells = [
        evaluation(sweep, rollout, [(number * (3 + cohort) + shift) % 4 > 0 for number in range(40)], cohort)
        for rollout, shift in (("dense", 0), ("last_exited", 1))
        for cohort in range(2)
    ]
    _, row = compared(sweep, cells)
    assert row["accuracy, paired_accuracy n"] == "40"
    assert row["accuracy, paired_accuracy verdict"] in ("BETTER", "NON_INFERIOR", "UNCERTAIN", "DEGRADED")
