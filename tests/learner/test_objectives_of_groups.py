"""GRPO and RLTT: the formulas by hand, and the step that they make."""

import math
from dataclasses import replace

import pytest
import torch
from learner.plain_learner import plain_logprobs, ragged_responses
from learner.plain_replay import plain_replay
from learner.test_replay import with_depths
from models.small import SMALL, small_model

import scalerlt.learner.step as step_module
from scalerlt.learner.batching import TrainingResponse
from scalerlt.learner.checkpoint import LoopCheckpoint, NoCheckpoint
from scalerlt.learner.grpo import Grpo
from scalerlt.learner.logprobs import response_logprobs
from scalerlt.learner.objective import SampledTokens, logical_weights
from scalerlt.learner.optimizer import ActorOptimizer, OptimizerSettings, freeze_exit_gate
from scalerlt.learner.rltt import Rltt
from scalerlt.learner.step import ActorUpdate, PolicyGradient
from scalerlt.models.checkpoint import build

KINDS = ["dense", "replay", "hybrid"]
GRPO = Grpo(clip_low=0.2, clip_high=0.3, kl_coef=0.0)


def tokens(ratios: list[float], advantages: list[float], **fields) -> SampledTokens:
    """One token per response, with these ratios to the old policy, all of equal weight."""
    count = len(ratios)
    logprobs = torch.tensor([[math.log(ratio) - 1.0] for ratio in ratios], dtype=torch.float64, requires_grad=True)
    return SampledTokens(
        logprobs=logprobs,
        weights=torch.full((count, 1), 1 / count, dtype=torch.float64),
        advantages=torch.tensor([[advantage] for advantage in advantages], dtype=torch.float64),
        old_logprobs=torch.full((count, 1), -1.0, dtype=torch.float64),
        **fields,
    )


@pytest.mark.parametrize(
    ("ratio", "advantage", "surrogate", "clipped"),
    [
        (1.1, 2.0, 2.2, False),
        (1.5, 2.0, 2 * 1.3, True),  # above, to be made likelier: no further
        (0.5, 2.0, 1.0, False),  # below, to be made likelier: it may come back
        (1.5, -2.0, -3.0, False),
        (0.5, -2.0, -2 * 0.8, True),  # below, to be made rarer: no further
        (0.9, -2.0, -1.8, False),
    ],
)
def test_clipping_by_hand(ratio: float, advantage: float, surrogate: float, clipped: bool):
    batch = tokens([ratio], [advantage])
    loss = GRPO.loss(batch)
    loss.backward()
    assert loss.item() == pytest.approx(-surrogate, rel=1e-14)
    assert batch.logprobs.grad.item() == pytest.approx(0.0 if clipped else -advantage * ratio, rel=1e-14)
    found = GRPO.statistics(batch.trained())
    assert found["actor/pg_clipfrac"] == float(clipped)
    assert found["pg_loss"] == pytest.approx(-surrogate, rel=1e-14)
    assert found["actor/ppo_kl"] == pytest.approx(-math.log(ratio))


def test_statistics_of_a_step_by_hand():
    batch = tokens([0.5, 1.0, 1.6, 1.1], [-1.0, 1.0, 1.0, 1.0])
    found = GRPO.statistics(batch.trained())
    assert found == pytest.approx(
        {
            "pg_loss": -(-0.8 + 1.0 + 1.3 + 1.1) / 4,
            "actor/pg_clipfrac": 0.5,
            "actor/ppo_kl": -(math.log(0.5) + math.log(1.6) + math.log(1.1)) / 4,
            "actor/ratio_mean": 4.2 / 4,
            "actor/ratio_max": 1.6,
            "actor/ratio_p99": 1.6,
            "actor/ratio_deviation_max": 0.6,
        }
    )


def test_the_penalty_is_k3_to_the_reference():
    batch = tokens([1.0, 1.0], [0.0, 0.0], ref_logprobs=torch.tensor([[-0.5], [-1.5]], dtype=torch.float64))
    loss = Grpo(clip_low=0.2, clip_high=0.2, kl_coef=0.1).loss(batch)
    expected = [math.exp(x) - 1 - x for x in (0.5, -0.5)]
    assert loss.item() == pytest.approx(0.1 * sum(expected) / 2, rel=1e-12)
    loss.backward()
    slopes = [1 - math.exp(x) for x in (0.5, -0.5)]  # d/dl of e^(ref - l) - 1 - (ref - l)
    assert batch.logprobs.grad.flatten().tolist() == pytest.approx([0.1 * slope / 2 for slope in slopes], rel=1e-12)
    assert GRPO.statistics(batch.trained())["actor/kl_loss"] == pytest.approx(sum(expected) / 2)


@pytest.mark.parametrize("objective", [Grpo(clip_low=0.2, clip_high=0.2, kl_coef=0.1), Rltt(alpha=1.0, kl_coef=0.1)])
def test_a_penalty_needs_a_reference_and_a_ratio_old_log_probs(objective):
    batch = tokens([1.0], [1.0])
    with pytest.raises(ValueError, match=r"kl_coef is 0\.1"):
        objective.loss(replace(batch, logprobs=batch.logprobs[None].expand(3, 1, 1)) if objective.all_loops else batch)
    with pytest.raises(ValueError, match="old log-probs"):
        GRPO.loss(replace(batch, old_logprobs=None))


@pytest.mark.parametrize("bad", [-math.inf, math.nan])
@pytest.mark.parametrize("objective", [Grpo(clip_low=0.2, clip_high=0.2, kl_coef=0.1), Rltt(alpha=1.0, kl_coef=0.1)])
def test_what_stands_at_untrained_places_has_no_influence(bad: float, objective):
    logprobs = torch.tensor([[-1.0, bad]], dtype=torch.float64, requires_grad=True)
    batch = SampledTokens(
        logprobs=logprobs[None].expand(2, 1, 2) if objective.all_loops else logprobs,
        weights=torch.tensor([[1.0, 0.0]], dtype=torch.float64),
        advantages=torch.tensor([[1.0]], dtype=torch.float64),
        rollout_logprobs=torch.tensor([[-1.0, bad]], dtype=torch.float64),
        old_logprobs=torch.tensor([[-1.0, bad]], dtype=torch.float64),
        ref_logprobs=torch.tensor([[-2.0, bad]], dtype=torch.float64),
    )
    loss = objective.loss(batch)
    loss.backward()
    assert loss.isfinite()
    assert logprobs.grad.isfinite().all()
    assert logprobs.grad[0, 1] == 0
    assert all(math.isfinite(value) for value in objective.statistics(batch.trained()).values())


def test_a_token_that_became_impossible_leaves_a_finite_loss():
    batch = tokens([1.0, 1.0], [1.0, -1.0])
    logprobs = torch.tensor([[-math.inf], [-1.0]], dtype=torch.float64, requires_grad=True)
    loss = GRPO.loss(replace(batch, logprobs=logprobs))
    loss.backward()
    assert loss.isfinite()
    assert logprobs.grad.tolist() == [[0.0], [0.5]]


@pytest.mark.parametrize(
    ("alpha", "credit"), [(0.0, [1 / 3] * 3), (1.0, [1 / 6, 2 / 6, 3 / 6]), (2.0, [1 / 14, 4 / 14, 9 / 14])]
)
def test_credit_of_loops(alpha: float, credit: list[float]):
    tokens = SampledTokens(logprobs=torch.zeros(3, 1), weights=torch.ones(1), advantages=torch.ones(1, 1))
    assert Rltt(alpha=alpha, kl_coef=0.0).credit(tokens)[:, 0].tolist() == pytest.approx(credit)


# The step.


def prepared(model, kind: str = "dense", noise: float = 0.5) -> list[TrainingResponse]:
    """Two prompt groups, ragged, off policy: old log-probs far enough for both sides to be clipped."""
    responses = with_depths(ragged_responses(lengths=(1, 7, 2, 30)))
    masked = [True, False] * 15
    responses[3] = replace(responses[3], mask=masked)
    values = response_logprobs(kind, model, responses, temperature=0.7, microbatch_tokens=1000)
    generator = torch.Generator().manual_seed(3)

    def moved(row: list[float]) -> list[float]:
        return (torch.tensor(row, dtype=torch.float64) + noise * torch.randn(len(row), generator=generator)).tolist()

    return [
        replace(r, rollout_logprobs=moved(v), old_logprobs=moved(v) if noise else v, ref_logprobs=moved(v))
        for r, v in zip(responses, values, strict=True)
    ]


def gentle_model():
    """Small weights: a gradient of about 1, so that 1e-12 is a bound on rounding alone."""
    return build(replace(SMALL, initializer_range=0.1), dtype=torch.float64, device="cpu", seed=5)


def gradient_of(
    responses,
    objective,
    *,
    make_model=small_model,
    kind: str = "dense",
    reduction: str = "token_mean",
    budget: int = 1000,
    schedule=None,
) -> tuple[object, torch.Tensor]:
    model = make_model()
    freeze_exit_gate(model)
    learner = ActorUpdate(
        model,
        ActorOptimizer(model, OptimizerSettings(name="sgd", learning_rate=0.1)),
        schedule=schedule or NoCheckpoint(),
        reduction=reduction,
        temperature=0.7,
        microbatch_tokens=budget,
        objective=objective,
        logprob=kind,
    )
    result = learner.backward(responses)
    found = learner.optimizer.gradients()
    return result, torch.cat([found[name].flatten() for name in sorted(found)])


FULL = [
    *((Grpo(clip_low=0.2, clip_high=0.3, kl_coef=0.1), kind) for kind in KINDS),
    (Rltt(alpha=1.0, kl_coef=0.1), "dense"),
]


@pytest.mark.parametrize("reduction", ["token_mean", "response_mean"])
@pytest.mark.parametrize(("objective", "kind"), FULL)
def test_splits_padding_and_order_of_prompt_groups_change_nothing(objective, kind: str, reduction: str):
    options = {"kind": kind, "reduction": reduction, "make_model": gentle_model}
    responses = prepared(gentle_model(), kind)
    whole, gradient = gradient_of(responses, objective, **options)
    assert float(gradient.norm()) > 0.1
    if isinstance(objective, Grpo):
        assert 0 < whole.statistics["actor/pg_clipfrac"] < 1
    for budget in (1, 12, 40):
        for order in ([0, 1, 2, 3], [2, 3, 0, 1]):
            shuffled = [responses[index] for index in order]
            other, found = gradient_of(shuffled, objective, **options, budget=budget)
            assert other.loss == pytest.approx(whole.loss, abs=1e-12)
            assert float((found - gradient).abs().max()) < 1e-12
            assert other.statistics == pytest.approx(whole.statistics, abs=1e-12)


@pytest.mark.parametrize(("objective", "kind"), FULL)
def test_a_mean_per_micro_batch_would_be_seen(objective, kind: str, monkeypatch: pytest.MonkeyPatch):
    """prime-rl 583, open-instruct 1161, verl 7200."""
    responses = prepared(small_model(), kind)
    _, gradient = gradient_of(responses, objective, kind=kind)
    honest = ActorUpdate._pass

    def local_mean(self, part, chosen, weights, *rest):
        return honest(self, part, chosen, logical_weights([r.trained for r in chosen], "token_mean"), *rest)

    monkeypatch.setattr(step_module.ActorUpdate, "_pass", local_mean)
    _, whole = gradient_of(responses, objective, kind=kind)
    _, split = gradient_of(responses, objective, kind=kind, budget=12)
    assert torch.equal(whole, gradient)
    assert float((split - gradient).abs().max()) > 1e-3


@pytest.mark.parametrize("kind", KINDS)
def test_at_ratio_one_it_is_the_policy_gradient(kind: str):
    responses = prepared(small_model(), kind, noise=0.0)
    result, gradient = gradient_of(responses, GRPO, kind=kind)
    _, plain = gradient_of(responses, PolicyGradient(), kind=kind)
    assert float((gradient - plain).abs().max()) < 1e-12
    assert result.statistics["actor/pg_clipfrac"] == 0
    assert result.statistics["actor/ratio_max"] == pytest.approx(1, abs=1e-12)


def test_without_old_log_probs_those_of_the_rollout_are_taken():
    responses = [replace(r, old_logprobs=None) for r in prepared(small_model())]
    taken = [replace(r, old_logprobs=r.rollout_logprobs) for r in responses]
    first, gradient = gradient_of(responses, GRPO)
    second, other = gradient_of(taken, GRPO)
    assert first == second
    assert torch.equal(gradient, other)
    assert first.statistics["actor/ppo_kl"] == pytest.approx(first.statistics["rollout_corr/kl"], abs=1e-14)


@pytest.mark.parametrize("kind", ["dense", "replay"])
def test_the_whole_step_against_plain_formulas(kind: str):
    """One token at a time, ratios and k3 written out."""
    model = small_model()
    freeze_exit_gate(model)
    responses = [
        replace(response, mask=None) for response in prepared(model, kind) if len(response.response_tokens) < 30
    ]
    loss = torch.zeros((), dtype=torch.float64)
    for response in responses:
        if kind == "dense":
            values = plain_logprobs(model, response, 0.7)
        else:
            depths = list(response.exit_depths)
            weights = dict(model.named_parameters())
            tokens_of = response.prompt_tokens, response.response_tokens
            values = plain_replay(weights, SMALL, *map(list, tokens_of), depths, 0.7)
        for t, value in enumerate(values):
            ratio = torch.exp(value - response.old_logprobs[t])
            limited = ratio.clamp(0.8, 1.3)
            surrogate = min(ratio * response.advantage, limited * response.advantage)
            x = response.ref_logprobs[t] - value
            loss = loss - (surrogate - 0.1 * (torch.exp(x) - 1 - x)) / (len(responses) * len(values))
    loss.backward()
    parameters = dict(model.named_parameters())
    expected = torch.cat([parameters[n].grad.flatten() for n in sorted(parameters) if parameters[n].grad is not None])
    objective = Grpo(clip_low=0.2, clip_high=0.3, kl_coef=0.1)
    result, gradient = gradient_of(responses, objective, kind=kind, reduction="response_mean", budget=12)
    assert result.loss == pytest.approx(loss.item(), abs=1e-10)
    assert float((gradient - expected).abs().max()) < 1e-10


@pytest.mark.parametrize("alpha", [1.0, None])
def test_rltt_against_a_plain_loop(alpha: float | None):
    """Every token, every loop, its own forward pass."""
    model = small_model()
    freeze_exit_gate(model)
    responses = [replace(r, mask=None) for r in prepared(model) if len(r.response_tokens) < 30]
    total = sum(len(response.response_tokens) for response in responses)
    loss = torch.zeros((), dtype=torch.float64)
    means, weights = [0.0] * SMALL.total_ut_steps, [0.0] * SMALL.total_ut_steps
    for response in responses:
        sequence = [*response.prompt_tokens, *response.response_tokens]
        for t, token in enumerate(response.response_tokens):
            states = model(torch.tensor([sequence[: len(response.prompt_tokens) + t]]))
            credit = [1 / 6, 2 / 6, 3 / 6]
            if alpha is None:
                first, second = (torch.sigmoid(model.exit_gate(state[0, -1])).item() for state in states[:2])
                credit = [first, (1 - first) * second, (1 - first) * (1 - second)]
            for loop, state in enumerate(states, start=1):
                value = torch.log_softmax(model.logits(state[0, -1]) / 0.7, -1)[token]
                loss = loss - response.advantage * credit[loop - 1] * value / total
                weights[loop - 1] += credit[loop - 1] / total
                means[loop - 1] += value.item() / total
            x = response.ref_logprobs[t] - value
            loss = loss + 0.1 * (torch.exp(x) - 1 - x) / total
    loss.backward()
    parameters = dict(model.named_parameters())
    expected = torch.cat([parameters[n].grad.flatten() for n in sorted(parameters) if parameters[n].grad is not None])
    result, gradient = gradient_of(responses, Rltt(alpha=alpha, kl_coef=0.1), budget=12, schedule=LoopCheckpoint())
    assert result.loss == pytest.approx(loss.item(), abs=1e-12)
    assert float((gradient - expected).abs().max()) < 1e-12 * max(1.0, float(expected.abs().max()))
    found = [result.statistics[f"rltt/loop_{loop}_log_prob"] for loop in (1, 2, 3)]
    assert found == pytest.approx(means, abs=1e-12)
    assert [result.statistics[f"rltt/loop_{loop}_weight"] for loop in (1, 2, 3)] == pytest.approx(weights)


def test_all_credit_on_the_last_loop_is_the_policy_gradient():
    responses = prepared(small_model())
    _, gradient = gradient_of(responses, Rltt(alpha=200.0, kl_coef=0.0))
    _, plain = gradient_of(responses, PolicyGradient())
    assert float((gradient - plain).abs().max()) < 1e-12


def test_credit_of_every_loop_has_no_replay():
    with pytest.raises(ValueError, match="takes dense log-probs, not replay"):
        gradient_of([], Rltt(alpha=0.0, kl_coef=0.0), kind="replay")


def test_the_policy_gradient_reports_its_mismatch_too():
    result, _ = gradient_of(prepared(small_model()), PolicyGradient())
    assert result.statistics["pg_loss"] == pytest.approx(result.loss)
    assert result.statistics["train_rollout_logprob_abs_diff"] > 0.1
    bare, _ = gradient_of(ragged_responses(), PolicyGradient())
    assert set(bare.statistics) == {"pg_loss"}
