"""The experiments on `rollout/engine=vllm` and `rollout/engine=hf`, as they stand."""

import json
from pathlib import Path
from typing import Any

import pytest
from schema.plain_config import option, plain_config

from scalerlt.experiments import gsm8k_eval, gsm8k_reward, rollout_throughput
from scalerlt.measure import bandwidth
from scalerlt.planning.capacity import Capacity
from scalerlt.planning.memory import memory_plan
from scalerlt.records.recorder import Recorder
from scalerlt.schema import Cell, load_cell
from scalerlt.schema.machine import Machine

SMALL = {
    "batch.prompts_per_step": 2,
    "batch.group_size": 2,
    "batch.minibatch_responses": 4,
    "batch.rollout_concurrency": 4,
    "rollout.max_new_tokens": 6,
    "rollout.ignore_eos": True,
}


@pytest.fixture(autouse=True)
def _a_small_copy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bandwidth, "COPIED_BYTES", {"cpu": 2**16})


def cell_of(experiment: str, values: dict[str, Any], engine: str = "vllm", model: str = "small_ouro") -> Cell:
    chosen = {"rollout.engine": option("rollout/engine", engine)}
    return load_cell(plain_config(SMALL | chosen | values, experiment=experiment, model=model))


def measure(run: Any, experiment: str, values: dict[str, Any], directory: Path, **options: str) -> Recorder:
    cell = cell_of(experiment, values, **options)
    assert cell.unsupported_on(Machine(gpus=0, gpu_reason="", cpus=1)) is None
    recorder = Recorder(directory)
    run(cell, recorder)
    recorder.close()
    return recorder


def test_rollout_throughput(tmp_path: Path) -> None:
    recorder = measure(
        rollout_throughput.run, "rollout_throughput", {"experiment.repeats": 2, "experiment.company": True}, tmp_path
    )
    metrics = recorder.metrics
    assert recorder.notes == []
    assert metrics["generated_tokens"].value == 4 * 6 and metrics["mean_executed_depth"].value == 4
    assert 0 < metrics["logprob_error_fp64"].value < 1e-4
    assert 0 < metrics["logprob_error_learner"].value < 1e-4
    assert metrics["time_to_first_token_seconds"].n == metrics["decode_tokens_per_second"].n == 2
    assert metrics["company_near_ties"].value == 0
    for name in ("live_peak_bytes", "padded_share", "coda_seconds"):
        assert metrics[name].status == "not_measured" and metrics[name].reason
    plan = memory_plan(cell_of("rollout_throughput", {}), Capacity(host=None, host_is="", gpu=None))
    assert plan is not None
    assert metrics["kv_cache_bytes"].value == plan.phases["prefill"]["kv_cache"]


def test_rollout_throughput_of_transformers(tmp_path: Path) -> None:
    metrics = measure(
        rollout_throughput.run, "rollout_throughput", {"experiment.repeats": 1}, tmp_path, engine="hf", model="hf"
    ).metrics
    assert metrics["generated_tokens"].value == 4 * 6 and metrics["mean_executed_depth"].value == 1
    assert 0 < metrics["logprob_error_fp64"].value < 1e-4
    assert metrics["kv_cache_bytes"].status == "not_measured" and metrics["padded_share"].value > 0


def test_gsm8k_eval(tmp_path: Path) -> None:
    metrics = measure(gsm8k_eval.run, "gsm8k_eval", {"experiment.problems": 3}, tmp_path).metrics
    assert metrics["accuracy"].n == 3 and metrics["loop/exit_depth_mean"].value == 4


def test_gsm8k_reward(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each step publishes weights that moved far, and what the learner and vLLM say of the same tokens agrees."""
    monkeypatch.setattr(gsm8k_reward, "dealt_rewards", lambda cell, step, graded: [float(i % 2) for i in range(4)])
    values = {
        "experiment.steps": 3,
        "experiment.eval_problems": 2,
        "experiment.checkpoint_every": 0,
        "optimizer.learning_rate": 0.01,
        "rollout.temperature": 0.8,
    }
    recorder = measure(gsm8k_reward.run, "gsm8k_reward", values, tmp_path)
    rows = [json.loads(line) for line in (tmp_path / "series.jsonl").read_text().splitlines()]
    found = [row["train_rollout_logprob_abs_diff"] for row in rows if "train_rollout_logprob_abs_diff" in row]
    assert len(found) == 3 and max(found) < 1e-5
    assert recorder.metrics["steps"].value == 3


@pytest.mark.parametrize("engine", ["native", "vllm", "hf"])
def test_a_plain_transformer_learns(engine: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The control runs on every engine: after moves of its weights the engine still says what the learner says."""
    monkeypatch.setattr(gsm8k_reward, "dealt_rewards", lambda cell, step, graded: [float(i % 2) for i in range(4)])
    values = {
        "experiment.steps": 2,
        "experiment.eval_problems": 2,
        "experiment.checkpoint_every": 0,
        "optimizer.learning_rate": 0.01,
    }
    measure(gsm8k_reward.run, "gsm8k_reward", values, tmp_path, engine=engine, model="hf")
    rows = [json.loads(line) for line in (tmp_path / "series.jsonl").read_text().splitlines()]
    found = [row["train_rollout_logprob_abs_diff"] for row in rows if "train_rollout_logprob_abs_diff" in row]
    assert len(found) == 2 and max(found) < 1e-5
