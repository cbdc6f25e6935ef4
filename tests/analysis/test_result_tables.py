import csv
import io
import math
import re
from pathlib import Path

import pytest
from synthetic_runs import Axes, SyntheticSweep, cell_axes, cell_id, planned, quickstart_cells, repeated

from scalerlt.analysis.coverage import coverage_table, overhead_table, unmeasured_table
from scalerlt.analysis.gates import GateVerdict
from scalerlt.analysis.judging import judged
from scalerlt.analysis.marks import GATES, STATES, footnote
from scalerlt.analysis.reading import CellResult, SweepResults, read_runs
from scalerlt.analysis.rows import entry, row_axes
from scalerlt.analysis.table_spec import Column, TableSpec, load_tables
from scalerlt.analysis.tables import Table, build_all, build_tables, to_csv, to_markdown
from scalerlt.errors import UserError
from scalerlt.records.record import Metric, Verdict

SPEC = TableSpec(
    name="speed",
    experiment=("rollout_throughput",),
    caption="Speed | and size.",
    rows=("precision", "batch"),
    columns=(
        Column(metric="tokens_per_second", header="rate", spread=True),
        Column(metric="rollout_seconds", header="rollout"),
        Column(metric="live_peak_bytes", header="live peak"),
        Column(metric="logprob_error_fp64", header="error", form="error"),
        Column(metric="cosine", header="1 − cos", form="one_minus"),
        Column(metric="generated_tokens", header="generated"),
    ),
)
GOLDEN_MARKDOWN = """\
Speed \\| and size.

| precision | batch | n | rate (token/s) | rollout (ms) | live peak (MiB) | error (nat) | 1 − cos | generated (token) \
| evidence |
| --- | --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | --- |
| fp32 | small | 1 | 12,346 | 48.00 | 1.500 | 4.65e-7 | 1.00e-9 | 592 | cpu |
| fp32 | large | 0 of 1 | oom [1] | oom [1] | oom [1] | oom [1] | oom [1] | oom [1] | cpu |
| bf16 | small | 1 | unsupported [2] | unsupported [2] | 0.004883 | 0 | NaN | 1,234,567 | cpu |
| bf16 | large | 0 of 1 | not_run [3] | not_run [3] | not_run [3] | not_run [3] | not_run [3] | not_run [3] | – |

- [1] oom: a \\| b c \\<d\\>
- [2] unsupported: emulated
- [3] not_run: planned, never started
"""
GOLDEN_CSV = """\
precision,batch,cohorts measured,cohorts planned,tokens_per_second (token/s),tokens_per_second state,\
tokens_per_second minimum (token/s),tokens_per_second maximum (token/s),tokens_per_second repeats,rollout_seconds (s),\
rollout_seconds state,live_peak_bytes (B),live_peak_bytes state,logprob_error_fp64 (nat),logprob_error_fp64 state,\
cosine,cosine state,generated_tokens (token),generated_tokens state,evidence,notes
fp32,small,1,1,12345.678,measured,12000.5,12400.0,3,0.048,measured,1572864,measured,4.65e-07,measured,\
0.999999999,measured,592,measured,cpu,
fp32,large,0,1,,oom,,,,,oom,,oom,,oom,,oom,,oom,cpu,oom: a | b c <d>
bf16,small,1,1,,unsupported,,,,,unsupported,5120,measured,-0.0,measured,nan,measured,1234567,measured,cpu,\
unsupported: emulated
bf16,large,0,1,,not_run,,,,,not_run,,not_run,,not_run,,not_run,,not_run,–,"not_run: planned, never started"
"""


def read(sweep: SyntheticSweep) -> SweepResults:
    return read_runs(sweep.path).sweeps[0]


def tables_of(results: SweepResults, swept: list[str]) -> list[Table]:
    return build_all(load_tables(), judged(results.cells, results.path), swept)


def set_metrics(**values: Metric):
    return lambda metrics: metrics.update(values)


@pytest.fixture
def sweep(tmp_path: Path) -> SyntheticSweep:
    return SyntheticSweep(tmp_path / "trial")


def test_golden_markdown_and_csv(sweep: SyntheticSweep) -> None:
    cells = [cell_axes("rollout_throughput", p, b) for b in ("small", "large") for p in ("fp32", "bf16")]
    sweep.plan([planned(axes) for axes in cells], swept=["precision", "batch"])
    sweep.record(
        cells[0],
        edit=set_metrics(
            tokens_per_second=repeated([12345.678, 12000.5, 12400.0], "token/s", "rollout"),
            rollout_seconds=Metric(value=0.048, unit="s"),
            live_peak_bytes=Metric(value=3 * 2**19, unit="B"),
            cosine=Metric(value=0.999999999),
        ),
    )
    slow = Metric(status="unsupported", reason="emulated")
    sweep.record(
        cells[1],
        edit=set_metrics(
            tokens_per_second=slow,
            rollout_seconds=slow,
            live_peak_bytes=Metric(value=5120, unit="B"),
            logprob_error_fp64=Metric(value=-0.0, unit="nat"),
            cosine=Metric(value=math.nan),
            generated_tokens=Metric(value=1234567, unit="token"),
        ),
    )
    sweep.record(cells[2], Verdict.OOM, reason="a | b\nc <d>")
    results = read(sweep)
    [table] = build_tables(SPEC, results.cells, results.swept)
    assert to_markdown(table) == GOLDEN_MARKDOWN
    assert to_csv(table) == GOLDEN_CSV


def test_every_verdict_and_state_has_a_mark() -> None:
    assert {verdict.value for verdict in Verdict} - {"measured"} <= set(STATES)
    assert {"running", "not_run", "skipped", "not_measured"} <= set(STATES)
    assert {verdict.value for verdict in GateVerdict} == set(GATES)
    assert all(meaning and "\n" not in meaning for meaning in [*STATES.values(), *GATES.values()])
    assert footnote("oom", None) == "oom: out of memory"
    assert footnote("oom", "why", 1, 3) == "1 of 3 cohorts oom: why"


@pytest.mark.parametrize("verdict", [verdict for verdict in Verdict if verdict is not Verdict.MEASURED])
def test_a_verdict_stands_where_its_number_would(sweep: SyntheticSweep, verdict: Verdict) -> None:
    axes = cell_axes("actor_update", "fp32", "small", "layer")
    sweep.plan([planned(axes)])
    sweep.record(axes, verdict, edit=set_metrics(actor_update_seconds=Metric(value=1.0, unit="s")))
    for table in tables_of(read(sweep), []):
        assert {place.state for place in table.lines[0].entries} == {verdict.value}
        assert {place.value for place in table.lines[0].entries} == {None}
        assert f"- [1] {verdict}: " in to_markdown(table)


def test_every_planned_cell_is_a_number_or_a_word_in_every_table(quickstart: Path) -> None:
    results = read_runs(quickstart).sweeps[0]
    seen: dict[str, set[tuple[str, ...]]] = {}
    for table in tables_of(results, results.swept):
        rows = seen.setdefault("rollout" if table.name.startswith("rollout") else "update", set())
        rows |= {tuple(map(str, line.labels)) for line in table.lines}
        for line in to_markdown(table).splitlines():
            if line.startswith("|"):
                assert all(text.strip() for text in re.split(r"(?<!\\)\|", line)[1:-1])
        parsed = list(csv.DictReader(io.StringIO(to_csv(table))))
        assert len(parsed) == len(table.lines)
        for found in parsed:
            states = {name.removesuffix(" state"): state for name, state in found.items() if name.endswith(" state")}
            assert states
            for name, state in states.items():
                value = next(text for key, text in found.items() if key.split(" (")[0] in (name, f"{name} estimate"))
                assert (value != "") == (state == "measured")
                assert state in ("measured", "baseline", *STATES)
    keys = ("precision", "batch", "checkpoint")
    cells = quickstart_cells()
    updates = {tuple(str(axes[key]) for key in keys) for axes in cells if axes["experiment"] == "actor_update"}
    rollouts = {tuple(str(axes[key]) for key in keys[:2]) for axes in cells if axes["experiment"] != "actor_update"}
    assert seen == {"rollout": rollouts, "update": updates}


def test_coverage_adds_up(quickstart: Path) -> None:
    cells = read_runs(quickstart).cells
    parsed = list(csv.DictReader(io.StringIO(to_csv(coverage_table(cells)))))
    assert [found.pop("experiment") for found in parsed] == ["rollout_throughput", "actor_update"]
    assert [int(found.pop("cells")) for found in parsed] == [6, 18]
    assert [sum(map(int, found.values())) for found in parsed] == [6, 18]
    assert (parsed[1]["oom"], parsed[1]["unsupported"], parsed[1]["not_run"], parsed[0]["skipped"]) == (
        "1",
        "6",
        "1",
        "1",
    )
    missing = unmeasured_table(cells)
    assert missing is not None
    assert len(missing.lines) == 13
    assert r"ValueError: a \| b is \<not\> \*finite\* in layer_2" in to_markdown(missing)
    assert unmeasured_table([cell for cell in cells if cell.state == "measured"]) is None


def test_overhead_is_the_median_by_start(sweep: SyntheticSweep) -> None:
    cells = [cell_axes("rollout_throughput", "fp32", "small", seed=seed) for seed in range(5)]
    sweep.plan([planned(axes) for axes in cells])
    assert overhead_table(read(sweep).cells) is None
    for axes, seconds in zip(cells, (0.3, 0.1, 0.2), strict=False):
        sweep.record(axes, overhead_seconds=seconds)
    sweep.record(cells[3], overhead_seconds=2.0, start="spawn")
    sweep.record(cells[4], overhead_seconds=None, start=None)
    table = overhead_table(read(sweep).cells)
    assert table is not None
    assert to_csv(table).splitlines()[1:] == [
        "fork,3,0.2,measured,0.1,measured,0.3,measured",
        "spawn,1,2.0,measured,2.0,measured,2.0,measured",
        "–,0,,not_measured,,not_measured,,not_measured",
    ]


def test_cohorts_and_seeds_are_one_row_with_their_median(sweep: SyntheticSweep) -> None:
    cells = [cell_axes("rollout_throughput", "fp32", "small", cohort=cohort, seed=cohort) for cohort in range(4)]
    sweep.plan([planned(axes) for axes in cells], swept=["seed", "cohort"])
    for axes, rates in zip(cells, ([1.0, 2.0, 6.0], [3.0, 4.0, 5.0], [7.0, 9.0, 11.0]), strict=False):
        sweep.record(axes, edit=set_metrics(tokens_per_second=repeated(rates, "token/s", "rollout")))
    sweep.record(cells[3], Verdict.OOM, reason="too large")
    results = read(sweep)
    [table] = build_tables(SPEC.model_copy(update={"columns": SPEC.columns[:1]}), results.cells, results.swept)
    [line] = table.lines
    assert line.cohorts == (3, 4)
    [place] = line.entries
    assert (place.value, place.minimum, place.maximum, place.repeats) == (4.0, 1.0, 11.0, 9)
    assert "| fp32 | small | 3 of 4 | 4.000 [1] |" in to_markdown(table)
    assert "- [1] 1 of 4 cohorts oom: too large" in to_markdown(table)
    assert "fp32,small,3,4,4.0,measured (3 of 4),1.0,11.0,9,cpu,1 of 4 cohorts oom: too large" in to_csv(table)


def test_one_single_value_has_no_range(sweep: SyntheticSweep) -> None:
    axes = cell_axes("rollout_throughput", "fp32", "small")
    sweep.plan([planned(axes)])
    sweep.record(axes, edit=set_metrics(tokens_per_second=repeated([5.0], "token/s", "rollout")))
    place = entry(read(sweep).cells, "tokens_per_second")
    assert (place.value, place.minimum, place.maximum, place.repeats) == (5.0, None, None, 1)


def test_a_nan_among_cohorts_is_not_hidden_and_words_are_counted(sweep: SyntheticSweep) -> None:
    cells = [cell_axes("rollout_throughput", "fp32", "small", cohort=cohort) for cohort in range(3)]
    sweep.plan([planned(axes) for axes in cells])
    for axes, value, word in zip(cells, (math.nan, 1.0, 2.0), ("PASS", "FAIL", "PASS"), strict=True):
        sweep.record(axes, edit=set_metrics(x=Metric(value=value), word=Metric(value=word), same=Metric(value=3)))
    results = read(sweep).cells
    assert math.isnan(entry(results, "x").value)
    assert entry(results, "word").value == "1 FAIL, 2 PASS"
    same = entry(results, "same").value
    assert (same, type(same)) == (3, int)


def test_a_seed_is_never_averaged_with_another_configuration(sweep: SyntheticSweep) -> None:
    cells = [cell_axes("rollout_throughput", "fp32", "small", **{"x.depth": depth}) for depth in (4, 3)]
    cells.append(cell_axes("rollout_throughput", "fp32", "small"))  # without the key
    sweep.plan([planned(axes) for axes in cells])
    [table] = build_tables(SPEC, read(sweep).cells, [])
    assert table.names == ("precision", "batch", "x.depth")
    assert [line.labels[2] for line in table.lines] == [3, 4, None]
    assert "| fp32 | small | – | 0 of 1 |" in to_markdown(table)


def results_of(*axes: Axes) -> list[CellResult]:
    return [CellResult("trial", cell_id(found), found, "not_run") for found in axes]


def test_the_axes_of_a_table() -> None:
    small, large = cell_axes("x", "fp32", "small"), cell_axes("x", "bf16", "large")
    # what an option stands for is not repeated; what cannot be told from it is
    assert row_axes(results_of(small, large), ["precision", "batch"], []) == ["precision", "batch"]
    changed = {**small, "batch.group_size": 2}
    assert row_axes(results_of(small, changed), ["precision"], ["batch.group_size"]) == [
        "precision",
        "batch.group_size",
    ]
    assert row_axes(results_of(small, changed), ["precision"], []) == ["precision", "batch.group_size"]
    # axes that vary together are all shown, the swept ones first: no row hides that it differs in another, too
    zipped = [{**small, "optimizer": "sgd", "x.a": 1}, {**large, "optimizer": "adamw", "x.a": 2}]
    assert row_axes(results_of(*zipped), ["precision"], ["precision", "optimizer"]) == [
        "precision",
        "optimizer",
        "batch",
        "x.a",
    ]
    assert row_axes(results_of(*zipped), ["precision"], ["precision", "x.a"])[:2] == ["precision", "x.a"]
    assert row_axes(results_of({**small, "seed": 1}, {**small, "seed": 2}), ["precision"], ["seed"]) == ["precision"]
    # 1, 1.0, True and "1" are four values
    odd = [{**small, "x": value} for value in (1, 1.0, True, "1")]
    assert row_axes(results_of(*odd), [], []) == ["x"]


def test_rows_are_in_the_order_of_the_plan_and_numbers_in_numeric_order(sweep: SyntheticSweep) -> None:
    cells = [
        cell_axes("rollout_throughput", p, "small", **{"x.size": size})
        for size in (16, 4, 64)
        for p in ("fp32", "bf16")
    ]
    sweep.plan([planned(axes) for axes in cells])
    [table] = build_tables(SPEC, read(sweep).cells, [])
    assert [(line.labels[0], line.labels[2]) for line in table.lines] == [
        (precision, size) for precision in ("fp32", "bf16") for size in (4, 16, 64)
    ]


def test_cpu_and_gpu_memory_stand_in_different_tables(sweep: SyntheticSweep) -> None:
    cpu = cell_axes("actor_update", "fp32", "small", "layer")
    gpu = {**cpu, "device": "cuda", "device.type": "cuda"}
    sweep.plan([planned(cpu), planned(gpu)], swept=["device"])
    sweep.record(cpu)
    sweep.record(gpu)
    tables = {table.name: table for table in tables_of(read(sweep), ["device"])}
    on_cpu = {column.metric for column in tables["actor_update_memory_cpu"].columns}
    on_gpu = {column.metric for column in tables["actor_update_memory_cuda"].columns}
    assert on_cpu - on_gpu == {"rss_baseline_bytes", "rss_peak_bytes"}
    assert on_gpu - on_cpu == {"cuda_peak_allocated_bytes", "cuda_peak_reserved_bytes"}
    for name in ("actor_update_memory_cpu", "actor_update_memory_cuda"):
        assert len(tables[name].lines) == 1
        assert all(place.state == "measured" for place in tables[name].lines[0].entries)
    assert len(tables["actor_update"].lines) == 2
    phases = [column.header for column in tables["actor_update_memory_cpu"].columns if "/" in column.metric]
    assert phases == ["live peak, forward", "live peak, backward", "live peak, optimizer"]


def test_other_units_in_one_table_are_an_error(sweep: SyntheticSweep) -> None:
    cells = [cell_axes("rollout_throughput", precision, "small") for precision in ("fp32", "bf16")]
    sweep.plan([planned(axes) for axes in cells])
    sweep.record(cells[0])
    sweep.record(cells[1], edit=set_metrics(live_peak_bytes=Metric(value=3, unit="GiB")))
    with pytest.raises(UserError, match=r"live_peak_bytes is in 'B' in cell .* and in 'GiB' in cell"):
        build_tables(SPEC, read(sweep).cells, [])


def test_gates_are_shown_with_their_reason(sweep: SyntheticSweep) -> None:
    axes = cell_axes("actor_update", "fp32", "small", "layer")
    sweep.plan([planned(axes)])
    sweep.record(
        axes,
        edit=set_metrics(
            grad_sched_relative_l2=Metric(value=7e-6), grad_round_floor_relative_l2=Metric(value=5e-6), loss=Metric()
        ),
    )
    table = next(table for table in tables_of(read(sweep), []) if table.name == "gradient_error")
    text = to_markdown(table)
    assert "| fp32 | small | layer | 1 | FAIL [1] | 7.00e-6 | 5.00e-6 [2] |" in text
    assert "- [1] FAIL: gradient_relative_l2: grad_sched_relative_l2 7e-06 is not within 5e-06" in text
    assert "- [2] note: the measured floor of checkpoint=none, larger than the declared 2e-06" in text


def test_blocks_of_plus_and_minus_infinity_are_no_number_and_no_error(tmp_path: Path) -> None:
    sweep = SyntheticSweep(tmp_path / "sweep")
    cells = [cell_axes("rollout_throughput", "fp32", "small", block=block) for block in (0, 1)]
    sweep.plan([planned(axes) for axes in cells])
    for axes, value in zip(cells, (math.inf, -math.inf), strict=True):
        sweep.record(axes, edit=lambda metrics, value=value: metrics.update(x=Metric(value=value, unit="s")))
    found = read_runs(sweep.path).cells
    for estimator in ("median", "mean", "interquartile_mean"):
        place = entry(found, "x", estimator)
        assert place.value is None or math.isnan(float(place.value))
