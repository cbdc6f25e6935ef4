"""What generates: older policies with a lag, in a precision of their own, judged at their newest."""

import copy
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from schema.plain_config import plain_config

from scalerlt.experiments import gsm8k_reward
from scalerlt.experiments.answers import Answer, answer
from scalerlt.experiments.building import build_engine, build_model
from scalerlt.experiments.gradient_bias import bias_of_step
from scalerlt.experiments.inputs import problems
from scalerlt.experiments.learning import training_responses
from scalerlt.experiments.policy import Policy
from scalerlt.experiments.requests import tokenizer_of
from scalerlt.experiments.training_problems import TrainingProblems
from scalerlt.learner.batching import minibatches_of, pack
from scalerlt.learner.logprobs import replay_logprobs
from scalerlt.models.checkpoint import load_hf
from scalerlt.models.ouro import OuroForCausalLM
from scalerlt.records.recorder import Recorder
from scalerlt.records.samples import Sample, read_samples
from scalerlt.schema import Cell, load_cell
from scalerlt.schema.machine import Machine

STEPS = 5
SMALL = {
    "model.weights": None,
    "batch.prompts_per_step": 2,
    "batch.group_size": 4,
    "batch.minibatch_responses": 2,
    "batch.rollout_concurrency": 8,
    "rollout.max_new_tokens": 6,
    "experiment.steps": STEPS,
    "experiment.evaluate_every": 2,
    "experiment.eval_problems": 4,
    "experiment.save_every": 1,
    "experiment.checkpoint_every": 1,
    "experiment.keep_last": 9,
    "optimizer.learning_rate": 1e-2,
}


def make_cell(values: dict[str, Any] | None = None, **options: str) -> Cell:
    chosen = {"experiment": "gsm8k_reward", "algorithm": "grpo", "rollout": "last_exited", "logprob": "hybrid"}
    return load_cell(plain_config(SMALL | (values or {}), **(chosen | options)))


@pytest.fixture(autouse=True)
def _rewards_that_differ(monkeypatch: pytest.MonkeyPatch) -> None:
    """Random weights answer nothing right: reward a property of the text, so that there is something to learn."""
    monkeypatch.setattr(Answer, "reward", property(lambda self: float(sum(self.response.tokens) % 2 == 0)))


def trained(cell: Cell, directory: Path) -> Path:
    path = directory / "cell" / "attempt-001"
    path.mkdir(parents=True)
    recorder = Recorder(path)
    gsm8k_reward.run(cell, recorder)
    recorder.close()
    return path


def rows(path: Path) -> list[dict[str, Any]]:
    found = [json.loads(line) for line in (path / "series.jsonl").read_text().splitlines()]
    return [row for row in found if "reward" in row]


def policy_after(step: int, cell: Cell, path: Path, dtype: torch.dtype = torch.float32) -> OuroForCausalLM:
    """As it was saved, and rounded to `dtype`."""
    if step == 0:
        return build_model(cell, torch.float32).to(dtype)
    return load_hf(path / "checkpoints" / f"step-{step:06d}" / "policy", torch.float32, "cpu").to(dtype)


def generated(cell: Cell, step: int, model: OuroForCausalLM) -> list[Answer]:
    """The rollout batch of a step by a fresh engine over `model`."""
    return answer(
        cell,
        build_engine(cell, model),
        tokenizer_of(cell),
        TrainingProblems(cell).of_step(step),
        group_size=4,
        temperature=1.0,
        first_seed=(step - 1) * 8,
    )[0]


def saved(path: Path, kind: str, step: int) -> list[Sample]:
    return read_samples(path / "samples" / f"{kind}-{step:06d}.jsonl").samples


def said(samples: list[Sample]) -> list[tuple[list[int], list[float]]]:
    return [(sample.response_tokens, sample.logprobs) for sample in samples]


def spoken(answers: list[Answer]) -> list[tuple[list[int], list[float]]]:
    return [(list(one.response.tokens), list(one.response.logprobs)) for one in answers]


@pytest.mark.parametrize("lag", [0, 1, 2, 9])
def test_a_step_generates_with_the_policy_of_its_lag(lag: int, tmp_path: Path) -> None:
    cell = make_cell({"experiment.lag": lag})
    path = trained(cell, tmp_path)
    for row in rows(path):
        step = row["step"]
        version = max(0, step - 1 - lag)
        assert (row["weight_version"], row["weight_lag"]) == (version, step - 1 - version)
        samples = saved(path, "step", step)
        assert {sample.weight_version for sample in samples} == {version}
        assert said(samples) == spoken(generated(cell, step, policy_after(version, cell, path)))
        if lag and step > 1:
            assert said(samples) != spoken(generated(cell, step, policy_after(step - 1, cell, path)))


def test_what_is_judged_is_the_newest_policy_whatever_the_lag(tmp_path: Path) -> None:
    cell = make_cell({"experiment.lag": 2})
    path = trained(cell, tmp_path)
    questions = problems(cell, 4, "test")
    for step in (0, 2, 4, 5):
        samples = saved(path, "eval", step)
        assert {sample.weight_version for sample in samples} == {step}
        engine = build_engine(cell, policy_after(step, cell, path))
        answers, _ = answer(cell, engine, tokenizer_of(cell), questions, group_size=1, temperature=0.0)
        assert said(samples) == spoken(answers)


def test_full_depth_is_judged_of_the_newest_policy() -> None:
    cell = make_cell({"experiment.lag": 1})
    policy = Policy(cell)
    with torch.no_grad():
        for parameter in policy.model.parameters():
            parameter.mul_(1.05)
    policy.publish(1)
    questions = problems(cell, 4, "test")
    engine = build_engine(cell, copy.deepcopy(policy.model), full_depth=True)
    expected, _ = answer(cell, engine, tokenizer_of(cell), questions, group_size=1, temperature=0.0)
    assert spoken(policy.greedy(questions, full_depth=True)) == spoken(expected)
    assert policy.engine(2).weight_version == 0
    assert policy.engine(3).weight_version == 1


def test_versions_that_no_rollout_will_use_are_not_held() -> None:
    policy = Policy(make_cell({"experiment.lag": 2}))
    for version in range(1, 5):
        policy.publish(version)
        assert list(policy.served.older()) == list(range(max(1, version - 2), version))
    assert policy.engine(5).weight_version == 2


@pytest.mark.parametrize("lag", [0, 1])
def test_the_rollout_has_a_precision_of_its_own(lag: int, tmp_path: Path) -> None:
    cell = make_cell({"rollout.precision": "bf16", "experiment.lag": lag, "experiment.steps": 3})
    path = trained(cell, tmp_path)
    for row in rows(path):
        version = max(0, row["step"] - 1 - lag)
        rounded = policy_after(version, cell, path, torch.bfloat16)
        assert said(saved(path, "step", row["step"])) == spoken(generated(cell, row["step"], rounded))
        assert row["first_update/train_rollout_logprob_abs_diff_max"] > 1e-4
    weights = sum(parameter.numel() for parameter in build_model(cell, torch.float32).parameters())
    assert {row["publication_bytes"] for row in rows(path)} == {(4 + 2) * weights}


@pytest.mark.parametrize(
    ("values", "options", "reason"),
    [
        ({"rollout.precision": "bf16"}, {"experiment": "gsm8k_eval"}, "one copy of the weights"),
    ],
)
def test_a_precision_that_says_nothing_is_refused(values: dict[str, Any], options: dict[str, str], reason: str) -> None:
    chosen = {"experiment": "gsm8k_reward", "algorithm": "grpo"} | options
    cell = load_cell(plain_config({"model.weights": None} | values, **chosen))
    assert reason in str(cell.unsupported_on(Machine(gpus=0, gpu_reason="none", cpus=1)))


def test_only_the_first_update_is_on_policy(tmp_path: Path) -> None:
    """Its ratio is 1 by construction for a hybrid learner, and not for a dense one."""
    hybrid = rows(trained(make_cell({"experiment.checkpoint_every": 0}), tmp_path / "hybrid"))
    dense = rows(trained(make_cell({"experiment.checkpoint_every": 0}, logprob="dense"), tmp_path / "dense"))
    for row in hybrid:
        assert row["updates"] == 4
        assert row["first_update/actor/ratio_deviation_max"] < 1e-5
        assert row["first_update/actor/pg_clipfrac"] == 0
        assert row["actor/ratio_deviation_max"] > 1e-3
        assert row["rollout_corr/kept_share"] == 1
    assert all(row["first_update/actor/ratio_deviation_max"] > 1e-3 for row in dense)


def test_the_bias_of_the_gradient_is_that_of_the_learner_and_changes_nothing(tmp_path: Path) -> None:
    values = {"experiment.steps": 3, "experiment.checkpoint_every": 0, "experiment.grad_bias_every": 2}
    found = {}
    for logprob in ("replay", "hybrid", "dense"):
        found[logprob] = rows(trained(make_cell(values, logprob=logprob), tmp_path / logprob))
        assert [row["step"] for row in found[logprob] if "grad_bias_relative_l2" in row] == [1, 3]
        assert all(row["observing_s/grad_bias"] > 0 for row in found[logprob][::2])
    for step in (0, 2):
        bias = {logprob: of[step]["grad_bias_relative_l2"] for logprob, of in found.items()}
        assert bias["replay"] < 1e-4 < 1e-2 < bias["hybrid"]
        assert bias["dense"] > 1e-2
        assert all(of[step]["grad_sd_relative"] > 0 for of in found.values())
    unobserved = rows(trained(make_cell({**values, "experiment.grad_bias_every": 0}), tmp_path / "unobserved"))
    for name in ("loss", "grad_norm", "reward", "entropy"):
        assert [row[name] for row in unobserved] == [row[name] for row in found["hybrid"]]


def test_the_bias_is_against_the_weights_that_generated() -> None:
    """Of the plain policy gradient through the replay: its gradient here less that there, by plain autograd."""
    cell = make_cell({"algorithm.reduction": "response_mean"}, logprob="replay", algorithm="policy_gradient")
    served, model = (build_model(cell, torch.float32) for _ in range(2))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(1.01)
    samples = [one.sample(advantage=float(index % 3) - 1) for index, one in enumerate(generated(cell, 1, served))]
    responses = training_responses(samples, None)

    def gradient(of: OuroForCausalLM) -> torch.Tensor:
        wide = copy.deepcopy(of).double()
        batch = pack(responses, torch.device("cpu"))
        logprobs = replay_logprobs(wide, batch, temperature=1.0)
        weights = batch.response_mask / batch.response_mask.sum(-1, keepdim=True) / len(responses)
        advantages = torch.tensor([[response.advantage] for response in responses], dtype=torch.float64)
        (-(weights * advantages * logprobs).sum()).backward()
        return torch.cat([(torch.zeros_like(p) if p.grad is None else p.grad).flatten() for p in wide.parameters()])

    here, there = gradient(model), gradient(served)
    groups = minibatches_of(responses, 4)
    found = bias_of_step(cell, model, served, groups)["grad_bias_relative_l2"]
    assert found == pytest.approx(float((here - there).norm() / there.norm()), rel=1e-6)
    assert bias_of_step(cell, served, served, groups)["grad_bias_relative_l2"] < 1e-12 < found


def test_the_whole_step_is_recorded_by_phase(tmp_path: Path) -> None:
    path = tmp_path / "cell" / "attempt-001"
    path.mkdir(parents=True)
    recorder = Recorder(path)
    gsm8k_reward.run(make_cell({"experiment.steps": 3}), recorder)
    recorder.close()
    metrics = recorder.metrics
    whole = metrics["rl_step_seconds"].values
    assert whole is not None and len(whole) == 2, "the first is apart"
    phases = ("generate", "reward", "old_log_prob", "update_actor", "publish", "other")
    parts = [metrics[f"rl_step_seconds/{phase}"].values for phase in phases]
    assert [sum(of) for of in zip(*(part or [] for part in parts), strict=True)] == pytest.approx(whole)
    warm_up = metrics["rl_step_warm_up_seconds"].value
    assert metrics["train_seconds"].value == pytest.approx(warm_up + sum(whole))
    for what in ("depth_match", "samples"):
        assert f"rl_step_seconds/{what}" not in metrics
        assert metrics[f"observing_seconds/{what}"].value > 0
    assert 0 <= metrics["accuracy/full_depth"].value <= 1
