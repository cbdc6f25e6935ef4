import json
import math
import socket
from pathlib import Path

import pandas as pd
import pytest
from synthetic_runs import SyntheticSweep, cell_axes, cell_id, planned, quickstart_cells

from scalerlt.analysis import load_metrics, load_runs
from scalerlt.analysis.frame import CELL_COLUMNS, METRIC_COLUMNS
from scalerlt.errors import UserError
from scalerlt.records.base import now
from scalerlt.records.cell import FrozenCell
from scalerlt.records.lease import Lease
from scalerlt.records.record import Metric, Verdict

FIRST = cell_axes("rollout_throughput", "fp32", "small")
SECOND = cell_axes("rollout_throughput", "bf16", "small")


@pytest.fixture
def sweep(tmp_path: Path) -> SyntheticSweep:
    return SyntheticSweep(tmp_path / "runs" / "trial")


def row(frame: pd.DataFrame, axes: dict) -> pd.Series:
    found = frame[frame["cell_id"] == cell_id(axes)]
    assert len(found) == 1
    return found.iloc[0]


def lease(**changed: object) -> Lease:
    return Lease.of_this_process().model_copy(update=changed)


def test_one_row_per_planned_cell_and_every_fate(quickstart: Path) -> None:
    frame = load_runs(quickstart)
    cells = quickstart_cells()
    assert list(frame["cell_id"]) == [cell_id(axes) for axes in cells]
    assert set(frame["sweep"]) == {"quickstart"}
    assert frame["state"].value_counts().to_dict() == {
        "measured": 11,
        "unsupported": 6,
        "skipped": 1,
        "timeout": 1,
        "oom": 1,
        "failed": 1,
        "killed": 1,
        "preempted": 1,
        "not_run": 1,
    }
    assert list(frame.columns[: len(CELL_COLUMNS)]) == list(CELL_COLUMNS)
    assert {name: str(frame[name].dtype) for name in CELL_COLUMNS} == CELL_COLUMNS
    skipped = row(frame, cells[2])
    assert skipped["reason"] == "ruled out by the sweep: large fp32 rollouts"
    assert skipped["attempts"] == 0
    assert skipped["attempt"] is pd.NA
    assert row(frame, cells[13])["reason"] == "ValueError: a | b\n\nis <not> *finite* in layer_2"
    measured = row(frame, cells[0])
    assert (measured["attempt"], measured["attempts"], measured["start"], measured["host"]) == (1, 1, "fork", "node-1")
    assert (measured["revision"], measured["dirty"]) == ("0123abc", False)
    assert measured["tokens_per_second"] == pytest.approx(640, rel=0.2)
    for axes in cells:
        found = row(frame, axes)
        assert {key: found[key] for key in axes} == axes


def test_numbers_stand_only_where_they_were_measured(quickstart: Path) -> None:
    frame = load_runs(quickstart)
    updates = frame[frame["experiment"] == "actor_update"]
    assert (updates["saved_bytes"].notna() == (updates["state"] == "measured")).all()
    assert updates["tokens_per_second"].isna().all()
    assert frame["cuda_peak_allocated_bytes"].isna().all()  # unsupported on a CPU
    assert frame.attrs["units"]["saved_bytes"] == "B"
    assert frame.attrs["problems"] == []


def test_a_sweeps_own_directory_may_be_named(quickstart: Path) -> None:
    pd.testing.assert_frame_equal(load_runs(quickstart), load_runs(quickstart / "quickstart"))
    pd.testing.assert_frame_equal(load_metrics(quickstart), load_metrics(str(quickstart / "quickstart")))


def test_values_keep_their_types(sweep: SyntheticSweep) -> None:
    odd = {**FIRST, "model": "NA", "model.revision": "1e5", "x.flag": True, "x.rate": 1e-5, "x.int": 1}
    other = {**SECOND, "model": "null", "model.revision": None, "x.flag": False, "x.int": 2**70}
    sweep.plan([planned(odd), planned(other)])

    def edit(metrics: dict[str, Metric]) -> None:
        metrics["kv_cache_bytes"] = Metric(value=2**60 + 1, unit="B")
        metrics["flag"] = Metric(value=True)
        metrics["word"] = Metric(value="1e5")
        metrics["half"] = Metric(value=0.5)
        metrics["huge"] = Metric(value=2**70)

    sweep.record(odd, edit=edit)
    sweep.record(other)
    frame = load_runs(sweep.path)
    assert list(frame["model"]) == ["NA", "null"]
    assert list(frame["model.revision"]) == ["1e5", None]
    assert frame["x.flag"].tolist() == [True, False]
    assert frame["x.rate"].tolist() == [1e-5, None]
    assert frame["x.int"].tolist() == [1, 2**70]
    assert all(type(value) is int for value in [*frame["x.int"], *frame["batch.group_size"]])
    assert str(frame["kv_cache_bytes"].dtype) == "Int64"
    assert frame["kv_cache_bytes"][0] == 2**60 + 1
    assert (str(frame["flag"].dtype), frame["flag"].isna().tolist()) == ("boolean", [False, True])
    assert frame["word"].tolist() == ["1e5", None]
    assert frame["huge"].tolist() == [2**70, None]
    assert str(frame["half"].dtype) == "float64"
    metrics = load_metrics(sweep.path).set_index(["cell_id", "metric"])["value"]
    assert type(metrics[cell_id(odd), "kv_cache_bytes"]) is int
    assert metrics[cell_id(odd), "word"] == "1e5"


def test_a_missing_key_loses_no_row(sweep: SyntheticSweep) -> None:
    sweep.plan([planned({**FIRST, "x.rank": 8}), planned(SECOND)])
    frame = load_runs(sweep.path)
    assert frame["x.rank"].tolist() == [8, None]
    assert frame["state"].tolist() == ["not_run", "not_run"]
    assert frame.groupby("x.rank", dropna=False).size().sum() == 2


def test_the_newest_answer_counts_else_the_newest_record(sweep: SyntheticSweep) -> None:
    third = cell_axes("rollout_throughput", "fp64", "small")
    sweep.plan([planned(FIRST), planned(SECOND), planned(third)])
    sweep.record(FIRST, attempt=1, reason="first")
    sweep.record(FIRST, attempt=2, reason="second")
    sweep.record(FIRST, Verdict.KILLED, attempt=10)
    sweep.record(SECOND, Verdict.FAILED, attempt=1)
    sweep.record(SECOND, Verdict.TIMEOUT, attempt=2)
    sweep.record(third, Verdict.OOM, attempt=1)
    sweep.record(third, Verdict.LOST, attempt=2)
    frame = load_runs(sweep.path)
    assert frame[["state", "attempt", "attempts"]].to_numpy().tolist() == [
        ["measured", 2, 3],
        ["timeout", 2, 2],
        ["oom", 1, 2],
    ]
    assert frame["reason"][0] == "second"


def test_plans_are_united_and_the_newest_word_counts(sweep: SyntheticSweep) -> None:
    third = cell_axes("rollout_throughput", "fp64", "small")
    sweep.plan([planned(FIRST), planned(SECOND, state="unsupported", reason="no GPU")])
    sweep.plan([planned(third, state="skipped", reason="too slow"), planned(SECOND)])
    frame = load_runs(sweep.path)
    assert frame[["cell_id", "state", "reason"]].to_numpy().tolist() == [
        [cell_id(FIRST), "not_run", None],
        [cell_id(SECOND), "not_run", None],
        [cell_id(third), "skipped", "too slow"],
    ]


def test_cells_in_no_readable_plan_stay_visible(sweep: SyntheticSweep) -> None:
    third = cell_axes("rollout_throughput", "fp64", "small")
    sweep.plan([planned(FIRST)])
    broken = sweep.plan([planned(SECOND), planned(third)])
    broken.write_text(broken.read_text()[:-30])
    sweep.record(SECOND)
    frozen = FrozenCell(
        identity_version=1, identity="0" * 64, cell_id=cell_id(third), sweep="trial", axes=third, config={}
    )
    (sweep.path / cell_id(third)).mkdir()
    frozen.write(sweep.path / cell_id(third) / "cell.yaml")
    frame = load_runs(sweep.path)
    assert dict(zip(frame["cell_id"], frame["state"], strict=True)) == {
        cell_id(FIRST): "not_run",
        cell_id(SECOND): "measured",
        cell_id(third): "not_run",
    }
    assert row(frame, third)["batch.group_size"] == 4
    assert len(frame.attrs["problems"]) == 1
    assert frame.attrs["problems"][0].startswith("trial/plans/002.json: ")


def test_running_and_lost_attempts(sweep: SyntheticSweep) -> None:
    axes = [cell_axes("rollout_throughput", "fp32", "small", seed=seed) for seed in range(4)]
    sweep.plan([planned(cell) for cell in axes])
    leases = [lease(), lease(boot_id="another"), lease(host="elsewhere", heartbeat=now()), lease(pid=2**22 - 1)]
    for cell, held in zip(axes, leases, strict=True):
        attempt = sweep.path / cell_id(cell) / "attempt-001"
        attempt.mkdir(parents=True)
        held.write(attempt / "lease.json")
    assert socket.gethostname() != "elsewhere"
    frame = load_runs(sweep.path)
    assert frame["state"].tolist() == ["running", "lost", "running", "lost"]
    assert frame["attempts"].tolist() == [1, 1, 1, 1]
    sweep.record(axes[0], attempt=2)
    assert load_runs(sweep.path)["state"][0] == "measured"


def test_unreadable_and_foreign_files_are_listed_and_passed_over(sweep: SyntheticSweep) -> None:
    sweep.plan([planned(FIRST), planned(SECOND)])
    whole = sweep.record(FIRST)
    sweep.record(FIRST, attempt=2).write_bytes(whole.read_bytes()[:200])
    sweep.record(SECOND).write_bytes(b"\xff\xfe not json")
    copied = sweep.path / "backup" / "attempt-001" / "record.json"
    copied.parent.mkdir(parents=True)
    copied.write_bytes(whole.read_bytes())
    swapped = sweep.path / cell_id(SECOND) / "attempt-002" / "record.json"
    swapped.parent.mkdir()
    swapped.write_bytes(whole.read_bytes())
    newer = json.loads(whole.read_text()) | {"schema_version": 99, "attempt": 3}
    third = sweep.path / cell_id(FIRST) / "attempt-003" / "record.json"
    third.parent.mkdir()
    third.write_text(json.dumps(newer))
    (sweep.path / "notes.txt").write_text("mine")
    (sweep.path / ".hidden").mkdir()
    (sweep.path / "submissions").mkdir()
    (sweep.path.parent / "old").mkdir()
    frame = load_runs(sweep.path.parent)
    assert frame["state"].tolist() == ["measured", "lost"]
    assert frame["attempts"].tolist() == [3, 2]
    problems = frame.attrs["problems"]
    heads = sorted(problem.split(": ")[0] for problem in problems)
    assert heads == sorted(
        [
            "old",
            "trial/backup",
            "trial/notes.txt",
            f"trial/{cell_id(FIRST)}/attempt-002/record.json",
            f"trial/{cell_id(FIRST)}/attempt-003/record.json",
            f"trial/{cell_id(SECOND)}/attempt-001/record.json",
            f"trial/{cell_id(SECOND)}/attempt-002/record.json",
        ]
    )
    assert not any(str(sweep.path) in problem for problem in problems)


def test_two_units_of_one_metric_are_an_error_that_names_both(sweep: SyntheticSweep) -> None:
    sweep.plan([planned(FIRST), planned(SECOND)])
    sweep.record(FIRST)

    def in_minutes(metrics: dict[str, Metric]) -> None:
        metrics["rollout_seconds"] = Metric(value=1.0, unit="min")

    sweep.record(SECOND, edit=in_minutes)
    with pytest.raises(UserError, match=r"rollout_seconds is in 'min' in cell .*bf16.* and in 's' in cell .*fp32"):
        load_runs(sweep.path)
    assert set(load_metrics(sweep.path).query("metric == 'rollout_seconds'")["unit"]) == {"s", "min"}


def test_a_metric_that_is_named_like_an_axis_or_a_column_replaces_nothing(sweep: SyntheticSweep) -> None:
    axes = {**FIRST, "state": "solid"}

    def edit(metrics: dict[str, Metric]) -> None:
        metrics["precision"] = Metric(value=0.5)
        metrics["host"] = Metric(value=2)

    sweep.plan([planned(axes)])
    sweep.record(axes, edit=edit)
    found = load_runs(sweep.path).iloc[0]
    assert (found["state"], found["axis.state"]) == ("measured", "solid")
    assert (found["precision"], found["metric.precision"]) == ("fp32", 0.5)
    assert (found["host"], found["metric.host"]) == ("node-1", 2)


def test_metrics_tell_what_a_missing_value_means(sweep: SyntheticSweep) -> None:
    def edit(metrics: dict[str, Metric]) -> None:
        metrics["mean_executed_depth"] = Metric(value=math.nan, unit="loop")
        metrics["padded_tokens"] = Metric(status="not_measured", reason="not counted", value=0)

    sweep.plan([planned(FIRST), planned(SECOND)])
    sweep.record(FIRST, edit=edit)
    sweep.record(
        SECOND, Verdict.FAILED, edit=lambda metrics: metrics.update(prompt_tokens=Metric(value=7, unit="token"))
    )
    frame = load_metrics(sweep.path)
    assert {name: str(frame[name].dtype) for name in METRIC_COLUMNS} == METRIC_COLUMNS
    found = frame[frame["cell_id"] == cell_id(FIRST)].set_index("metric")
    assert math.isnan(found["value"]["mean_executed_depth"])
    assert found["status"]["mean_executed_depth"] == "measured"
    assert found["value"]["padded_tokens"] is None
    assert found["reason"]["padded_tokens"] == "not counted"
    assert found["status"]["cuda_peak_allocated_bytes"] == "unsupported"
    speed = found.loc["tokens_per_second"]
    assert (speed["n"], speed["unit"], speed["scope"]) == (5, "token/s", "rollout")
    assert speed["minimum"] < speed["value"] < speed["maximum"]
    partial = frame[frame["cell_id"] == cell_id(SECOND)].iloc[0]
    assert (partial["state"], partial["metric"], partial["value"]) == ("failed", "prompt_tokens", 7)
    assert load_runs(sweep.path)["prompt_tokens"].isna().tolist() == [False, True]


def test_nothing_to_load(tmp_path: Path) -> None:
    frame = load_runs(tmp_path)
    assert (len(frame), list(frame.columns)) == (0, list(CELL_COLUMNS))
    assert list(load_metrics(tmp_path).columns) == list(METRIC_COLUMNS)
    with pytest.raises(UserError, match="no-such-place is not a directory"):
        load_runs(tmp_path / "no-such-place")
