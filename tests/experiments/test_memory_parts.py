"""What a cell records of the parts of its memory."""

from pathlib import Path

import pytest
from experiments.actor_cells import leave_out_comparisons, make_cell, write_rollouts
from schema.plain_config import plain_config

from scalerlt.experiments import actor_update, rollout_throughput
from scalerlt.measure.breakdown import PARTS
from scalerlt.measure.storages import Storages
from scalerlt.numerics.precision import number_format
from scalerlt.records.recorder import Recorder
from scalerlt.schema import load_cell

PHASES = ("forward", "backward", "optimizer")
TILED = {"checkpoint.readout": "tiled", "checkpoint.readout_tile": 48}


def memory_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, **options) -> dict[str, float]:
    leave_out_comparisons(monkeypatch)
    values = {"model.total_ut_steps": 2, "experiment.warmup": 0, "experiment.repeats": 1} | options.pop("values", {})
    recorder = Recorder(tmp_path)
    actor_update.run(make_cell(write_rollouts(tmp_path / "rollouts.jsonl"), values=values, **options), recorder)
    recorder.close()
    for name, metric in recorder.metrics.items():
        assert "memory" not in name or metric.method
    return {name: metric.value for name, metric in recorder.metrics.items() if metric.status == "measured"}


def parts_of(found: dict[str, float], phase: str = "") -> dict[str, float]:
    name = f"{phase}_memory_bytes" if phase else "memory_bytes"
    return {part: found[f"{name}/{part}"] for part in PARTS}


@pytest.mark.parametrize(("checkpoint", "precision", "values"), [("none", "fp32", {}), ("streamed", "bf16", TILED)])
def test_the_parts_add_up_to_the_peak(tmp_path, monkeypatch, checkpoint: str, precision: str, values: dict):
    found = memory_of(tmp_path, monkeypatch, checkpoint=checkpoint, precision=precision, values=values)
    standing = found["parameter_bytes"] + found["optimizer_bytes"]
    assert found["memory_peak_bytes"] == standing + found["live_peak_bytes"]
    for phase in ("", *PHASES):
        suffix, parts = f"/{phase}" if phase else "", parts_of(found, phase)
        peak = found[f"memory_peak_bytes{suffix}"]
        assert abs(peak - sum(parts.values())) <= 0.02 * peak
        assert found[f"memory_unexplained_relative{suffix}"] == (peak - sum(parts.values())) / peak
        assert parts["weights"] == found["parameter_bytes"]
        assert parts["optimizer"] == found["optimizer_bytes"]
    backward, optimizer = parts_of(found, "backward"), parts_of(found, "optimizer")
    assert backward["activations"] > 0 and backward["kv"] > 0
    trained = found["parameter_bytes"] / number_format(precision).dtype.itemsize - 33  # the exit gate has none
    assert optimizer["gradients"] == 4 * trained  # in the precision of the master weights
    assert max(optimizer[part] for part in ("activations", "logits", "kv")) == 0


def test_what_is_not_followed_is_unexplained(tmp_path, monkeypatch):
    """The parts are no division of the allocator's figure: without the logits they lack them."""
    vocabulary, follow = make_cell(tmp_path / "rollouts.jsonl").model.vocab_size, Storages.follow

    def blind(self, tensor) -> None:
        if tensor.dim() != 2 or tensor.shape[1] != vocabulary:
            follow(self, tensor)

    monkeypatch.setattr(Storages, "follow", blind)
    found = memory_of(tmp_path, monkeypatch)
    assert found["memory_unexplained_relative"] > 0.02
    assert found["memory_bytes/logits"] == 0


def test_the_pool_of_a_rollout_is_its_keys_and_values(tmp_path):
    values = {"model.weights": None, "experiment.repeats": 1, "experiment.warmup": 0}
    cell = load_cell(plain_config(values, experiment="rollout_throughput"))
    recorder = Recorder(tmp_path)
    rollout_throughput.run(cell, recorder)
    recorder.close()
    found = {name: metric.value for name, metric in recorder.metrics.items()}
    for phase in ("", "prefill", "decode"):
        parts, peak = parts_of(found, phase), found[f"memory_peak_bytes/{phase}".removesuffix("/")]
        assert parts["kv"] == found["kv_cache_bytes"]
        assert abs(peak - sum(parts.values())) <= 0.02 * peak
        assert max(parts[part] for part in ("gradients", "optimizer", "activations")) == 0
    assert parts_of(found, "decode")["logits"] > 0
