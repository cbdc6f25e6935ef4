"""The real GSM8K through the same loop and the same evaluation."""

import json
from pathlib import Path

import pytest
from schema.plain_config import plain_config

from scalerlt.experiments import gsm8k_eval, gsm8k_reward
from scalerlt.records.recorder import Recorder
from scalerlt.records.samples import read_samples
from scalerlt.schema import load_cell
from scalerlt.tasks.gsm8k import gsm8k

TINY_ON_GSM8K = {"model.max_position_embeddings": 2048, "batch.rollout_concurrency": 16}


@pytest.fixture
def attempt(tmp_path: Path) -> Path:
    path = tmp_path / "cell" / "attempt-001"
    path.mkdir(parents=True)
    return path


def test_the_loop_runs_on_gsm8k_and_shows_the_reward_of_a_model_that_cannot_solve_it(gsm8k_directory, attempt):
    values = {
        **TINY_ON_GSM8K,
        "task.path": str(gsm8k_directory),
        "batch.prompts_per_step": 2,
        "batch.group_size": 4,
        "batch.minibatch_responses": 8,
        "rollout.max_new_tokens": 24,
        "experiment.steps": 2,
        "experiment.evaluate_every": 2,
        "experiment.eval_problems": 8,
        "experiment.save_every": 1,
        "experiment.checkpoint_every": 0,
    }
    options = {"task": "gsm8k", "algorithm": "grpo", "rollout": "last_exited", "logprob": "hybrid"}
    recorder = Recorder(attempt)
    gsm8k_reward.run(load_cell(plain_config(values, experiment="gsm8k_reward", **options)), recorder)
    recorder.close()
    rows = [json.loads(line) for line in (attempt / "series.jsonl").read_text().splitlines()]
    trained = [row for row in rows if "reward" in row]
    assert [row["step"] for row in trained] == [1, 2]
    assert all(row["reward"] < 0.5 and row["loop/exit_depth_mean"] < 4 for row in trained)
    assert recorder.metrics["accuracy"].n == 8
    assert recorder.metrics["accuracy"].value < 0.5
    known = {problem.problem_id: problem for split in ("train", "test") for problem in gsm8k(gsm8k_directory, split)}
    for sample in read_samples(attempt / "samples" / "step-000001.jsonl").samples:
        assert sample.question == known[sample.problem_id].question
        assert sample.gold == str(known[sample.problem_id].gold)


def test_the_reference_answers_of_gsm8k_all_score(gsm8k_directory, attempt):
    values = {
        **TINY_ON_GSM8K,
        "task.path": str(gsm8k_directory),
        "experiment.answers": "reference",
        "experiment.problems": 1319,
    }
    recorder = Recorder(attempt)
    gsm8k_eval.run(load_cell(plain_config(values, experiment="gsm8k_eval", task="gsm8k")), recorder)
    recorder.close()
    assert recorder.metrics["accuracy"].value == 1
    assert recorder.metrics["accuracy"].n == 1319
