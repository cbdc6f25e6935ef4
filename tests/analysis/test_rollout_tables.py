"""The tables of rollouts: schedules against dense, replays with their gate, and the engine's options."""

import math
from pathlib import Path
from typing import Any

import pytest
from scipy import stats
from synthetic_runs import Axes, SyntheticSweep, cell_axes, planned

from scalerlt.analysis.judging import judged
from scalerlt.analysis.reading import read_runs
from scalerlt.analysis.table_spec import load_tables
from scalerlt.analysis.tables import Line, Table, build_tables, to_markdown
from scalerlt.records.record import Metric

SPEEDS = {
    "dense": (100.0, 110.0, 90.0),
    "last_exited": (150.0, 160.0, 140.0),
    "shared_kv": (155.0, 161.0, 150.0),
}
DIFFER = {"dense": (0, 0, 0), "last_exited": (0, 2, 0), "shared_kv": (0, 0, 0)}


def sweep_of(path: Path, arms: dict[str, Axes], speeds: dict[str, tuple[float, ...]]) -> SyntheticSweep:
    """A sweep of that name whose arms differ in these axes and have these speeds in their cohorts."""
    sweep, cells = SyntheticSweep(path), list[Axes]()
    for arm, own in arms.items():
        for cohort, speed in enumerate(speeds[arm]):
            axes = cell_axes("rollout_throughput", "fp32", "small", seed=cohort, cohort=cohort)
            axes |= {"rollout": "dense", "rollout.engine": "native", "batch.rollout_concurrency": 32, **own}

            def edit(metrics: dict[str, Metric], arm: str = arm, cohort: int = cohort, speed: float = speed) -> None:
                metrics["tokens_per_second"] = Metric(value=speed, unit="token/s", scope="rollout")
                metrics["prefill_seconds"] = Metric(value=100 / speed, unit="s", scope="prefill")
                metrics["loops_saved"] = Metric(value=1.0 if arm == "dense" else 1.6)
                if arm in DIFFER:
                    metrics["replay_tokens"] = Metric(value=128, unit="token")
                    metrics["replay_mismatches/engine"] = Metric(value=DIFFER[arm][cohort], unit="token")
                    metrics["replay_over_rollout/packed"] = (
                        Metric(status="unsupported", reason="no such pass") if arm == "shared_kv" else Metric(value=0.5)
                    )

            sweep.record(axes, edit=edit)
            cells.append(axes)
    sweep.plan([planned(axes) for axes in cells], swept=["rollout", "cohort"])
    return sweep


def table_of(sweep: SyntheticSweep, name: str) -> Table:
    results = read_runs(sweep.path).sweeps[0]
    [spec] = [spec for spec in load_tables() if spec.name == name]
    [table] = build_tables(spec, judged(results.cells, results.path), results.swept)
    return table


def lines_of(table: Table, axis: str) -> dict[Any, Line]:
    return {line.labels[table.names.index(axis)]: line for line in table.lines}


def place(table: Table, header: str) -> int:
    return [column.header for column in table.columns].index(header)


@pytest.fixture
def schedules(tmp_path: Path) -> SyntheticSweep:
    return sweep_of(tmp_path / "rollout", {name: {"rollout": name} for name in SPEEDS}, SPEEDS)


def test_schedules_are_set_against_dense_and_marked_where_a_replay_is_not_bit_for_bit(
    schedules: SyntheticSweep,
) -> None:
    table = table_of(schedules, "rollout")
    lines = lines_of(table, "rollout")
    ratio = lines["last_exited"].entries[place(table, "× dense")]
    logs = [math.log(ours / theirs) for ours, theirs in zip(SPEEDS["last_exited"], SPEEDS["dense"], strict=True)]
    middle, half = sum(logs) / 3, stats.t.ppf(0.975, 2) * stats.tstd(logs) / math.sqrt(3)
    assert ratio.value == pytest.approx(math.exp(middle))
    assert (ratio.low, ratio.high) == pytest.approx((math.exp(middle - half), math.exp(middle + half)))
    assert lines["dense"].entries[place(table, "× dense")].state == "baseline"
    assert lines["last_exited"].entries[place(table, "K/d")].value == 1.6
    assert lines["dense"].notes == lines["shared_kv"].notes == ()
    [note] = lines["last_exited"].notes
    assert "FAIL" in note and "replay_mismatches/engine 2 is not within 0" in note


def test_the_replays_counts_are_the_largest_of_any_cohort(schedules: SyntheticSweep) -> None:
    table = table_of(schedules, "rollout_replay")
    lines = lines_of(table, "rollout")
    differ, gate, packed = (place(table, header) for header in ("differ, engine", "gate", "time, packed"))
    assert [lines[name].entries[differ].value for name in SPEEDS] == [0, 2, 0]
    assert [lines[name].entries[gate].value for name in SPEEDS] == ["PASS", "1 FAIL, 2 PASS", "PASS"]
    assert lines["shared_kv"].entries[packed].state == "unsupported"
    assert "no such pass" in to_markdown(table)


def test_a_rollout_without_a_replay_has_no_verdict(tmp_path: Path) -> None:
    sweep = sweep_of(tmp_path / "rollout", {"trace": {"rollout": "trace"}}, {"trace": (1.0, 2.0)})
    table = table_of(sweep, "rollout_replay")
    assert lines_of(table, "rollout")["trace"].entries[place(table, "gate")].state == "not_measured"
    assert table_of(sweep, "rollout").lines[0].notes == ()


@pytest.mark.parametrize(
    ("name", "axis", "baseline", "other", "header"),
    [
        ("rollout_batching", "rollout.engine", "plain", "native", "× plain"),
        ("engines", "rollout.engine", "native", "vllm", "× native"),
        ("rollout_prefill", "rollout.engine.shared_prefill", None, True, "prefill, times faster"),
        ("rollout_deterministic", "rollout.deterministic", None, True, "× without"),
    ],
)
def test_an_option_is_set_against_its_default(
    name: str, axis: str, baseline: Any, other: Any, header: str, tmp_path: Path
) -> None:
    arms = {"before": {} if baseline is None else {axis: baseline}, "after": {axis: other}}
    sweep = sweep_of(tmp_path / name, arms, {"before": (10.0, 12.0), "after": (40.0, 48.0)})
    table = table_of(sweep, name)
    lines = lines_of(table, axis)
    assert lines[baseline].entries[place(table, header)].state == "baseline"
    assert lines[other].entries[place(table, header)].value == pytest.approx(4.0)
