"""The memory plan against what cells really measure, and against closed forms worked out by hand."""

from pathlib import Path
from typing import Any

import pytest
import torch
from experiments.actor_cells import leave_out_comparisons
from schema.plain_config import plain_config

from scalerlt.experiments import actor_update, rollout_throughput
from scalerlt.measure import bandwidth
from scalerlt.planning.capacity import Capacity
from scalerlt.planning.memory import (
    kv_cache_bytes,
    memory_plan,
    optimizer_bytes,
    parameter_bytes,
    saved_bytes,
)
from scalerlt.planning.workload import SHARED_PREFIX, parameters, training_sequences
from scalerlt.records.recorder import Recorder
from scalerlt.schema import Cell, load_cell

UNLIMITED = Capacity(None, "", None)
WITHIN = 0.12
"""How far the plan of a step may be off what its cell measures, as `docs/planning.md` says."""


def make_cell(values: dict[str, Any] | None = None, **options: str) -> Cell:
    random_weights = {"model.weights": None, "experiment.warmup": 0, "experiment.repeats": 1}
    return load_cell(plain_config(random_weights | (values or {}), **options))


@pytest.fixture(autouse=True)
def _one_thread(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(bandwidth, "COPIED_BYTES", {"cpu": 2**16})
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def measured(cell: Cell, directory: Path) -> dict[str, Any]:
    recorder = Recorder(directory)
    {"actor_update": actor_update, "rollout_throughput": rollout_throughput}[cell.experiment.name].run(cell, recorder)
    recorder.close()
    return {name: metric.value for name, metric in recorder.metrics.items()}


@pytest.mark.parametrize(
    ("values", "options"),
    [
        ({"batch.microbatch_tokens": 300}, {"precision": "fp32", "checkpoint": "layer"}),
        (
            {"optimizer.momentum": 0.9, "batch.minibatch_responses": 8},
            {"precision": "bf16", "checkpoint": "none", "optimizer": "sgd"},
        ),
        ({"model.num_hidden_layers": 3, "model.total_ut_steps": 3}, {"precision": "bf16", "checkpoint": "loop"}),
        ({"checkpoint.readout": "tiled", "checkpoint.readout_tile": 16}, {"precision": "fp32", "checkpoint": "loop"}),
        ({"checkpoint.readout": "tiled", "checkpoint.readout_tile": 32}, {"precision": "bf16", "checkpoint": "layer"}),
        ({"checkpoint.layer_interval": 1, "checkpoint.query_chunk": 8}, {"checkpoint": "segments"}),
        ({"checkpoint.loop_interval": 0, "checkpoint.query_chunk": 8}, {"checkpoint": "segments", "precision": "bf16"}),
        ({}, {"checkpoint": "prefix"}),
        ({"checkpoint.wave_responses": 2}, {"checkpoint": "joint"}),
        ({}, {"checkpoint": "streamed", "precision": "bf16"}),
        ({}, {"checkpoint": "packed_shared"}),
    ],
)
def test_a_learner_step_needs_what_was_planned(
    values: dict[str, Any], options: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    leave_out_comparisons(monkeypatch)
    cell = make_cell({"experiment.reference_responses": 1} | values, **options)
    found = measured(cell, tmp_path)
    assert parameter_bytes(cell) == found["parameter_bytes"]
    assert optimizer_bytes(cell) == found["optimizer_bytes"]
    if cell.checkpoint.name not in SHARED_PREFIX:  # there the plan counts adjoints too, which autograd does not keep
        assert saved_bytes(cell) == pytest.approx(found["saved_bytes"], rel=0.01)
    plan = memory_plan(cell, UNLIMITED)
    assert plan is not None and not plan.assumed
    live = max(
        sum(held.values()) - held["weights"] - held["optimizer"]
        for phase, held in plan.phases.items()
        if phase != "reference"
    )
    assert live == pytest.approx(found["live_peak_bytes"], rel=WITHIN)


def test_a_rollout_needs_what_was_planned(tmp_path: Path) -> None:
    values = {
        "task.prompt_length": 20,
        "rollout.ignore_eos": True,
        "rollout.max_new_tokens": 6,
        "batch.rollout_concurrency": 5,
    }
    cell = make_cell(values, experiment="rollout_throughput", task="random_tokens", precision="bf16")
    found = measured(cell, tmp_path)
    plan = memory_plan(cell, UNLIMITED)
    assert plan is not None and not plan.assumed
    assert plan.phases["prefill"]["kv_cache"] == found["kv_cache_bytes"]
    live = max(
        sum(held.values()) - held["weights"] for phase, held in plan.phases.items() if phase in ("prefill", "sampling")
    )
    assert live == pytest.approx(found["live_peak_bytes"], rel=WITHIN)


def test_published_models() -> None:
    """Ouro-1.4B (arXiv 2510.25741) has 1.4e9 parameters; its K/V of a token are 4 x 24 planes of 2 x 2048 numbers."""
    cell = make_cell(model="ouro_1_4b", precision="bf16")
    assert 1.40e9 < parameters(cell.model) < 1.45e9
    assert kv_cache_bytes(cell.model, slots=1, positions=1, number=2) == 4 * 24 * 2 * 2048 * 2
    # Gradients in fp32 beside those of the last backward pass, fp32 masters, two moments.
    trained = parameters(cell.model) - 2049
    plan = memory_plan(cell, UNLIMITED)
    assert plan is not None
    assert plan.phases["layers"]["gradients"] == 6 * trained
    assert plan.phases["layers"]["optimizer"] == 12 * trained


def test_a_training_run_holds_the_policies_that_still_generate() -> None:
    """One copy beside the learner's, and one more for each step of lag, in the rollout's precision."""
    options = {"experiment": "gsm8k_reward", "algorithm": "grpo", "precision": "fp32"}
    usual = {"experiment.steps": 10}

    def held(**values: Any) -> dict[str, dict[str, int]]:
        random_weights = {"model.weights": None, **usual, **{key.replace("__", "."): v for key, v in values.items()}}
        plan = memory_plan(load_cell(plain_config(random_weights, **options)), UNLIMITED)
        assert plan is not None
        return plan.phases

    weights = 4 * parameters(make_cell().model)
    for lag, copies in ((0, 1), (1, 2), (4, 5), (500, 11)):
        for phase, parts in held(experiment__lag=lag).items():
            assert parts["served_policies"] == copies * weights, phase
            assert parts["weights"] == weights
    narrow, wide = held(rollout__precision="bf16", experiment__lag=1), held(experiment__lag=1)
    assert narrow["layers"]["served_policies"] == weights
    assert narrow["prefill"]["kv_cache"] == wide["prefill"]["kv_cache"] // 2
    assert narrow["layers"]["activations"] == wide["layers"]["activations"]
    assert "reference" not in wide
    assert held(experiment__grad_bias_every=5)["reference"]["fp64_weights"] == 4 * weights


def test_a_schedule_trades_what_is_kept_for_what_is_computed_again() -> None:
    held = {}
    for schedule in ("none", "layer", "loop"):
        plan = memory_plan(make_cell(checkpoint=schedule), UNLIMITED)
        assert plan is not None
        held[schedule] = plan.phases["layers"]
    assert held["none"]["activations"] > held["layer"]["activations"] > held["loop"]["activations"]
    assert held["none"]["recomputed"] < held["layer"]["recomputed"] < held["loop"]["recomputed"]


def test_the_lengths_are_those_of_the_recorded_rollouts() -> None:
    from scalerlt.experiments.recorded import recorded_samples

    cell = make_cell(batch="medium")
    samples = recorded_samples(cell)
    lengths = [(len(sample.prompt_tokens), len(sample.response_tokens)) for sample in samples]
    assert list(training_sequences(cell).lengths) == lengths


def test_the_tightest_limit_counts() -> None:
    capacity = Capacity(host=2**30, host_is="the host's memory", gpu=2**33)
    cpu = make_cell().device
    assert capacity.of(cpu) == (2**30, "the host's memory")
    limited = make_cell({"device.memory_limit": "10MiB"})
    assert capacity.of(limited.device) == (10 * 2**20, "device.memory_limit")
    assert capacity.of(make_cell({"device.memory_limit": "2GiB"}).device) == (2**30, "the host's memory")
    assert capacity.of(make_cell(device="cuda").device) == (2**33, "the GPU's memory")
    plan = memory_plan(limited, capacity)
    assert plan is not None and plan.fits is False
    assert plan.needed > plan.step > 10 * 2**20
    assert plan.peak_phase == "reference"
    unknown = memory_plan(make_cell(device="cuda"), UNLIMITED)
    assert unknown is not None and unknown.fits is None
