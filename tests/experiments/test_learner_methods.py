"""`actor_update` over log-prob methods and algorithms, on rollouts that stop early."""

from pathlib import Path
from typing import Any

import pytest
import torch
from experiments.actor_cells import make_cell, write_rollouts
from schema.plain_config import plain_config

from scalerlt.errors import UserError
from scalerlt.experiments import actor_update
from scalerlt.experiments.building import build_model, objective_of
from scalerlt.experiments.learning import advantages_of, training_responses, with_old_logprobs, with_reference_logprobs
from scalerlt.experiments.recorded import recorded_samples
from scalerlt.learner.grpo import Grpo
from scalerlt.learner.rltt import Rltt
from scalerlt.learner.step import PolicyGradient
from scalerlt.records.cell import FileInput
from scalerlt.records.recorder import Recorder
from scalerlt.records.samples import Sample, SamplesHeader, write_samples
from scalerlt.rollout.exit_rule import ExitRule
from scalerlt.rollout.native import NativeEngine
from scalerlt.rollout.request import Request
from scalerlt.schema import Cell, load_cell
from scalerlt.schema.identity import scientific_keys
from scalerlt.schema.machine import Machine

MACHINE = Machine(gpus=0, gpu_reason="none here", cpus=1)


def small_cell(rollouts: Path, *, values: dict[str, Any] | None = None, **options: str) -> Cell:
    return make_cell(rollouts, values={"model.num_hidden_layers": 1} | (values or {}), **options)


@pytest.fixture(scope="module")
def deferred(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Rollouts of the cell's own model, most tokens stopped early."""
    path = tmp_path_factory.mktemp("rollouts") / "deferred.jsonl"
    model = build_model(small_cell(path), torch.float32)
    requests = [
        Request(
            request_id=f"{group}.{member}",
            prompt_tokens=tuple(range(3 + group, 8 + 2 * group)),
            max_new_tokens=2 + 3 * member,
            seed=10 * group + member,
            ignore_eos=True,
        )
        for group in range(2)
        for member in range(4)
    ]
    engine = NativeEngine(model, concurrency=4, exit_rule=ExitRule(threshold=0.6, min_loops=1))
    responses = engine.generate(requests).responses
    samples = [
        Sample(
            problem_id=request.request_id,
            prompt_group=int(request.request_id[0]),
            prompt_tokens=list(request.prompt_tokens),
            response_tokens=list(response.tokens),
            logprobs=list(response.logprobs),
            temperature=1.0,
            finish_reason=response.finish_reason,
            seed=response.seed,
            weight_version=0,
            reward=float(int(request.request_id[2]) % 2),
            advantage=int(request.request_id[2]) % 2 - 0.5,
            exit_depths=list(response.exit_depths),
        )
        for request, response in zip(requests, responses, strict=True)
    ]
    assert min(depth for sample in samples for depth in sample.exit_depths) < 4
    write_samples(path, SamplesHeader(model="small", vocab_size=64, made_by="tests"), samples)
    return path


def measure(tmp_path: Path, rollouts: Path, *, values=None, **options: str) -> Recorder:
    attempt = tmp_path / f"attempt-{len(list(tmp_path.iterdir())):03d}"
    attempt.mkdir()
    recorder = Recorder(attempt)
    once = {"experiment.warmup": 0, "experiment.repeats": 1, "batch.minibatch_responses": 8}
    cell = small_cell(rollouts, values=once | (values or {}), **options)
    assert cell.unsupported_on(MACHINE) is None
    actor_update.run(cell, recorder)
    recorder.close()
    return recorder


def figure(recorder: Recorder, name: str) -> float:
    metric = recorder.metrics[name]
    assert metric.status == "measured", metric.reason
    return metric.value


def test_bias_and_mismatch_of_each_method(tmp_path: Path, deferred: Path):
    dense, replay, hybrid = (measure(tmp_path, deferred, logprob=kind) for kind in ("dense", "replay", "hybrid"))
    assert figure(replay, "grad_bias_relative_l2") < 1e-12
    assert figure(replay, "grad_bias_cosine") == pytest.approx(1)
    assert 1e-4 < figure(dense, "grad_bias_relative_l2") < 2
    assert figure(hybrid, "grad_bias_relative_l2") == pytest.approx(figure(dense, "grad_bias_relative_l2"), rel=1e-9)
    assert figure(hybrid, "grad_bias_max_abs") > 0
    assert figure(hybrid, "grad_bias_relative_l2/attention") > 0
    assert "full replay" in hybrid.metrics["grad_bias_relative_l2"].method
    for recorder in (replay, hybrid):  # same weights, same precision: what is left is rounding
        assert figure(recorder, "train_rollout_logprob_abs_diff_max") < 2e-6
    assert figure(dense, "train_rollout_logprob_abs_diff_max") > 1e-4
    assert figure(hybrid, "loss") == pytest.approx(figure(replay, "loss"), abs=1e-6)
    assert figure(hybrid, "grad_norm") == pytest.approx(figure(dense, "grad_norm"), rel=1e-5)


def test_at_the_rollouts_own_weights_the_ratio_is_one_for_hybrid_alone(tmp_path: Path, deferred: Path):
    hybrid = measure(tmp_path, deferred, algorithm="grpo", logprob="hybrid")
    dense = measure(tmp_path, deferred, algorithm="grpo", logprob="dense")
    assert figure(hybrid, "actor/pg_clipfrac") == 0
    assert figure(hybrid, "actor/ratio_max") == pytest.approx(1, abs=2e-6)
    assert abs(figure(dense, "actor/ratio_max") - 1) > 1e-4
    assert figure(hybrid, "frac_reward_zero_std") == 0
    recomputed = measure(
        tmp_path, deferred, algorithm="grpo", values={"logprob.old": "dense", "algorithm.kl_coef": 0.1}
    )
    assert figure(recomputed, "actor/ratio_max") == pytest.approx(1, abs=2e-6)
    assert figure(recomputed, "actor/kl_loss") == pytest.approx(0, abs=1e-9)
    assert figure(recomputed, "train_rollout_logprob_abs_diff_max") == figure(
        dense, "train_rollout_logprob_abs_diff_max"
    )


def test_rltt_runs_and_its_bias_is_measured(tmp_path: Path, deferred: Path):
    recorder = measure(tmp_path, deferred, algorithm="rltt")
    assert figure(recorder, "grad_bias_relative_l2") > 1e-4
    assert figure(recorder, "rltt/loop_4_weight") == 0.25


def test_dense_rollouts_have_no_bias_and_it_says_why(tmp_path: Path):
    rollouts = write_rollouts(tmp_path / "dense.jsonl")
    recorder = measure(tmp_path, rollouts)
    assert figure(recorder, "grad_bias_relative_l2") == 0
    assert "by construction" in recorder.metrics["grad_bias_relative_l2"].method
    spread = recorder.metrics["grad_sd_relative"]
    assert spread.n == 2
    assert 0 < spread.value < 10
    assert "prompt groups" in spread.method
    alone = measure(tmp_path, rollouts, values={"batch.prompts_per_step": 1, "batch.minibatch_responses": 4})
    assert alone.metrics["grad_sd_relative"].status == "not_measured"


def test_advantages_come_from_the_rewards_where_the_algorithm_computes_them(deferred: Path):
    for algorithm in ("grpo", "rltt"):
        cell = make_cell(deferred, algorithm=algorithm, values={"algorithm.advantage": "leave_one_out"})
        found = advantages_of(cell, [1.0, 0.0, 0.0, 5.0], [0, 0, 0, 1])
        assert found is not None
        assert found.values == [1.0, -0.5, -0.5, 0.0]
        assert found.frac_reward_zero_std == 0.5
    assert advantages_of(make_cell(deferred), [1.0, 0.0], [0, 0]) is None


def test_rewards_are_enough_where_advantages_are_computed(tmp_path: Path):
    rollouts = write_rollouts(tmp_path / "rewards.jsonl", advantage=None)
    with pytest.raises(UserError, match="has no advantage"):
        recorded_samples(make_cell(rollouts))
    assert len(recorded_samples(make_cell(rollouts, algorithm="grpo"))) == 8


@pytest.mark.parametrize("depths", [[3], [4, 5], [5]])
def test_depths_that_the_model_has_not_are_refused(tmp_path: Path, depths: list[int]):
    tokens = {"response_tokens": [1] * len(depths), "logprobs": [-1.0] * len(depths)}
    path = write_rollouts(tmp_path / "deep.jsonl", exit_depths=depths, **tokens)
    with pytest.raises(UserError, match=r"model\.total_ut_steps=4"):
        recorded_samples(make_cell(path))


def test_old_and_reference_log_probs_are_evaluated_where_they_are_asked_for(deferred: Path):
    cell = small_cell(deferred, algorithm="grpo", logprob="hybrid", values={"algorithm.kl_coef": 0.1})
    samples = recorded_samples(cell)
    policy = build_model(cell, torch.float64)
    responses = training_responses(samples, advantages_of(cell, [s.reward for s in samples], [0] * 8))
    assert with_old_logprobs(cell, policy, responses) == responses
    assert [r.rollout_logprobs for r in responses] == [s.logprobs for s in samples]
    referred = with_reference_logprobs(cell, policy, responses)
    for response, sample in zip(referred, samples, strict=True):
        assert response.ref_logprobs == pytest.approx(sample.logprobs, abs=2e-6)  # hybrid's values are replay's
    dense = small_cell(deferred, algorithm="grpo", values={"logprob.old": "dense"})
    again = with_old_logprobs(dense, policy, responses)
    assert again[3].old_logprobs != pytest.approx(samples[3].logprobs, abs=1e-4)
    assert with_reference_logprobs(dense, policy, responses) == responses


def test_objectives_are_those_that_the_cell_names(deferred: Path):
    values = {"algorithm.clip_high": 0.28, "algorithm.kl_coef": 0.01}
    assert objective_of(make_cell(deferred, algorithm="grpo", values=values)) == Grpo(
        clip_low=0.2, clip_high=0.28, kl_coef=0.01
    )
    assert objective_of(make_cell(deferred, algorithm="rltt", values={"algorithm.alpha": 2.0})) == Rltt(
        alpha=2.0, kl_coef=0.0
    )
    assert objective_of(make_cell(deferred)) == PolicyGradient()


@pytest.mark.parametrize(
    ("options", "values", "reason"),
    [
        ({"algorithm": "rltt", "logprob": "hybrid"}, {}, "reads out after every loop"),
        ({"algorithm": "grpo"}, {"batch.group_size": 1, "batch.prompts_per_step": 4}, "use at least 2"),
        ({}, {"logprob.old": "replay"}, "takes no ratio"),
    ],
)
def test_combinations_that_make_no_sense_are_ruled_out_with_a_reason(tmp_path: Path, options, values, reason: str):
    cell = make_cell(tmp_path / "none.jsonl", values=values, **options)
    assert reason in cell.unsupported_on(MACHINE)


def test_old_log_probs_enter_the_identity_only_when_they_are_not_the_rollouts():
    fresh = {"model.weights": None}
    inputs = {"task.rollouts": FileInput(path="rollouts.jsonl", sha256="0" * 64)}
    usual = scientific_keys(load_cell(plain_config(fresh)), inputs)["logprob"]
    other = scientific_keys(load_cell(plain_config({**fresh, "logprob.old": "dense"})), inputs)["logprob"]
    assert usual == {"name": "dense"}
    assert other == {"name": "dense", "old": "dense"}
