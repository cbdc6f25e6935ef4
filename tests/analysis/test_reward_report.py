import csv
import hashlib
import io
import json
import math
import re
from pathlib import Path
from statistics import fmean

import pytest
from matplotlib.text import Text
from synthetic_runs import SyntheticSweep, cell_axes, cell_id, planned, write_quickstart
from synthetic_training import (
    PROBLEMS,
    STEPS,
    answers_after,
    attempt_directory,
    outcome,
    pictures,
    read,
    series,
    training_axes,
    write_answers,
    write_reward_gain,
    write_series,
    write_training,
)

from scalerlt.analysis import build_report
from scalerlt.analysis.figure_spec import TrainingFigure, load_figures
from scalerlt.analysis.figures import pictures as draw_pictures
from scalerlt.analysis.proportions import newcombe_interval
from scalerlt.analysis.reading import CellResult, SweepResults, read_runs
from scalerlt.analysis.table_spec import load_tables
from scalerlt.analysis.tables import Table, build_tables, to_csv, to_markdown
from scalerlt.analysis.training import with_training
from scalerlt.records.record import Metric, Verdict

COUNTS = (70, 30, 10, 90)
TRAINING_FIGURES = [spec for spec in load_figures() if isinstance(spec, TrainingFigure)]


@pytest.fixture
def sweep(tmp_path: Path) -> SyntheticSweep:
    return SyntheticSweep(tmp_path / "trial")


def table(sweep: SweepResults, name: str) -> Table:
    [spec] = [spec for spec in load_tables() if spec.name == name]
    [found] = build_tables(spec, sweep.cells, sweep.swept)
    return found


def parsed(sweep: SweepResults, name: str) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(to_csv(table(sweep, name)))))


def one_cell(sweep: SweepResults) -> CellResult:
    [cell] = sweep.cells
    return cell


def test_the_reward_table_has_a_row_per_arm_with_its_interval_and_bounds(reward_gain: SweepResults) -> None:
    rows = parsed(reward_gain, "reward")
    arms = [(row["rollout"], row["logprob"], row["experiment.rewards"]) for row in rows]
    assert arms == [
        ("dense", "dense", "graded"),
        ("dense", "dense", "shuffled"),
        ("dense", "hybrid", "graded"),
        ("last_exited", "dense", "graded"),
        ("last_exited", "hybrid", "graded"),
    ]
    learnt, control, four_seeds, never, _ = rows
    # gains of 13, 14, 15, 16, 17 points; t(4, 97.5 %) = 2.776445
    half = 2.776445 * math.sqrt(2.5) / math.sqrt(5)
    assert float(learnt["gain, mean (point)"]) == pytest.approx(15)
    assert float(learnt["gain, interval from (point)"]) == pytest.approx(15 - half, abs=1e-5)
    assert float(learnt["gain, interval to (point)"]) == pytest.approx(15 + half, abs=1e-5)
    assert float(learnt["gain, smallest (point)"]) == pytest.approx(13)
    bounds = [100 * newcombe_interval(70, gained, 10, PROBLEMS - 80 - gained)[0] for gained in (36, 38, 40, 42, 44)]
    assert float(learnt["gain_lower, smallest (point)"]) == pytest.approx(min(bounds))
    assert learnt["gain_lower, above 5 (point)"] == f"{sum(bound > 5 for bound in bounds)} of 5" == "5 of 5"
    assert (learnt["accuracy_before, mean (fraction)"], learnt["accuracy, mean (fraction)"]) == ("0.4", "0.55")
    assert (learnt["cohorts measured"], learnt["eval_problems, smallest (problem)"]) == ("5", str(PROBLEMS))
    assert (control["gain, mean (point)"], control["gain_lower, above 5 (point)"]) == ("0.0", "0 of 5")
    assert (
        four_seeds["cohorts measured"],
        four_seeds["gain, interval from (point) state".replace(" (point)", "")],
    ) == (
        "4",
        "not_measured",
    )
    assert four_seeds["gain, mean state"] == "measured (4 of 5)"
    assert "an interval over seeds takes 5 of them, and there are 4" in four_seeds["notes"]
    assert "1 of 5 cohorts oom: MemoryError" in four_seeds["notes"]
    assert {value for name, value in never.items() if name.endswith(" state")} == {"not_run"}


def test_the_reward_table_says_what_its_intervals_do_not_cover() -> None:
    caption = next(spec.caption for spec in load_tables() if spec.name == "reward")
    assert "it is of other seeds on these held-out problems, not of other problems" in " ".join(caption.split())


def test_every_planned_cell_is_in_every_table_and_figure(reward_gain: SweepResults) -> None:
    for spec in load_tables():
        if spec.experiment == ("gsm8k_reward",) and not spec.sweeps:
            assert [line.cohorts for line in table(reward_gain, spec.name).lines] == [
                (5, 5),
                (5, 5),
                (4, 5),
                (0, 5),
                (5, 5),
            ]
    for spec in TRAINING_FIGURES:
        [picture] = pictures(reward_gain, spec.name).values()
        text = " ".join(text.get_text() for text in picture.figure.findobj(Text) if isinstance(text, Text))
        for label in ("graded (n = 5)", "shuffled (n = 5)", "hybrid, graded (n = 4, 1 oom)", "graded (5 not run)"):
            assert label in text, spec.name


def test_mismatch_is_the_mean_over_steps_and_seeds_and_the_largest_of_all(reward_gain: SweepResults) -> None:
    row = parsed(reward_gain, "reward_mismatch")[4]
    runs = [
        [step for step in series(training_axes(seed, "last_exited", "hybrid"), 0) if "reward" in step]
        for seed in range(5)
    ]
    mean = fmean(fmean(step["train_rollout_logprob_abs_diff"] for step in run) for run in runs)
    assert float(row["train_mean/train_rollout_logprob_abs_diff, mean (nat)"]) == pytest.approx(mean)
    largest = row["train_max/train_rollout_logprob_abs_diff_max, largest (nat)"]
    assert float(largest) == pytest.approx(3e-7 * (5 + STEPS))
    assert float(row["train_mean/loop/depth_match_fraction, mean"]) == pytest.approx(1 - 0.035)
    dense = parsed(reward_gain, "reward_mismatch")[0]
    assert dense["train_mean/loop/depth_match_fraction, mean state"] == "unsupported"
    assert "no depth to match" in dense["notes"]


def test_time_shares_add_up_to_the_training_time(reward_gain: SweepResults) -> None:
    row = parsed(reward_gain, "reward_time")[0]
    shares = {
        name: float(value) for name, value in row.items() if name.startswith("time_share/") and "state" not in name
    }
    assert list(shares) == [
        f"time_share/{phase}, mean"
        for phase in ("generate", "reward", "old_log_prob", "update_actor", "publish", "other")
    ]
    assert list(shares.values()) == pytest.approx([0.5, 0.001, 0.049, 0.3, 0.05, 0.1])


def test_the_bound_is_of_the_part_that_counts_across_attempts(sweep: SyntheticSweep) -> None:
    axes = training_axes()
    sweep.plan([planned(axes)])
    write_training(sweep, axes, COUNTS, attempt=2, continues=1)
    second = attempt_directory(sweep, axes, 2)
    first = attempt_directory(sweep, axes, 1)
    rows = series(axes, 0.1)
    sweep.record(axes, Verdict.PREEMPTED, attempt=1)
    write_series(first, rows[:6])
    write_series(second, rows[5:])
    (second / "samples/eval-000000.jsonl").rename(second / "eval")
    (first / "samples").mkdir()
    (second / "eval").rename(first / "samples/eval-000000.jsonl")
    write_answers(first, STEPS, [True] * PROBLEMS)  # of steps that the run was set back behind
    found = read(sweep)
    metrics = one_cell(found).metrics
    assert metrics["gain_lower"].value == pytest.approx(100 * newcombe_interval(*COUNTS)[0])
    assert "method 10" in (metrics["gain_lower"].method or "")
    name = cell_id(axes)
    assert found.sources == [
        f"{name}/attempt-001/samples/eval-000000.jsonl",
        f"{name}/attempt-001/series.jsonl",
        f"{name}/attempt-002/samples/eval-{STEPS:06d}.jsonl",
        f"{name}/attempt-002/series.jsonl",
    ]


def test_no_bound_without_the_same_problems_before_and_after(sweep: SyntheticSweep) -> None:
    axes = training_axes()
    sweep.plan([planned(axes)])
    attempt = write_training(sweep, axes, COUNTS)

    def refused() -> str:
        metric = one_cell(read(sweep)).metrics["gain_lower"]
        assert metric.status == "not_measured"
        assert "gain_lower" not in table(read(sweep), "reward").names
        return metric.reason or ""

    last = attempt / f"samples/eval-{STEPS:06d}.jsonl"
    write_answers(attempt, STEPS, answers_after(COUNTS)[:-1])
    assert refused() == "the evaluations before and after training are not of the same problems"
    write_answers(attempt, STEPS, answers_after((70, 31, 10, 89)))
    assert refused() == "the samples show a gain of 10.5 points, not 10"
    once = last.read_text()
    last.write_text(once + once.splitlines(keepends=True)[-1])
    assert refused() == "a problem has more than one answer"
    last.write_text(once)
    last.write_text(last.read_text()[:-40])
    assert refused().startswith(f"eval-{STEPS:06d}.jsonl, line 201: not a sample")
    last.unlink()
    assert refused() == f"there are no samples of the evaluation at step {STEPS}"
    (attempt / "samples/eval-000000.jsonl").unlink()
    assert refused() == f"there are no samples of the evaluation at step 0 and {STEPS}"
    text = to_markdown(table(read(sweep), "reward"))
    assert "not_measured: there are no samples of the evaluation at step" in text


def test_a_nan_in_a_series_is_not_hidden_and_a_missing_figure_is_counted(sweep: SyntheticSweep) -> None:
    axes = training_axes()
    sweep.plan([planned(axes)])
    attempt = write_training(sweep, axes, COUNTS)
    rows = series(axes, 0.1)
    rows[1]["rollout_corr/kl"] = math.nan
    del rows[2]["actor/pg_clipfrac"]
    write_series(attempt, rows)
    metrics = one_cell(read(sweep)).metrics
    assert math.isnan(metrics["train_mean/rollout_corr/kl"].value)  # type: ignore[arg-type]
    assert metrics["train_mean/actor/pg_clipfrac"].method == "5 of 6 training steps"
    assert metrics["train_mean/actor/pg_clipfrac"].value == pytest.approx(1e-7)


def evaluation(sweep: SyntheticSweep, rollout: str, accuracy: float) -> None:
    axes = {**cell_axes("gsm8k_eval", "fp32", "small"), "rollout": rollout, "rollout.schedule": rollout}
    if rollout != "dense":
        axes["rollout.exit_threshold"] = 0.5
    values = {"accuracy": accuracy, "accuracy_standard_error": 0.015, "format_rate": 0.9, "problems": 1000}
    metrics = {name: Metric(value=value) for name, value in values.items()}
    if rollout != "dense":
        metrics["accuracy/full_depth"] = Metric(value=0.5)
    sweep.plan([planned(axes)])
    sweep.record(axes, edit=lambda found: found.update(metrics))


def test_an_evaluation_is_shown_at_the_schedule_and_at_full_depth(sweep: SyntheticSweep) -> None:
    evaluation(sweep, "dense", 0.47)
    evaluation(sweep, "last_exited", 0.44)
    dense, deferred = parsed(read(sweep), "evaluation")
    assert (dense["accuracy"], dense["accuracy/full_depth"]) == ("0.47", "0.47")
    assert "note: the rollout's own schedule is full depth" in dense["notes"]
    assert (deferred["rollout.exit_threshold"], deferred["accuracy"], deferred["accuracy/full_depth"]) == (
        "0.5",
        "0.44",
        "0.5",
    )
    assert deferred["accuracy_standard_error/full_depth state"] == "not_measured"
    assert (dense["problems"], dense["accuracy_standard_error"]) == ("1000", "0.015")


def test_the_report_has_them_and_its_manifest_names_what_they_are_made_of(tmp_path: Path) -> None:
    sweep = write_reward_gain(tmp_path / "runs" / "reward_gain", seeds=1)
    build_report(sweep.path, tmp_path / "one")
    build_report(sweep.path, tmp_path / "two")
    names = sorted(str(path.relative_to(tmp_path / "one")) for path in (tmp_path / "one").rglob("*.*"))
    for name in names:
        assert (tmp_path / "one" / name).read_bytes() == (tmp_path / "two" / name).read_bytes(), name
    for name in ("reward", "reward_mismatch", "reward_time"):
        assert f"tables/{name}.md" in names
    for spec in TRAINING_FIGURES:
        assert f"figures/{spec.name}.pdf" in names
    page = (tmp_path / "one/report.md").read_text(encoding="utf-8")
    assert re.search(r"\| dense \| dense \| grpo \| shuffled \| 1 \|", page)
    manifest = json.loads((tmp_path / "one/manifest.json").read_text())
    sources = manifest["series_and_samples"]
    for name, digest in sources.items():
        assert hashlib.sha256((sweep.path / name).read_bytes()).hexdigest() == digest
    assert len(sources) == 4 + 2 * 3  # the series of every attempt, and both evaluations of every measured one


def test_the_report_names_lines_that_it_passed_over(sweep: SyntheticSweep, tmp_path: Path) -> None:
    axes = training_axes()
    sweep.plan([planned(axes)])
    attempt = sweep.record(axes, Verdict.FAILED).parent
    (attempt / "series.jsonl").write_text('{"step": 0, "accuracy": 0.5}\nnonsense\n{"step": 1, "rew')
    [problem] = build_report(sweep.path, tmp_path / "out").problems
    assert problem.endswith("attempt-001/series.jsonl: line 2 is not a row of a series: 'nonsense'")
    page = (tmp_path / "out/report.md").read_text(encoding="utf-8")
    assert f"- passed over: {problem.removeprefix('trial/')}" in page
    assert "| dense | dense | grpo | graded | 0 of 1 | failed" in page


def test_a_sweep_without_training_knows_nothing_of_it(tmp_path: Path) -> None:
    sweep = write_quickstart(tmp_path / "quickstart")
    read_again = with_training(read_runs(sweep.path).sweeps[0])
    assert read_again == read_runs(sweep.path).sweeps[0]
    assert read_again.sources == []
    for spec in load_tables():
        if spec.experiment in (("gsm8k_reward",), ("gsm8k_eval",)):
            assert build_tables(spec, read_again.cells, read_again.swept) == []
    assert draw_pictures(TRAINING_FIGURES, read_again.cells, read_again.swept) == []


def test_a_cell_that_left_nothing_and_one_that_only_began_are_in_the_tables(sweep: SyntheticSweep) -> None:
    cells = [training_axes(), training_axes(1)]
    sweep.plan([planned(axes) for axes in cells])
    sweep.record(cells[0], edit=lambda metrics: metrics.update(outcome(cells[0], COUNTS, series(cells[0], 0.1))))
    found = read(sweep)
    text = to_markdown(table(found, "reward_mismatch"))
    assert "not_measured" in text
    assert "not_run" in text
    assert pictures(found, "reward") == pictures(found, "exit_depths") == pictures(found, "time_by_phase") == {}
    assert table(found, "reward").lines[0].entries[2].value == pytest.approx(10.0)
