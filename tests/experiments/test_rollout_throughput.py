"""`rollout_throughput`: the figures of a cell, and that its reference really judges the rollout."""

from pathlib import Path
from typing import Any

import pytest
import torch
from schema.plain_config import plain_config

from scalerlt.experiments import rollout_throughput
from scalerlt.experiments.requests import request_seed, requests_of
from scalerlt.records.record import Metric
from scalerlt.records.recorder import Recorder
from scalerlt.rollout.native import NativeEngine
from scalerlt.rollout.stats import RolloutResult
from scalerlt.schema import Cell, load_cell

SMALL = {
    "batch.prompts_per_step": 2,
    "batch.group_size": 3,
    "batch.minibatch_responses": 6,
    "batch.rollout_concurrency": 4,
    "rollout.max_new_tokens": 5,
    "rollout.ignore_eos": True,
    "experiment.repeats": 2,
}


def make_cell(values: dict[str, Any] | None = None, **options: str) -> Cell:
    return load_cell(plain_config(SMALL | (values or {}), **{"experiment": "rollout_throughput", **options}))


def measure(cell: Cell, directory: Path) -> tuple[dict[str, Metric], Recorder]:
    recorder = Recorder(directory)
    rollout_throughput.run(cell, recorder)
    recorder.close()
    return recorder.metrics, recorder


def test_a_cell_leaves_every_figure(tmp_path: Path) -> None:
    metrics, recorder = measure(make_cell(), tmp_path)
    assert recorder.passes == ["warm_up", "time", "phases", "coda", "memory", "bandwidth", "reference"]
    assert recorder.notes == []
    # 2 prompts x 3 responses of exactly 5 tokens; the last token of each is not fed back.
    prompt_tokens = sum(len(request.prompt_tokens) for request in requests_of(make_cell()))
    assert metrics["generated_tokens"].value == 30
    assert metrics["prompt_tokens"].value == prompt_tokens
    assert metrics["recurrent_rows"].value == 4 * (prompt_tokens + 6 * 4)
    assert metrics["mean_executed_depth"].value == 4.0
    assert metrics["peak_active"].value == 4
    assert metrics["matrix_path"].value is True
    for name in ("rollout_seconds", "prefill_seconds", "decode_seconds", "tokens_per_second"):
        assert metrics[name].n == 2 and metrics[name].scope
    seconds, rates = metrics["rollout_seconds"].values, metrics["tokens_per_second"].values
    assert rates == pytest.approx([30 / second for second in seconds or []])
    # K/V of 4 loops x 2 layers x 2 heads x 16 numbers x 4 bytes, for 4 slots of the longest request.
    longest = max(len(request.prompt_tokens) for request in requests_of(make_cell())) + 5 - 1
    assert metrics["kv_cache_bytes"].value == 2 * 4 * 2 * 2 * 16 * 4 * 4 * longest
    for phase in ("prefill", "decode"):
        assert isinstance(metrics[f"live_peak_bytes/{phase}"].value, int)
    assert metrics["cuda_peak_allocated_bytes"].status == "unsupported"


@pytest.mark.parametrize(("precision", "bound"), [("fp64", 1e-12), ("fp32", 2e-6)])
def test_rollout_and_learner_agree(precision: str, bound: float, tmp_path: Path) -> None:
    metrics, _ = measure(make_cell(precision=precision), tmp_path)
    assert 0 <= metrics["logprob_error_learner"].value < bound
    assert 0 <= metrics["logprob_error_fp64"].value < bound


def test_the_fp64_reference_is_another_than_the_learner(tmp_path: Path) -> None:
    """In bf16 both differ from the rollout, by different amounts: neither may be computed with the other's weights."""
    metrics, _ = measure(make_cell(precision="bf16"), tmp_path)
    learner, fp64 = metrics["logprob_error_learner"].value, metrics["logprob_error_fp64"].value
    assert 0 < fp64 < 0.1
    assert learner != fp64


@pytest.mark.parametrize("rollout", ["dense", "greedy"])
def test_temperatures(rollout: str, tmp_path: Path) -> None:
    values = {"rollout.temperature": 0.6} if rollout == "dense" else {}
    metrics, _ = measure(make_cell(values, rollout=rollout), tmp_path)
    assert metrics["logprob_error_learner"].value < 2e-6


def test_a_rollout_whose_logprobs_are_wrong_is_found_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    honest = NativeEngine.generate

    def shifted(self: NativeEngine, requests: Any) -> RolloutResult:
        result = honest(self, requests)
        for response in result.responses:
            object.__setattr__(response, "logprobs", (response.logprobs[0] + 0.25, *response.logprobs[1:]))
        return result

    monkeypatch.setattr(NativeEngine, "generate", shifted)
    metrics, _ = measure(make_cell(), tmp_path)
    assert metrics["logprob_error_learner"].value == pytest.approx(0.25, abs=1e-5)


def test_rollouts_that_do_not_repeat_are_noted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    honest, calls = NativeEngine.generate, []

    def drifting(self: NativeEngine, requests: Any) -> RolloutResult:
        calls.append(None)
        with torch.no_grad():
            self.model.lm_head.weight.mul_(1.01)
        return honest(self, requests)

    monkeypatch.setattr(NativeEngine, "generate", drifting)
    _, recorder = measure(make_cell(), tmp_path)
    assert any("did not generate the same" in note for note in recorder.notes)


def test_random_tokens_have_the_length_asked_for(tmp_path: Path) -> None:
    cell = make_cell({"task.prompt_length": 7}, task="random_tokens")
    requests = requests_of(cell)
    assert [len(request.prompt_tokens) for request in requests] == [7] * 6
    assert requests[0].prompt_tokens == requests[2].prompt_tokens != requests[3].prompt_tokens
    metrics, _ = measure(cell, tmp_path)
    assert metrics["padded_tokens"].value == 0


def test_a_response_of_one_token_has_no_decode_throughput(tmp_path: Path) -> None:
    metrics, _ = measure(make_cell({"rollout.max_new_tokens": 1}), tmp_path)
    assert metrics["decode_tokens_per_second"].status == "not_measured"
    assert metrics["tokens_per_second"].status == "measured"


def test_seeds_of_requests_are_distinct_over_cells_and_requests() -> None:
    seeds = {request_seed(seed, index) for seed in range(50) for index in range(200)}
    assert len(seeds) == 50 * 200


def test_bytes_moved_per_generated_token_and_their_share_of_the_bandwidth(tmp_path: Path) -> None:
    metrics, recorder = measure(make_cell(), tmp_path)
    value = {name: metric.value for name, metric in metrics.items()}
    parts = ("weights", "kv_read", "kv_written", "readout")
    name = "io_bytes_per_generated_token"
    assert value[name] == pytest.approx(sum(value[f"{name}/{part}"] for part in parts))
    assert {metrics[f"{name}/{part}"].unit for part in parts} == {"B/token"}
    # 4 loops x 2 layers of K and V of 2 heads x 16 numbers x 4 bytes, for each token that was fed in, and those moved.
    row = 2 * 4 * 2 * 2 * 16 * 4
    assert value[f"{name}/kv_written"] * 30 >= row * (value["prompt_tokens"] + 6 * 4)
    shares = metrics["io_bandwidth_share"]
    assert shares.scope == "rollout"
    assert shares.values == pytest.approx(
        [30 * value[name] / (second * value["copy_bandwidth"]) for second in metrics["rollout_seconds"].values or []]
    )
    assert recorder.passes.index("bandwidth") > recorder.passes.index("time")


def test_without_room_for_the_copy_the_share_has_a_reason(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("scalerlt.measure.bandwidth.COPIED_BYTES", {"cpu": 2**60})
    metrics, _ = measure(make_cell(), tmp_path)
    assert "no room" in (metrics["copy_bandwidth"].reason or "")
    assert metrics["io_bandwidth_share"].status == metrics["copy_bandwidth"].status == "not_measured"
    assert metrics["io_bytes_per_generated_token"].status == "measured"
