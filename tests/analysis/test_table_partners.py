"""With which cell a cell is compared, and what is said where the two do not go together."""

import csv
import io
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from synthetic_runs import Axes, SyntheticSweep, cell_axes, planned
from synthetic_training import write_answers

from scalerlt.analysis.reading import read_runs
from scalerlt.analysis.rows import Entry
from scalerlt.analysis.table_spec import TableSpec
from scalerlt.analysis.tables import Table, build_tables, to_csv
from scalerlt.analysis.training import with_training
from scalerlt.records.record import Metric, Verdict

RATIO = {"metric": "speed", "header": "ratio", "estimator": "geometric_mean_of_cohorts"}
DIFFERENCE = {"metric": "accuracy", "header": "difference", "estimator": "paired_accuracy"}
DETERMINED = {"dense": "all loops", "last_exited": "exits", "first_exited": "exits"}
"""What the option of `rollout` says about a key below it."""


class Rollouts:
    """A sweep of rollouts."""

    def __init__(self, path: Path) -> None:
        self.sweep = SyntheticSweep(path)
        self.cells: list[Axes] = []

    def add(
        self, rollout: str, speed: float | Verdict, cohort: int = 0, below: Mapping[str, Any] | None = None, **more: Any
    ) -> Path:
        axes = cell_axes("gsm8k_eval", "fp32", "small", seed=cohort, cohort=cohort)
        axes |= {"rollout": rollout, "rollout.schedule": rollout, "rollout.reads": DETERMINED[rollout]}
        axes |= {f"rollout.{key}": value for key, value in (below or {}).items()}
        if (block := more.pop("block", None)) is not None:
            axes["block"] = block
        self.cells.append(axes)
        if isinstance(speed, Verdict):
            return self.sweep.record(axes, speed, reason="so it went", **more)
        metrics = {"speed": Metric(value=speed, unit="token/s"), "accuracy": Metric(value=0.5, unit="fraction")}
        return self.sweep.record(axes, edit=lambda found: found.update(metrics), **more)

    def table(self, *columns: Mapping[str, Any], baseline: Mapping[str, Any] | None = None) -> Table:
        self.sweep.plan([planned(axes) for axes in self.cells], swept=["rollout"])
        results = with_training(read_runs(self.sweep.path).sweeps[0])
        spec = {"name": "t", "experiment": "gsm8k_eval", "caption": "C.", "rows": ["rollout"]}
        if any(column["estimator"] in ("paired_accuracy", RATIO["estimator"]) for column in columns or (RATIO,)):
            spec["baseline"] = dict(baseline or {"rollout": "dense"})
        [table] = build_tables(
            TableSpec.model_validate({**spec, "columns": list(columns or (RATIO,))}), results.cells, results.swept
        )
        return table

    def entries(self, *columns: Mapping[str, Any], **more: Any) -> dict[tuple[Any, ...], Entry]:
        return {line.labels: line.entries[0] for line in self.table(*columns, **more).lines}


@pytest.fixture
def rollouts(tmp_path: Path) -> Rollouts:
    return Rollouts(tmp_path / "trial")


@pytest.mark.parametrize("lengths", [(32, 64), (64, 32)])
def test_what_is_swept_below_the_arm_has_to_agree(rollouts: Rollouts, lengths: tuple[int, int]) -> None:
    speed = {32: 100.0, 64: 10.0}
    for cohort in range(3):
        for length in lengths:
            for rollout, factor in (("dense", 1), ("last_exited", 2)):
                value = factor * speed[length] * (1 + cohort / 10)
                rollouts.add(rollout, value, cohort, {"max_new_tokens": length})
    found = rollouts.entries()
    assert [(key, found[key].value) for key in found if key[0] == "last_exited"] == [
        (("last_exited", 32), pytest.approx(2)),
        (("last_exited", 64), pytest.approx(2)),
    ]


def test_the_accuracy_too_is_that_of_the_same_length(rollouts: Rollouts) -> None:
    for length, right in ((32, 20), (256, 80)):
        for rollout in ("dense", "last_exited"):
            record = rollouts.add(rollout, 1.0, below={"max_new_tokens": length})
            write_answers(record.parent, 0, [True] * right + [False] * (100 - right))
    found = rollouts.entries(DIFFERENCE)
    assert [found["last_exited", length].value for length in (32, 256)] == [0, 0]


def test_what_agrees_with_no_baseline_has_none(rollouts: Rollouts) -> None:
    rollouts.add("dense", 1.0, below={"max_new_tokens": 32})
    rollouts.add("last_exited", 2.0, below={"max_new_tokens": 32})
    rollouts.add("last_exited", 3.0, below={"max_new_tokens": 64})
    found = rollouts.entries()
    assert found["last_exited", 32].value == pytest.approx(2)
    assert found["last_exited", 64].notes == (
        "not_measured: no cell of this table has rollout=dense and is otherwise as this row",
    )


def test_what_the_baseline_does_not_have_may_be_swept(rollouts: Rollouts) -> None:
    rollouts.add("dense", 1.0)
    for threshold, speed in ((0.5, 4.0), (0.9, 3.0)):
        rollouts.add("last_exited", speed, below={"exit_threshold": threshold})
    rollouts.add("first_exited", 5.0, below={"exit_threshold": 0.5})
    found = rollouts.entries()
    assert {key: place.value for key, place in found.items() if place.value} == {
        ("last_exited", 0.5): pytest.approx(4),
        ("last_exited", 0.9): pytest.approx(3),
        ("first_exited", 0.5): pytest.approx(5),
    }


@pytest.mark.parametrize("column", [RATIO, DIFFERENCE])
def test_two_candidates_for_a_partner_are_none(rollouts: Rollouts, column: Mapping[str, Any]) -> None:
    rollouts.add("dense", 1.0)
    for threshold, speed in ((0.5, 4.0), (0.9, 3.0)):
        rollouts.add("last_exited", speed, below={"exit_threshold": threshold})
    for baseline, expected in (({"rollout": "last_exited"}, "not_measured"), ({"rollout": "dense"}, "baseline")):
        place = rollouts.entries(column, baseline=baseline)["dense", None]
        assert (place.value, place.state) == (None, expected)
        said = "2 cells of one arm are of one seed, cohort and block, apart in rollout.exit_threshold"
        assert (said in place.notes[0]) == (expected == "not_measured")


def test_blocks_are_no_cohorts(rollouts: Rollouts) -> None:
    for cohort in range(3):
        for block in range(2):
            rollouts.add("dense", 1.0 + cohort, cohort, block=block)
            rollouts.add("last_exited", 2.0 + 2.1 * cohort, cohort, block=block)
    row = list(csv.DictReader(io.StringIO(to_csv(rollouts.table()))))[1]
    assert row["speed row/baseline, geometric_mean_of_cohorts state"] == "measured"
    assert row["speed row/baseline, geometric_mean_of_cohorts n"] == "3"


def test_footnotes_count_cohorts_and_of_one_cohort_blocks(rollouts: Rollouts) -> None:
    median = {"metric": "speed", "header": "speed", "estimator": "median"}
    for cohort in range(3):
        for block in range(2):
            rollouts.add("dense", Verdict.OOM if cohort == 1 else 1.0, cohort, block=block)
            rollouts.add("last_exited", 2.0, cohort, block=block)
            if cohort == 0:
                rollouts.add("first_exited", Verdict.OOM if block else 3.0, cohort, block=block)
    found = rollouts.entries(median)
    assert found["dense",].notes == ("1 of 3 cohorts oom: so it went",)
    assert (found["dense",].measured, found["dense",].planned) == (2, 3)
    assert found["first_exited",].notes == ("1 of 2 blocks oom: so it went",)
    assert rollouts.entries()["last_exited",].notes[0] == "1 of 3 cohorts: the baseline has no number there"


def test_a_cohort_without_samples_is_said(rollouts: Rollouts) -> None:
    right = [True] * 80 + [False] * 20
    for rollout, without in (("dense", 2), ("last_exited", 1)):
        for cohort in range(4):
            record = rollouts.add(rollout, 1.0, cohort)
            if cohort != without:
                write_answers(record.parent, 0, right)
    place = rollouts.entries(DIFFERENCE)["last_exited",]
    assert (place.value, place.measured, place.planned) == (0, 2, 4)
    assert place.notes[1:] == (
        "1 of 4 cohorts: the row has no samples there",
        "1 of 4 cohorts: the baseline has no samples there",
    )


@pytest.mark.parametrize("column", [RATIO, DIFFERENCE])
def test_other_code_and_other_hardware_are_said(rollouts: Rollouts, column: Mapping[str, Any]) -> None:
    machine = {"host": "node-1", "cpu": "Some Processor", "gpus": [{"name": "A100"}]}
    for cohort in range(3):
        for rollout in ("dense", "last_exited", "first_exited"):
            environment = dict(machine)
            provenance = {"git_revision": f"r{cohort}"}  # other than in the other cohorts, which is no fault
            if rollout == "last_exited" and cohort == 1:
                environment |= {"cpu": "Other Processor"}
                provenance = {"git_revision": "r9"}
            if rollout == "last_exited" and cohort == 2:
                environment |= {"gpus": [{"name": "H200"}]}
            record = rollouts.add(rollout, 1.0 + cohort, cohort, environment=environment, provenance=provenance)
            write_answers(record.parent, 0, [True, False])
    found = rollouts.entries(column)
    assert [note for note in found["last_exited",].notes if note.startswith("in ")] == [
        "in 1 of 3 cohorts row and baseline are of different git revisions (r1, r9)",
        "in 1 of 3 cohorts row and baseline ran on different processors (Other Processor, Some Processor)",
        "in 1 of 3 cohorts row and baseline ran on different GPUs (A100, H200)",
    ]
    assert not [note for note in found["first_exited",].notes if note.startswith("in ")]


def test_cells_of_one_seed_are_one_figure_for_every_statistic(rollouts: Rollouts) -> None:
    for cohort, speed in enumerate((9.0, 0.0, 9.0, 0.0)):
        rollouts.add("dense", speed, block=cohort)
    estimators = ("median", "smallest", "largest", "above 5", "mean")
    columns = [{"metric": "speed", "header": name, "estimator": name, "over": "seed"} for name in estimators]
    [line] = rollouts.table(*columns).lines
    assert [place.value for place in line.entries] == [4.5, 4.5, 4.5, "0 of 1", 4.5]
    assert {place.notes for place in line.entries} == {
        ("note: 4 cells of 1 seeds; those of one seed are averaged first",)
    }
