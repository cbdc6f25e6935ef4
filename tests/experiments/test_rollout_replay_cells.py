"""`rollout_throughput` with its replay: what is counted, what is judged, and what a policy cannot have."""

from dataclasses import replace
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
import torch
from experiments.test_rollout_throughput import make_cell, measure
from schema.plain_config import plain_config

from scalerlt.experiments.rollout_replay import largest_difference, mismatches
from scalerlt.measure.clock import Stopwatch
from scalerlt.records.record import Metric
from scalerlt.rollout.native import NativeEngine
from scalerlt.rollout.request import Request
from scalerlt.rollout.stats import RolloutResult
from scalerlt.schema import load_cell
from scalerlt.schema.machine import Machine

CPU = Machine(gpus=0, gpu_reason="none here", cpus=2)
REPLAY = {"experiment.replay": True, "experiment.memory": False, "experiment.warmup": 0, "model.weights": None}
PHASES = ("prefill", "decode")
EARLY = {"rollout.exit_threshold": 0.6}


def replayed(directory: Path, values: dict[str, Any] | None = None, **options: str) -> dict[str, Metric]:
    metrics, recorder = measure(make_cell(REPLAY | (values or {}), **options), directory)
    assert recorder.passes == ["warm_up", "time", "phases", "coda", "replay", "bandwidth", "reference"]
    return metrics


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("rollout", ["dense", "last_exited", "delayed_exit", "deferred_fill", "shared_kv", "trace"])
def test_the_engine_repeats_its_rollout_bit_for_bit(rollout: str, precision: str, tmp_path: Path) -> None:
    values = EARLY if rollout not in ("dense", "trace") else {}
    metrics = replayed(tmp_path, values, rollout=rollout, precision=precision)
    assert metrics["replay_tokens"].value == 30
    assert metrics["replay_mismatches/engine"].value == 0
    assert metrics["replay_largest_difference/engine"].value == 0.0
    assert metrics["replay_seconds/rollout"].n == metrics["replay_over_rollout/engine"].n == 2
    ratios = [
        mine / theirs
        for mine, theirs in zip(
            metrics["replay_seconds/engine"].values or [], metrics["replay_seconds/rollout"].values or [], strict=True
        )
    ]
    assert metrics["replay_over_rollout/engine"].values == ratios
    if rollout == "shared_kv":
        for name in ("seconds", "over_rollout", "mismatches", "largest_difference"):
            assert metrics[f"replay_{name}/packed"].status == "unsupported"
        assert "no pass over all positions" in (metrics["replay_seconds/packed"].reason or "")
        assert metrics["logprob_error_learner"].status == "unsupported"
        assert "the engine's own steps" in (metrics["logprob_error_fp64"].method or "")
    else:
        bound = 2e-6 if precision == "fp32" else 0.1
        assert 0 <= metrics["replay_largest_difference/packed"].value < bound
        assert (metrics["replay_largest_difference/packed"].value == 0) == (
            metrics["replay_mismatches/packed"].value == 0
        )
    assert 0 < metrics["logprob_error_fp64"].value < (2e-6 if precision == "fp32" else 0.1)


@pytest.mark.parametrize("kv", ["last_exited", "deferred_fill"])
def test_the_packed_replay_reads_what_the_rollout_read(kv: str, tmp_path: Path) -> None:
    """Trained weights, and depths of all kinds: what stands for the K/V of loops that were left out shows."""
    values = {
        "model.weights": "pkg://scalerlt.models/tiny_ouro",
        "rollout.kv": kv,
        "rollout.depth_shares": [0.25, 0.25, 0.25, 0.25],
        "rollout.max_new_tokens": 8,
    }
    metrics = replayed(tmp_path, values, rollout="trace", precision="fp64")
    assert metrics["replay_largest_difference/packed"].value < 1e-10
    assert metrics["replay_mismatches/engine"].value == 0


@pytest.mark.parametrize("values", [{"rollout.temperature": 0.0}, {"rollout.top_k": 7}, {"rollout.top_p": 0.6}])
def test_where_the_rollout_is_greedy_or_truncated_the_unscaled_log_probs_are_compared(
    values: dict[str, Any], tmp_path: Path
) -> None:
    metrics = replayed(tmp_path, {**values, **EARLY}, rollout="last_exited")
    assert metrics["replay_mismatches/engine"].value == 0
    assert metrics["replay_largest_difference/packed"].value < 2e-6


@pytest.mark.parametrize("wrong", ["depth", "token", "weight", "company"])
def test_a_replay_that_is_another_is_counted(wrong: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the engine is forced to is changed behind the experiment's back."""
    honest = NativeEngine.generate

    def tampered(self: NativeEngine, requests: list[Request]) -> RolloutResult:
        if requests[0].forced_tokens is None:
            return honest(self, requests)
        first = requests[0]
        tokens, depths = list(first.forced_tokens or ()), list(first.forced_depths or ())
        weight = self.model.lm_head.weight.clone()
        match wrong:
            case "token":
                tokens[1] = (tokens[1] + 1) % 100
            case "depth":
                depths[1] = depths[1] % 4 + 1
            case "weight":
                with torch.no_grad():
                    self.model.lm_head.weight[:, 0] += 1e-3
            case "company":
                self.concurrency = 1
        changed = replace(first, forced_tokens=tuple(tokens), forced_depths=tuple(depths))
        try:
            return honest(self, [changed, *requests[1:]])
        finally:
            with torch.no_grad():
                self.model.lm_head.weight.copy_(weight)

    monkeypatch.setattr(NativeEngine, "generate", tampered)
    metrics = replayed(tmp_path, EARLY, rollout="last_exited")
    assert metrics["replay_mismatches/engine"].value > 0
    assert metrics["replay_largest_difference/engine"].value > 0
    assert metrics["replay_largest_difference/packed"].value < 2e-6, "the packed replay is of the recorded tokens"


def test_differences_are_of_the_same_token() -> None:
    ours, theirs = [[-1.0, -2.0], [-3.0]], [(-1.0, -2.5), (-3.0,)]
    assert mismatches(ours, theirs) == 1
    assert largest_difference(ours, theirs) == 0.5
    with pytest.raises(ValueError, match="zip"):
        mismatches(ours, [(-1.0, -2.5)])


@cache
def usual() -> dict[str, Metric]:
    """The figures of the cell by default, which is run once."""
    with TemporaryDirectory() as directory:
        return measure(make_cell(), Path(directory))[0]


def test_without_the_memory_passes_their_figures_have_a_reason(tmp_path: Path) -> None:
    metrics, recorder = measure(make_cell({"experiment.memory": False}), tmp_path)
    assert "memory" not in recorder.passes
    for name in ("live_peak_bytes", "rss_peak_bytes", "memory_peak_bytes", "memory_bytes/kv"):
        assert metrics[name].status == "not_measured"
        assert metrics[name].reason == "the cell has experiment.memory=false"
    here = {name for name in usual() if "memory" in name or "live" in name or "rss" in name or "cuda" in name}
    parts = {name for name in here if name.startswith(PHASES) or name.endswith(PHASES)}
    said = {name for name, metric in metrics.items() if "memory=false" in (metric.reason or "")}
    assert said == here - parts


def test_the_reference_is_of_so_many_requests(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    honest = NativeEngine.generate

    def shifted(self: NativeEngine, requests: Any) -> RolloutResult:
        result = honest(self, requests)
        for response in result.responses[2:]:
            object.__setattr__(response, "logprobs", (response.logprobs[0] + 0.25, *response.logprobs[1:]))
        return result

    monkeypatch.setattr(NativeEngine, "generate", shifted)
    for first, found in ((2, False), (3, True), (None, True)):
        metrics, _ = measure(make_cell({"experiment.reference_requests": first}), tmp_path)
        assert (metrics["logprob_error_learner"].value > 0.2) == found
        assert f"of {first or 6} responses" in (metrics["logprob_error_learner"].method or "")


def test_first_tokens_are_timed_from_the_start_of_the_batch() -> None:
    """6 requests in 4 slots: two of them wait."""
    mean, last = usual()["time_to_first_token_seconds"], usual()["time_to_first_token_seconds/largest"]
    assert mean.n == last.n == 2
    assert all(0 < m < w for m, w in zip(mean.values or [], last.values or [], strict=True))
    clock = iter([0.0, 1.0, 5.0])
    watch = Stopwatch(lambda: None, lambda: next(clock))
    watch.lap()
    watch.lap("what")
    assert watch.laps == [1.0, 5.0]


def test_rows_padding_and_what_a_coda_lets_expect(tmp_path: Path) -> None:
    """Depths are given, so d is known."""
    values = {"rollout.depth_shares": [0.0, 0.75, 0.0, 0.25]}
    metrics, _ = measure(make_cell(values, rollout="trace"), tmp_path)
    value = {name: metric.value for name, metric in metrics.items()}
    loops = 2 * value["decode_tokens/depth_2"] + 4 * value["decode_tokens/depth_4"]
    assert value["decode_tokens/depth_2"] + value["decode_tokens/depth_4"] == 24
    assert value["recurrent_rows"] == 4 * value["prompt_tokens"] + loops
    assert value["rows_per_decoded_token"] == loops / 24
    assert value["loops_saved"] == pytest.approx(4 * 24 / loops)
    assert metrics["recurrent_rows_per_second"].values == pytest.approx(
        [value["recurrent_rows"] / second for second in metrics["rollout_seconds"].values or []]
    )
    padded = 4 * value["padded_tokens"]
    assert value["padded_tokens"] > 0
    assert value["padded_rows"] == padded
    assert value["padded_share"] == padded / (padded + value["recurrent_rows"])
    share = value["coda_seconds"] / value["loop_seconds"]
    assert value["coda_over_loop"] == share
    assert value["expected_speedup"] == pytest.approx(4 * 24 / loops * (1 + share / 4) / (1 + share))
    assert metrics["loop_seconds"].n == metrics["coda_seconds"].n == 20
    assert "4 rows" in (metrics["loop_seconds"].method or "")


def test_of_a_dense_rollout_and_of_single_tokens_no_speed_is_expected(tmp_path: Path) -> None:
    assert (usual()["loops_saved"].value, usual()["expected_speedup"].status) == (1.0, "unsupported")
    metrics, _ = measure(make_cell({"rollout.max_new_tokens": 1}, rollout="trace"), tmp_path)
    assert metrics["expected_speedup"].status == metrics["rows_per_decoded_token"].status == "not_measured"


PLAIN = {"rollout.engine": {"name": "plain", "_target_": "scalerlt.rollout.plain.PlainEngine"}}


def test_the_plain_engine_as_a_cell(tmp_path: Path) -> None:
    cell = make_cell(REPLAY | PLAIN)
    assert cell.unsupported_on(CPU) is None
    metrics, recorder = measure(cell, tmp_path)
    assert recorder.notes == []
    batched, _ = measure(make_cell(REPLAY), tmp_path)
    for name in ("generated_tokens", "recurrent_rows", "mean_executed_depth", "replay_tokens"):
        assert metrics[name].value == batched[name].value
    assert metrics["peak_active"].value == 1
    assert metrics["padded_share"].value == 0
    assert metrics["replay_mismatches/engine"].value == 0
    assert metrics["logprob_error_learner"].value < 2e-6


@pytest.mark.parametrize(
    ("values", "options", "said"),
    [
        ({}, {"rollout": "last_exited"}, "runs every token at full depth; use rollout=dense instead of last_exited"),
        ({"rollout.deterministic": True}, {}, "has no batch"),
        ({}, {"experiment": "gsm8k_eval"}, "use experiment=rollout_throughput"),
    ],
)
def test_what_the_plain_engine_does_not_do(values: dict[str, Any], options: dict[str, str], said: str) -> None:
    chosen = {"experiment": "rollout_throughput"} | options
    assert said in (load_cell(plain_config(PLAIN | values, **chosen)).unsupported_on(CPU) or "")
