import math
from contextlib import contextmanager

import pytest
import torch
from learner.plain_learner import plain_loss, ragged_responses
from models.small import plain_twin, small_model

import scalerlt.learner.step as step_module
from scalerlt.learner.batching import TrainingResponse
from scalerlt.learner.checkpoint import NoCheckpoint
from scalerlt.learner.objective import logical_weights
from scalerlt.learner.optimizer import ActorOptimizer, OptimizerSettings, freeze_exit_gate
from scalerlt.learner.step import ActorUpdate

SGD = OptimizerSettings(name="sgd", learning_rate=0.01)
REDUCTIONS = ["token_mean", "response_mean"]


def make_learner(
    dtype: torch.dtype = torch.float64,
    reduction: str = "token_mean",
    tokens: int = 1000,
    settings: OptimizerSettings = SGD,
    temperature: float = 0.7,
) -> ActorUpdate:
    model = small_model(dtype)
    freeze_exit_gate(model)
    return ActorUpdate(
        model,
        ActorOptimizer(model, settings),
        schedule=NoCheckpoint(),
        reduction=reduction,
        temperature=temperature,
        microbatch_tokens=tokens,
    )


def gradient_of(responses, **options) -> tuple[float, torch.Tensor]:
    learner = make_learner(**options)
    loss = learner.backward(responses).loss
    gradients = learner.optimizer.gradients()
    return loss, torch.cat([gradients[name].flatten() for name in sorted(gradients)])


def masked_responses() -> list[TrainingResponse]:
    """Ragged, one empty, one fully masked, one partly masked."""
    first, second, third = ragged_responses(lengths=(1, 5, 3))
    return [
        first,
        TrainingResponse([3, 4], [], 0.9),
        TrainingResponse(second.prompt_tokens, second.response_tokens, -0.4, [True, False, True, True, False]),
        TrainingResponse(third.prompt_tokens, third.response_tokens, 5.0, [False] * 3),
    ]


@pytest.mark.parametrize("reduction", REDUCTIONS)
@pytest.mark.parametrize("responses", [ragged_responses(lengths=(1, 7, 2, 12)), masked_responses()])
def test_gradient_of_the_step_against_a_plain_implementation(reduction: str, responses):
    loss, gradient = gradient_of(responses, reduction=reduction, tokens=20)
    model = small_model()
    freeze_exit_gate(model)
    expected = plain_loss(model, responses, reduction, temperature=0.7)
    expected.backward()
    parameters = {name: p.grad for name, p in model.named_parameters() if p.requires_grad}
    plain = torch.cat([parameters[name].flatten() for name in sorted(parameters)])
    assert loss == pytest.approx(expected.item(), abs=1e-12)
    assert float((gradient - plain).abs().max()) < 1e-10
    assert float(gradient.norm()) > 0.1


def test_gradient_against_differences_of_a_model_that_shares_no_code():
    responses = ragged_responses(lengths=(1, 4))
    loss, gradient = gradient_of(responses)
    model = small_model()
    generator = torch.Generator().manual_seed(1)
    names = sorted(name for name, _ in model.named_parameters() if "early_exit_gate" not in name)
    direction = torch.randn(gradient.shape, generator=generator, dtype=torch.float64)

    def plain_loss_at(distance: float) -> float:
        twin = plain_twin(model)
        offset = 0
        weights = dict(twin.weights)
        for name in names:
            size = weights[name].size
            weights[name] = (
                weights[name] + distance * direction[offset : offset + size].reshape(weights[name].shape).numpy()
            )
            offset += size
        twin.weights = weights
        total = 0.0
        for response in responses:
            tokens = [*response.prompt_tokens, *response.response_tokens]
            for position in range(len(response.prompt_tokens), len(tokens)):
                logits = twin.logits(twin.states(tokens[:position])[-1][-1]) / 0.7
                logprob = logits[tokens[position]] - math.log(sum(math.exp(z) for z in logits))
                total -= response.advantage * logprob / 5
        return total

    assert loss == pytest.approx(plain_loss_at(0.0), abs=1e-10)
    slope = (plain_loss_at(1e-5) - plain_loss_at(-1e-5)) / 2e-5
    assert float(gradient @ direction) == pytest.approx(slope, rel=1e-6)


@pytest.mark.parametrize("reduction", REDUCTIONS)
def test_splits_padding_and_order_change_nothing(reduction: str):
    responses = ragged_responses(lengths=(1, 7, 2, 30))
    loss, gradient = gradient_of(responses, reduction=reduction)
    for tokens in (1, 12, 40, 64):
        for order in ([0, 1, 2, 3], [3, 1, 0, 2]):
            other_loss, other = gradient_of([responses[i] for i in order], reduction=reduction, tokens=tokens)
            assert other_loss == pytest.approx(loss, abs=1e-12)
            assert float((other - gradient).abs().max()) < 1e-12


@pytest.mark.parametrize("reduction", REDUCTIONS)
def test_weights_normalised_per_micro_batch_would_be_seen(reduction: str, monkeypatch: pytest.MonkeyPatch):
    """The mutant of known normalisation bugs (prime-rl 583, open-instruct 1161, verl 7200)."""
    responses = ragged_responses(lengths=(1, 7, 2, 30))
    _, gradient = gradient_of(responses, reduction=reduction)
    global_loss = step_module.policy_gradient_loss

    def local_mean(logprobs, weights, advantages):
        local = logical_weights([row[row != 0].bool().tolist() for row in weights], reduction)
        rebuilt = torch.zeros_like(weights)
        for row, weight in zip(rebuilt, local, strict=True):
            row[: len(weight)] = weight
        return global_loss(logprobs, rebuilt, advantages)

    monkeypatch.setattr(step_module, "policy_gradient_loss", local_mean)
    _, mutant = gradient_of(responses, reduction=reduction, tokens=12)
    assert float((mutant - gradient).abs().max()) > 1e-3


def test_equal_micro_batches_do_not_multiply_the_gradient():
    responses = ragged_responses(lengths=(6, 6, 6, 6))
    _, together = gradient_of(responses)
    _, apart = gradient_of(responses, tokens=1)
    assert float((together - apart).abs().max()) < 1e-12


def test_token_counts_leave_padding_out():
    responses = [TrainingResponse([1], list(range(length)), 1.0) for length in (3, 5, 8)]
    together = make_learner(tokens=1000).backward(responses)
    assert (together.trained_tokens, together.padded_tokens, together.prompt_tokens) == (16, 3 * 8 - 16, 3)
    assert together.microbatches == 1
    apart = make_learner(tokens=1).backward(responses)
    assert (apart.trained_tokens, apart.padded_tokens, apart.microbatches) == (16, 0, 3)


def test_responses_without_a_trained_token_are_not_run():
    result = make_learner().backward(masked_responses())
    assert result.trained_tokens == 1 + 3
    assert result.prompt_tokens == len(masked_responses()[0].prompt_tokens) + len(masked_responses()[2].prompt_tokens)


@pytest.mark.parametrize(
    "responses", [[], [TrainingResponse([1], [], 1.0)], [TrainingResponse([1], [2, 3], 1.0, [False, False])]]
)
def test_a_step_that_trains_nothing_moves_nothing(responses):
    learner = make_learner(settings=OptimizerSettings(name="adamw", learning_rate=0.1, weight_decay=0.1))
    before = [p.detach().clone() for p in learner.model.parameters()]
    result = learner.step(responses)
    assert (result.loss, result.grad_norm, result.trained_tokens, result.updated) == (0.0, 0.0, 0, False)
    assert all(torch.equal(p, q) for p, q in zip(learner.model.parameters(), before, strict=True))


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_a_step_descends_along_its_gradient(dtype: torch.dtype):
    responses = ragged_responses()
    learner = make_learner(dtype, tokens=64)
    before = {name: m.detach().clone() for name, m in learner.optimizer.masters.items()}
    learner.backward(responses)
    gradients = {name: gradient.clone() for name, gradient in learner.optimizer.gradients().items()}
    learner.optimizer.clear()
    result = learner.step(responses)
    assert result.updated
    assert result.grad_norm == pytest.approx(
        math.sqrt(sum(float(g.double().square().sum()) for g in gradients.values()))
    )
    for name, master in learner.optimizer.masters.items():
        assert torch.allclose(master, before[name] - 0.01 * gradients[name], rtol=1e-6, atol=1e-6)
    assert all(p.grad is None for p in learner.model.parameters())
    if dtype == torch.float64:  # this model is too rough for bf16 gradients to be of use
        assert learner.backward(responses).loss < result.loss


def test_an_advantage_that_is_not_finite_updates_nothing():
    learner = make_learner()
    before = [p.detach().clone() for p in learner.model.parameters()]
    result = learner.step([TrainingResponse([1, 2], [3], math.inf)])
    assert not result.updated
    assert not math.isfinite(result.grad_norm)
    assert all(torch.equal(p, q) for p, q in zip(learner.model.parameters(), before, strict=True))


def test_phases_come_in_order_for_every_micro_batch():
    seen = []

    @contextmanager
    def on_phase(name: str):
        seen.append(name)
        yield
        seen.append("end")

    make_learner(tokens=1).step(ragged_responses(lengths=(2, 3)), on_phase)
    assert seen == ["forward", "end", "backward", "end"] * 2 + ["optimizer", "end"]
