"""The tables of `rollout_vs_learner`: an arm that loses in the whole step is seen to lose."""

import csv
import io
from pathlib import Path

import pytest
from synthetic_runs import Axes, SyntheticSweep, planned
from synthetic_training import STEPS, outcome, read, series, training_axes, write_series

from scalerlt.analysis.reading import SweepResults
from scalerlt.analysis.table_spec import load_tables
from scalerlt.analysis.tables import Table, build_tables, to_csv, to_markdown
from scalerlt.records.record import Metric, Verdict

NOISE = (1.0, 1.04, 0.97, 1.01, 0.99)
ARMS: dict[str, tuple[Axes, dict[str, float]]] = {
    "dense": ({"rollout": "dense", "logprob": "dense"}, {"generate": 3.0, "update_actor": 2.0}),
    "deferred": ({"rollout": "last_exited", "logprob": "dense"}, {"generate": 1.5, "update_actor": 2.0}),
    "engine": (
        {"rollout": "last_exited", "logprob": "hybrid", "logprob.replay": "engine"},
        {"generate": 1.5, "replay": 1.75, "update_actor": 2.0},
    ),
    "packed": ({"rollout": "last_exited", "logprob": "hybrid"}, {"generate": 1.5, "update_actor": 2.4}),
    "tis": (
        {"rollout": "last_exited", "logprob": "dense", "logprob.old": "dense", "correction": "tis"},
        {"generate": 1.5, "old_log_prob": 0.5, "update_actor": 2.0},
    ),
    "no baseline": (
        {"rollout": "last_exited", "logprob": "hybrid", "experiment.lag": 4},
        {"generate": 1.5, "update_actor": 2.4},
    ),
}


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> SweepResults:
    return read(written(tmp_path_factory.mktemp("runs") / "rollout_vs_learner"))


def written(path: Path) -> SyntheticSweep:
    sweep, cells = SyntheticSweep(path), list[Axes]()
    for name, (arm, phases) in ARMS.items():
        for seed, noise in enumerate(NOISE):
            axes = training_axes(seed) | {"cohort": seed} | arm | {"rollout.schedule": arm["rollout"]}
            cells.append(axes)
            if (name, seed) == ("tis", 0):
                sweep.record(axes, Verdict.OOM, reason="MemoryError")
                continue
            rows = series(axes, 0.2)
            for row in rows:
                if "reward" in row:
                    row["weight_lag"] = min(4, row["step"] - 1) if "experiment.lag" in arm else 0
                    row["rollout_corr/F_2"] = 0.01 * row["step"]
                    row["first_update/actor/ratio_deviation_max"] = 1e-7 * row["step"]

            def edit(metrics: dict[str, Metric], axes: Axes = axes, phases=phases, noise: float = noise) -> None:
                metrics.update(outcome(axes, (70, 40, 10, 80), series(axes, 0.2)))
                spent = {**phases, "other": 0.25}
                metrics["rl_step_seconds"] = Metric(value=noise * sum(spent.values()), unit="s", scope="rl_step")
                for phase, seconds in spent.items():
                    metrics[f"rl_step_seconds/{phase}"] = Metric(value=noise * seconds, unit="s", scope="rl_step")
                metrics["observing_seconds/depth_match"] = Metric(value=9.0, unit="s", scope="observing")
                if axes["rollout"] != "dense":
                    metrics["accuracy/full_depth"] = Metric(value=0.5, unit="fraction", n=200)

            attempt = sweep.record(axes, edit=edit).parent
            write_series(attempt, rows)
    sweep.plan([planned(axes) for axes in cells], swept=["rollout", "logprob", "seed"])
    return sweep


def table(found: SweepResults, name: str) -> Table:
    [spec] = [spec for spec in load_tables() if spec.name == name]
    [built] = build_tables(spec, found.cells, found.swept)
    return built


def rows(found: SweepResults, name: str) -> dict[str, dict[str, str]]:
    listed = list(csv.DictReader(io.StringIO(to_csv(table(found, name)))))
    named = {}
    for arm, (axes, _) in ARMS.items():
        keys = ("rollout", "logprob", "logprob.replay", "logprob.old", "correction", "experiment.lag")
        [named[arm]] = [row for row in listed if all(row[key] == str(axes.get(key, "")) for key in keys)]
    return named


def ratio(row: dict[str, str], part: str = "estimate") -> str:
    return row[f"rl_step_seconds row/baseline, geometric_mean_of_cohorts {part}"]


def test_the_whole_step_is_set_against_the_dense_learner_under_the_same_rollout(found: SweepResults) -> None:
    arms = rows(found, "rollout_vs_learner")
    assert float(ratio(arms["engine"])) == pytest.approx(5.5 / 3.75), "it loses, and its ratio says so"
    assert float(ratio(arms["packed"])) == pytest.approx(4.15 / 3.75)
    assert (ratio(arms["dense"], "state"), ratio(arms["deferred"], "state")) == ("baseline", "baseline")
    assert ratio(arms["no baseline"], "state") == "not_measured", "a lag is compared with the same lag"
    assert ratio(arms["tis"], "n") == "4"
    assert float(ratio(arms["tis"])) == pytest.approx(4.25 / 3.75)


def test_the_phases_are_set_against_a_rollout_that_defers_nothing(found: SweepResults) -> None:
    arms = rows(found, "rl_step_phases")
    assert float(ratio(arms["deferred"])) == pytest.approx(3.75 / 5.25)
    assert float(ratio(arms["engine"])) == pytest.approx(5.5 / 5.25), "what it saves in generating, it replays again"
    assert ratio(arms["dense"], "state") == "baseline"
    headers = [column.header for column in table(found, "rl_step_phases").columns]
    phases = ["generate", "old_log_prob", "replay", "update_actor", "other"]
    assert headers[4:] == [*phases, "observing, depth_match"]
    assert float(arms["engine"]["rl_step_seconds/replay (s)"]) == pytest.approx(1.75)
    assert arms["packed"]["rl_step_seconds/replay state"] == "not_measured"


def test_what_both_arms_of_a_seed_suffer_is_not_in_the_interval(found: SweepResults) -> None:
    arms = rows(found, "rollout_vs_learner")
    assert float(ratio(arms["packed"], "low")) == pytest.approx(float(ratio(arms["packed"], "high")))


def test_mismatch_lag_and_accuracy_stand_beside_it(found: SweepResults) -> None:
    arms = rows(found, "rollout_vs_learner")
    assert float(arms["no baseline"]["train_mean/weight_lag, mean"]) == pytest.approx((0 + 1 + 2 + 3 + 4 + 4) / STEPS)
    assert float(arms["engine"]["train_mean/weight_lag, mean"]) == 0
    assert float(arms["engine"]["train_mean/rollout_corr/F_2, mean"]) == pytest.approx(0.035)
    name = "train_max/first_update/actor/ratio_deviation_max, largest"
    assert float(arms["packed"][name]) == pytest.approx(6e-7)
    full_depth = "accuracy/full_depth, mean (fraction)"
    assert float(arms["deferred"][full_depth]) == 0.5
    assert arms["dense"][full_depth] == arms["dense"]["accuracy, mean (fraction)"]
    assert "the rollout's own schedule is full depth" in arms["dense"]["notes"]
    text = to_markdown(table(found, "rollout_vs_learner"))
    assert "1 of 5 cohorts oom: MemoryError" in text


def test_only_this_sweep_has_the_tables(tmp_path: Path) -> None:
    sweep = SyntheticSweep(tmp_path / "another")
    sweep.plan([planned(training_axes())])
    for name in ("rollout_vs_learner", "rl_step_phases"):
        [spec] = [spec for spec in load_tables() if spec.name == name]
        assert build_tables(spec, read(sweep).cells, []) == []
