"""What a plan says of its cells' cost: from their own records, from alike ones, from arithmetic, or nothing."""

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from schema.plain_config import plain_config

from scalerlt.errors import RequestErrors
from scalerlt.planning.cost import START_SECONDS, TYPICAL_RATE, Cost, Costs, measured, total
from scalerlt.planning.forecast import Forecast, forecast, refuse_above
from scalerlt.planning.hydra_bridge import compose
from scalerlt.planning.plan import freeze, make_plan
from scalerlt.planning.request import Request
from scalerlt.planning.resolve import ResolvedCell, resolve_all
from scalerlt.planning.workload import flops, rollout_sequences, update_flops
from scalerlt.records.record import Record, Verdict
from scalerlt.schema import load_cell
from scalerlt.schema.machine import Machine

CPU = Machine(gpus=0, gpu_reason="none here", cpus=2)
GPU = Machine(gpus=1, gpu_reason="", cpus=2)
START = datetime(2026, 11, 29, 12, tzinfo=UTC)


def resolved(runs: Path, *overrides: str, machine: Machine = CPU) -> tuple[Request, list[ResolvedCell]]:
    request = compose([*overrides, f"runs_dir={runs}"])
    return request, resolve_all(request.cells, machine)


def record(
    runs: Path, cell: ResolvedCell, request: Request, seconds: float, verdict: Verdict = Verdict.MEASURED
) -> None:
    """Leave a record of the cell."""
    sweep, plan = freeze(make_plan(request, [cell], {}), [cell], runs)
    directory = sweep.cell(cell.cell_id)
    number, attempt = directory.claim()
    Record(
        sweep=sweep.name,
        cell_id=cell.cell_id,
        axes=cell.axes,
        attempt=number,
        verdict=verdict,
        plan=plan,
        started=START.isoformat(),
        ended=(START + timedelta(seconds=seconds)).isoformat(),
    ).write(attempt / "record.json")


def test_costs_come_from_the_nearest_source(tmp_path: Path) -> None:
    request, (first, longer, second, _) = resolved(
        tmp_path, "experiment=rollout_throughput", "seed=0,1", "rollout.max_new_tokens=32,64"
    )
    other = resolved(tmp_path, "experiment=actor_update")[1][0]
    assert Costs(measured(tmp_path)).of(first).source == "estimated"
    for seconds in (10.0, 14.0, 30.0):
        record(tmp_path, first, request, seconds)
    record(tmp_path, first, request, 500.0, Verdict.FAILED)
    costs = Costs(measured(tmp_path))
    assert (costs.of(first).seconds, costs.of(first).source) == (14.0, "measured")
    assert (costs.of(second).seconds, costs.of(second).source) == (14.0, "similar")
    # At the rate of the three records: their operations over their seconds.
    estimate = costs.of(longer)
    assert estimate.source == "estimated" and "the rate of the records" in estimate.about
    assert estimate.seconds == pytest.approx(18.0 * (flops(longer.cell) or 0) / (flops(first.cell) or 1))
    # No record tells how fast a learner step is.
    typical = costs.of(other)
    assert typical.source == "estimated" and "typical for cpu" in typical.about
    assert typical.seconds == pytest.approx(START_SECONDS["cpu"] + (flops(other.cell) or 0) / TYPICAL_RATE["cpu"])


def test_what_is_unknown_is_counted_and_adds_nothing(tmp_path: Path) -> None:
    unknown = resolved(tmp_path, "experiment=planning_speed")[1][0]
    cost = Costs([]).of(unknown)
    assert (cost.seconds, cost.gpu_hours, cost.source) == (None, None, "unknown")
    summed = total([cost, Cost(3600.0, 1.0, "measured", ""), Cost(1800.0, 0.5, "similar", "")])
    assert (summed.seconds, summed.gpu_hours, summed.unknown) == (5400.0, 1.5, 1)
    assert summed.cells == {"measured": 1, "similar": 1}


def forecast_of(runs: Path, *overrides: str, machine: Machine = CPU) -> Forecast:
    request, cells = resolved(runs, *overrides, machine=machine)
    return forecast(make_plan(request, cells, {}), cells, request, lambda attempts: {})


def test_gpu_hours_are_held_gpus_times_hours_and_may_be_limited(tmp_path: Path) -> None:
    request, cells = resolved(tmp_path, "experiment=rollout_throughput", "device=cuda", "seed=0,1,2", machine=GPU)
    record(tmp_path, cells[0], request, 7200.0)
    seen = forecast(make_plan(request, cells, {}), cells, request, lambda attempts: {})
    assert [cell.state for cell in seen.cells] == ["measured", "to run", "to run"]
    assert seen.total.gpu_hours == 4.0  # the first is measured and does not run again
    refuse_above(4.0, seen)
    refuse_above(None, seen)
    with pytest.raises(RequestErrors, match=r"max_gpu_hours=3\.9: the 2 cells to run need some 4 GPU-hours"):
        refuse_above(3.9, seen)
    on_cpu = forecast_of(tmp_path, "experiment=rollout_throughput", "device=cpu", "seed=0,1,2")
    assert on_cpu.total.gpu_hours == 0.0


@pytest.mark.parametrize("limit", ["x", "-1", "[1]"])
def test_a_limit_is_a_number(limit: str) -> None:
    with pytest.raises(RequestErrors, match="max_gpu_hours="):
        compose([f"max_gpu_hours={limit}"])


def test_a_limit_is_no_part_of_a_cell(tmp_path: Path) -> None:
    limited, unlimited = resolved(tmp_path, "max_gpu_hours=2.5"), resolved(tmp_path)
    assert (limited[0].max_gpu_hours, unlimited[0].max_gpu_hours) == (2.5, None)
    assert limited[1][0].identity == unlimited[1][0].identity


def test_the_operations_are_those_that_torch_counts() -> None:
    """Its counter takes attention without the causal mask, which halves it: counted here by hand."""
    torch = pytest.importorskip("torch", reason="torch is what counts")
    from torch.utils.flop_counter import FlopCounterMode

    from scalerlt.models.config import OuroConfig
    from scalerlt.models.ouro import OuroForCausalLM

    values = {"model.weights": None, "rollout.max_new_tokens": 5, "task.prompt_length": 12}
    cell = load_cell(plain_config(values, experiment="rollout_throughput", task="random_tokens"))
    model_config = OuroConfig(**{name: getattr(cell.model, name) for name in OuroConfig.__dataclass_fields__})
    model = OuroForCausalLM(model_config, dtype=torch.float32, device="meta")
    lengths = rollout_sequences(cell).lengths
    rows = 12 + 5 - 1
    counter = FlopCounterMode(display=False)
    with counter:
        hidden = model(torch.zeros(len(lengths), rows, dtype=torch.int64, device="meta"))[-1]
        model.logits(hidden[:, -5:])
    attention = 4 * rows * rows * 64 * len(lengths) * 4 * 2
    causal = attention * (rows + 1) / (2 * rows)
    forward = counter.get_total_flops() - attention + causal
    assert update_flops(cell, lengths) == pytest.approx(3 * forward, rel=1e-9)
    again = load_cell(plain_config(values, experiment="rollout_throughput", task="random_tokens", checkpoint="layer"))
    assert update_flops(again, lengths) == pytest.approx(4 * forward, rel=1e-9)
    tiled = load_cell(
        plain_config({**values, "checkpoint.readout": "tiled"}, experiment="rollout_throughput", task="random_tokens")
    )
    logits = 2 * 5 * len(lengths) * cell.model.hidden_size * cell.model.vocab_size
    assert update_flops(tiled, lengths) == pytest.approx(3 * forward + logits, rel=1e-9)


@pytest.mark.parametrize("seconds", [0.0, -300.0])
def test_a_record_without_a_duration_tells_no_cost(tmp_path: Path, seconds: float) -> None:
    request, (first, other) = resolved(tmp_path, "experiment=rollout_throughput", "rollout.max_new_tokens=32,64")
    unknown = [Costs([]).of(cell) for cell in (first, other)]
    record(tmp_path, first, request, seconds)
    costs = Costs(measured(tmp_path))
    assert [costs.of(first), costs.of(other)] == unknown
