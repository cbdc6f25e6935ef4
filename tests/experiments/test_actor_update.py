import json
import math
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest
import torch
from experiments.actor_cells import make_cell, write_rollouts

from scalerlt.errors import UserError
from scalerlt.experiments import actor_update, building
from scalerlt.experiments.building import build_model, checkpoint_schedule, optimizer_settings
from scalerlt.experiments.recorded import recorded_samples
from scalerlt.learner.checkpoint import LayerCheckpoint, LoopCheckpoint, NoCheckpoint
from scalerlt.learner.readout import TiledReadout
from scalerlt.models.checkpoint import save_hf
from scalerlt.records.recorder import Recorder

FEW_LOOPS = {"model.total_ut_steps": 2, "experiment.repeats": 1}
PHASES = ("forward", "backward", "optimizer")


@pytest.fixture(scope="module")
def rollouts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_rollouts(tmp_path_factory.mktemp("recorded") / "rollouts.jsonl")


@pytest.fixture(scope="module")
def cell_of(rollouts: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Recorder]:
    """What a cell over `rollouts` records, by its options; several tests look at the same cell."""

    @cache
    def measured(few_loops: bool = False, **options: str) -> Recorder:
        values = FEW_LOOPS if few_loops else None
        return measure(tmp_path_factory.mktemp("cells"), rollouts, values=values, **options)

    return measured


def measure(tmp_path: Path, rollouts: Path, **options) -> Recorder:
    attempt = tmp_path / f"attempt-{len(list(tmp_path.iterdir())):03d}"
    attempt.mkdir()
    recorder = Recorder(attempt)
    actor_update.run(make_cell(rollouts, **options), recorder)
    recorder.close()
    return recorder


def values(recorder: Recorder) -> dict[str, object]:
    return {name: metric.value for name, metric in recorder.metrics.items() if metric.status == "measured"}


@pytest.mark.parametrize("checkpoint", ["none", "layer", "loop"])
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_a_cell_leaves_every_figure(cell_of: Callable[..., Recorder], rollouts: Path, checkpoint: str, precision: str):
    recorder = cell_of(checkpoint=checkpoint, precision=precision)
    found = values(recorder)
    assert recorder.passes == ["warm_up", "time", "memory", "bandwidth", "reference"]
    assert recorder.notes == []

    samples = recorded_samples(make_cell(rollouts))
    assert found["trained_tokens"] == sum(len(sample.response_tokens) for sample in samples)
    assert found["prompt_tokens"] == sum(len(sample.prompt_tokens) for sample in samples)
    rows = found["trained_tokens"] + found["prompt_tokens"] - len(samples)
    assert rows < rows + found["padded_tokens"] <= 48 * found["microbatches"]
    assert found["optimizer_steps"] == 2
    seconds = recorder.metrics["actor_update_seconds"]
    assert (seconds.n, seconds.scope, seconds.unit) == (2, "actor_update", "s")
    rates = recorder.metrics["trained_tokens_per_second"].values
    assert rates == [found["trained_tokens"] / second for second in seconds.values]
    for total, parts in zip(
        seconds.values,
        zip(*(recorder.metrics[f"{phase}_seconds"].values for phase in PHASES), strict=True),
        strict=True,
    ):
        assert 0 < sum(parts) <= total

    for name in ("live_peak_bytes", "rss_peak_bytes"):
        peaks = [found[f"{name}/{phase}"] for phase in PHASES]
        assert found[name] >= max(peaks) > 0
    assert 0 < found["saved_bytes"] < found["live_peak_bytes"]
    for name in ("cuda_peak_allocated_bytes", "cuda_peak_reserved_bytes"):
        assert recorder.metrics[name].status == "unsupported"
        assert "cpu" in recorder.metrics[name].reason

    assert found["loss_sched_abs"] == 0
    assert found["grad_sched_mismatches"] == 0
    assert found["grad_sched_relative_l2"] == 0
    assert found["grad_sched_cosine"] == pytest.approx(1)
    assert {name.partition("/")[2] for name in found if name.startswith("grad_sched_relative_l2/")} == {
        "embedding",
        "attention",
        "mlp",
        "norm",
        "head",
    }
    floor = found["grad_round_floor_relative_l2"]
    assert found["grad_round_relative_l2"] == floor
    assert (1e-9 < floor < 1e-5) if precision == "fp32" else (1e-3 < floor < 0.3)
    assert found["update_norm"] > 1e-2
    assert found["grad_norm"] > 0
    method = recorder.metrics["grad_sched_elementwise"].method
    assert method == ("abs 1e-05 rel 8e-05" if precision == "fp32" else "abs 0.003 rel 0.04")
    moments = recorder.metrics["update_sched_exp_avg_elementwise"]
    assert moments.status == ("measured" if precision == "fp32" else "not_measured")


def test_the_schedule_of_the_cell_is_the_one_that_is_compared(tmp_path: Path, rollouts: Path):
    wrong = {"checkpoint._target_": "experiments.actor_cells.WrongGradient"}
    found = values(measure(tmp_path, rollouts, values=wrong))
    assert found["loss_sched_abs"] == 0
    assert found["grad_sched_relative_l2"] > 0.1
    assert found["grad_sched_relative_l2/head"] == 0
    assert found["grad_sched_elementwise"] > 1
    assert found["grad_round_relative_l2"] > 100 * found["grad_round_floor_relative_l2"]
    assert found["update_sched_parameters_elementwise"] > 1


def test_bytes_of_weights_and_optimizer(cell_of: Callable[..., Recorder], rollouts: Path):
    cell = make_cell(rollouts)
    elements = sum(p.numel() for p in build_model(cell, torch.float32).parameters())
    gate = cell.model.hidden_size + 1
    fp32 = values(cell_of(checkpoint="none", precision="fp32"))
    assert (fp32["parameter_bytes"], fp32["optimizer_bytes"]) == (4 * elements, 2 * 4 * (elements - gate))
    bf16 = values(cell_of(checkpoint="none", precision="bf16"))
    assert (bf16["parameter_bytes"], bf16["optimizer_bytes"]) == (2 * elements, 3 * 4 * (elements - gate))
    sgd = values(cell_of(optimizer="sgd"))
    assert sgd["optimizer_bytes"] == 0


def test_checkpoints_keep_less(cell_of: Callable[..., Recorder]):
    cells = {name: values(cell_of(checkpoint=name, precision="fp32")) for name in ("none", "layer", "loop")}
    assert cells["none"]["saved_bytes"] > cells["layer"]["saved_bytes"] > cells["loop"]["saved_bytes"]
    assert cells["none"]["loss"] == cells["layer"]["loss"] == cells["loop"]["loss"]


@pytest.mark.parametrize("checkpoint", ["prefix", "joint", "streamed", "packed_shared"])
def test_shared_prefixes_learn_the_same_and_keep_less(
    tmp_path: Path, rollouts: Path, cell_of: Callable[..., Recorder], checkpoint: str
):
    none = values(cell_of(few_loops=True, precision="fp64"))
    for waves in ({},) if checkpoint == "packed_shared" else ({"checkpoint.wave_responses": 1}, {}):
        shared = values(measure(tmp_path, rollouts, checkpoint=checkpoint, precision="fp64", values=FEW_LOOPS | waves))
        assert shared["loss"] == pytest.approx(none["loss"], abs=1e-12)
        assert shared["grad_sched_relative_l2"] < 1e-12
        assert shared["saved_bytes"] < none["saved_bytes"]
        assert shared["trained_tokens"] == none["trained_tokens"]


def test_what_decides_about_memory_alone_leaves_loss_and_gradient_norm(
    tmp_path: Path, rollouts: Path, cell_of: Callable[..., Recorder]
):
    first = values(cell_of(few_loops=True, precision="fp64"))
    one_by_one = FEW_LOOPS | {"batch.microbatch_tokens": 1}
    second = values(measure(tmp_path, rollouts, precision="fp64", values=one_by_one))
    assert first["microbatches"] < second["microbatches"]
    assert second["loss"] == pytest.approx(first["loss"], abs=1e-12)
    assert second["grad_norm"] == pytest.approx(first["grad_norm"], abs=1e-12)
    assert first["grad_round_relative_l2"] == 0


def test_a_precision_without_a_gate_has_errors_but_no_verdict(tmp_path: Path, rollouts: Path):
    recorder = measure(tmp_path, rollouts, precision="fp16")
    assert "grad_sched_relative_l2" in values(recorder)
    assert "fp16" in recorder.metrics["grad_sched_elementwise"].reason


def test_rollouts_without_a_signal_are_noted(tmp_path: Path):
    recorder = measure(tmp_path, write_rollouts(tmp_path / "flat.jsonl", advantage=0.0))
    assert any("zero" in note for note in recorder.notes)
    assert values(recorder)["grad_norm"] == 0


def test_a_warm_up_may_be_left_out(tmp_path: Path, rollouts: Path):
    recorder = measure(tmp_path, rollouts, values={"experiment.warmup": 0, "experiment.repeats": 1})
    assert values(recorder)["warm_up_steps"] == 0
    assert "warm_up_seconds" not in recorder.metrics


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"temperature": 0.6}, "temperature 0.6 and the cell has rollout.temperature=1"),
        ({"advantage": None}, "has no advantage"),
        ({"response_tokens": [1] * 600, "logprobs": [-1.0] * 600}, r"max_position_embeddings=512"),
        ({"response_tokens": [], "logprobs": []}, "every response is empty"),
        ({"prompt_tokens": [3, 64]}, "token id 64"),
    ],
)
def test_rollouts_that_do_not_serve_the_cell(tmp_path: Path, fields: dict, message: str):
    path = write_rollouts(tmp_path / "bad.jsonl", **fields)
    with pytest.raises(UserError, match=message) as error:
        recorded_samples(make_cell(path))
    assert str(path) in str(error.value)


def test_parts_are_those_that_the_cell_names(rollouts: Path):
    for name, schedule in (("none", NoCheckpoint), ("layer", LayerCheckpoint), ("loop", LoopCheckpoint)):
        assert isinstance(checkpoint_schedule(make_cell(rollouts, checkpoint=name)), schedule)
    adamw = optimizer_settings(make_cell(rollouts, values={"optimizer.beta1": 0.5, "optimizer.eps": 1e-3}))
    assert (adamw.name, adamw.betas, adamw.eps) == ("adamw", (0.5, 0.999), 1e-3)
    sgd = optimizer_settings(
        make_cell(rollouts, optimizer="sgd", values={"optimizer.momentum": 0.9, "optimizer.max_grad_norm": 0.1})
    )
    assert (sgd.name, sgd.momentum, sgd.max_grad_norm) == ("sgd", 0.9, 0.1)


def test_a_checkpoint_is_loaded_and_has_to_be_of_the_planned_shape(tmp_path: Path, rollouts: Path):
    stored = build_model(make_cell(rollouts, values={"model.init_seed": 7}), torch.float32)
    save_hf(stored, tmp_path / "policy")
    loaded = build_model(make_cell(rollouts, values={"model.weights": str(tmp_path / "policy")}), torch.bfloat16)
    assert torch.equal(loaded.lm_head.weight, stored.lm_head.weight.bfloat16())
    with pytest.raises(UserError, match="total_ut_steps is 4"):
        build_model(
            make_cell(rollouts, values={"model.weights": str(tmp_path / "policy"), "model.total_ut_steps": 2}),
            torch.float32,
        )


def test_the_record_is_strict_json(cell_of: Callable[..., Recorder]):
    for metric in cell_of(checkpoint="none", precision="fp32").metrics.values():
        assert not isinstance(metric.value, float) or math.isfinite(metric.value)
        json.dumps(metric.model_dump(), allow_nan=False)


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_bytes_moved_per_trained_token_and_their_share_of_the_bandwidth(
    cell_of: Callable[..., Recorder], rollouts: Path, precision: str
):
    recorder = cell_of(checkpoint="none", precision=precision)
    found, name = values(recorder), "io_bytes_per_trained_token"
    parts = ("weights", "gradients", "readout", "optimizer")
    assert found[name] == pytest.approx(sum(found[f"{name}/{part}"] for part in parts))
    # Two optimizer steps of AdamW: a bf16 weight has a master, which is rounded back.
    width, back = (4, 0) if precision == "fp32" else (2, 4 + 2)
    elements = found["parameter_bytes"] // width - (32 + 1)
    clipping = 2 if make_cell(rollouts).optimizer.max_grad_norm else 0
    per_weight = 4 * (1 + clipping + 1 + 2 * 3) + back
    assert found[f"{name}/optimizer"] * found["trained_tokens"] == pytest.approx(2 * per_weight * elements)
    shares = recorder.metrics["io_bandwidth_share"]
    assert shares.scope == "actor_update"
    assert shares.values == pytest.approx(
        [
            found[name] * found["trained_tokens"] / (second * found["copy_bandwidth"])
            for second in recorder.metrics["actor_update_seconds"].values
        ]
    )


def test_checkpoints_move_more_weights(cell_of: Callable[..., Recorder]):
    name = "io_bytes_per_trained_token"
    none, layer, loop = (values(cell_of(checkpoint=c, precision="fp32")) for c in ("none", "layer", "loop"))
    assert none[f"{name}/weights"] < layer[f"{name}/weights"] < loop[f"{name}/weights"]
    for part in ("gradients", "readout", "optimizer"):
        assert none[f"{name}/{part}"] == layer[f"{name}/{part}"] == loop[f"{name}/{part}"]


def test_a_tiled_readout_learns_the_same_and_keeps_less(
    tmp_path: Path, rollouts: Path, cell_of: Callable[..., Recorder]
):
    full = values(cell_of(checkpoint="none", precision="fp32"))
    tiles = {"checkpoint.readout": "tiled", "checkpoint.readout_tile": 20}
    recorder = measure(tmp_path, rollouts, values=tiles)
    found = values(recorder)
    assert found["loss"] == pytest.approx(full["loss"], abs=1e-6)
    assert found["grad_norm"] == pytest.approx(full["grad_norm"], rel=1e-5)
    assert 0 < found["grad_sched_relative_l2"] < 2e-6  # there is a difference, by rounding: the other is the full one
    assert found["grad_round_relative_l2"] < 1e-5
    assert (
        recorder.metrics["grad_sched_relative_l2"].method
        == "against checkpoint=none with readout=full in the same precision"
    )
    assert found["saved_bytes"] < full["saved_bytes"]


def test_a_wrong_readout_is_seen(tmp_path: Path, rollouts: Path, monkeypatch: pytest.MonkeyPatch):
    class Halving(TiledReadout):
        def __call__(self, model, hidden, targets, temperature):
            return super().__call__(model, 0.5 * hidden + 0.5 * hidden.detach(), targets, temperature)

    monkeypatch.setattr(building, "TiledReadout", Halving)
    found = values(measure(tmp_path, rollouts, values=FEW_LOOPS | {"checkpoint.readout": "tiled"}))
    assert found["grad_sched_relative_l2"] > 0.1


def test_errors_may_be_taken_over_some_responses_alone(
    tmp_path: Path, rollouts: Path, cell_of: Callable[..., Recorder]
):
    whole = values(cell_of(checkpoint="none", precision="fp32"))
    part = values(measure(tmp_path, rollouts, values={"experiment.reference_responses": 2}))
    assert part["trained_tokens"] == whole["trained_tokens"]
    assert part["saved_bytes"] == whole["saved_bytes"]
    assert part["loss"] != whole["loss"]
    halved = {"batch.group_size": 2, "batch.minibatch_responses": 4}
    assert part["loss"] == values(measure(tmp_path, rollouts, values=halved))["loss"]
