import math

import pytest
import torch
from learner.plain_learner import ragged_responses
from learner.test_replay import deep_model, generate, learnable, requests, with_depths
from models.small import SMALL, small_model

import scalerlt.learner.logprobs as logprobs_module
from scalerlt.learner.batching import TrainingResponse, pack
from scalerlt.learner.logprobs import dense_logprobs, hybrid, logprobs, replay_logprobs, response_logprobs
from scalerlt.models.ouro import OuroForCausalLM

RESPONSES = with_depths(ragged_responses(lengths=(1, 7, 2, 30)))
FORMATS = [torch.float64, torch.float32, torch.bfloat16]


def gradients(values: torch.Tensor, coefficients: torch.Tensor, model: OuroForCausalLM):
    parameters = [p for name, p in model.named_parameters() if "early_exit_gate" not in name]
    return torch.autograd.grad((values * coefficients.to(values)).sum(), parameters)


@pytest.mark.parametrize("dtype", FORMATS)
def test_the_value_is_replays_and_the_gradient_is_denses_bit_for_bit(dtype: torch.dtype):
    model, batch = small_model(dtype), pack(RESPONSES)
    found = logprobs("hybrid", model, batch, temperature=0.8)
    replay = logprobs("replay", model, batch, temperature=0.8)
    dense = logprobs("dense", model, batch, temperature=0.8)
    assert torch.equal(found, replay)
    assert not torch.equal(found, dense)
    coefficients = torch.randn(found.shape, generator=torch.Generator().manual_seed(0))
    ours = gradients(found, coefficients, model)
    theirs = gradients(dense, coefficients, model)
    replays = gradients(replay, coefficients, model)
    assert all(torch.equal(a, b) for a, b in zip(ours, theirs, strict=True))
    assert not any(torch.equal(a, b) for a, b in zip(ours, replays, strict=True))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("spread", [1e-3, 0.5])
def test_only_this_association_is_exact(dtype: torch.dtype, spread: float):
    generator = torch.Generator().manual_seed(0)
    replay = -5 * torch.rand(10_000, generator=generator)
    dense = (replay + spread * torch.randn(10_000, generator=generator)).to(dtype).requires_grad_()
    replay = replay.to(dtype)
    assert torch.equal(hybrid(replay, dense), replay)
    left_to_right = replay.detach() + dense - dense.detach()
    around_dense = dense + (replay - dense).detach()
    assert int((left_to_right != replay).sum()) > 1000
    if spread > 0.1:  # nearby values subtract exactly, and this mistake hides
        assert int((around_dense != replay).sum()) > 10


def test_minus_infinity_never_becomes_nan():
    inf = math.inf
    replay = torch.tensor([-1.0, -inf, -inf, -2.0])
    dense = torch.tensor([-inf, -3.0, -inf, -4.0], requires_grad=True)
    value = hybrid(replay, dense)
    assert torch.equal(value, replay)
    value.backward(torch.tensor([1.0, 2.0, 3.0, 4.0]))
    assert dense.grad.tolist() == [0.0, 2.0, 0.0, 4.0]
    naive = replay + (dense - dense.detach())
    assert naive.isnan().tolist() == [True, False, True, False]


def test_a_nan_of_the_dense_pass_is_not_hidden():
    assert hybrid(torch.tensor([-1.0]), torch.tensor([math.nan])).isnan().all()


class Forbidding(OuroForCausalLM):
    """Token 5 has probability zero."""

    def logits(self, h):
        forbidden = torch.zeros(SMALL.vocab_size, dtype=h.dtype)
        forbidden[5] = -math.inf
        return super().logits(h) + forbidden


@pytest.mark.parametrize("kind", ["dense", "replay", "hybrid"])
def test_an_impossible_token_leaves_a_finite_gradient(kind: str):
    model = small_model()
    model.__class__ = Forbidding
    batch = pack([TrainingResponse([1, 2], [3, 5, 4], 1.0, exit_depths=[3, 1, 2])])
    values = logprobs(kind, model, batch, temperature=1.0)
    assert values[0, 1] == -math.inf
    assert values[0, [0, 2]].isfinite().all()
    found = gradients(values, torch.tensor([[1.0, 1.0, -2.0]]), model)
    assert all(gradient.isfinite().all() for gradient in found)
    assert any(gradient.any() for gradient in found)


def test_hybrid_keeps_no_graph_of_the_replay(monkeypatch: pytest.MonkeyPatch):
    seen = []

    def spy(*arguments, **options):
        seen.append(torch.is_grad_enabled())
        return replay_logprobs(*arguments, **options)

    monkeypatch.setattr(logprobs_module, "replay_logprobs", spy)
    logprobs("hybrid", small_model(), pack(RESPONSES), temperature=1.0)
    assert seen == [False]


def test_an_unknown_kind_is_refused():
    with pytest.raises(ValueError, match="'engine'"):
        logprobs("engine", small_model(), pack(RESPONSES), temperature=1.0)


@pytest.mark.parametrize("kind", ["dense", "replay", "hybrid"])
def test_values_of_many_responses_are_those_of_each(kind: str):
    model = small_model()
    some = [*RESPONSES, TrainingResponse([1, 2], [], 0.0)]
    found = response_logprobs(kind, model, some, temperature=0.8, microbatch_tokens=12)
    assert [len(values) for values in found] == [1, 7, 2, 30, 0]
    for response, values in zip(RESPONSES, found, strict=False):
        alone = logprobs(kind, model, pack([response]), temperature=0.8)[0]
        assert values == pytest.approx(alone.tolist(), abs=1e-12)


def ratio_errors(kind: str, temperature: float) -> float:
    """Largest |e^(learner - rollout) - 1| of an engine that sampled at this temperature."""
    model = deep_model(torch.float64)
    asked = [type(r)(**vars(r) | {"temperature": temperature}) for r in requests(model)]
    answers = generate(model, asked)
    with torch.no_grad():
        values = logprobs(kind, model, pack(learnable(asked, answers)), temperature=temperature).tolist()
    pairs = [p for row, answer in zip(values, answers, strict=True) for p in zip(row, answer.logprobs, strict=False)]
    return max(abs(math.exp(ours - theirs) - 1) for ours, theirs in pairs)


@pytest.mark.parametrize("temperature", [0.5, 0.6, 1.0, 1.3])
@pytest.mark.parametrize("kind", ["replay", "hybrid"])
def test_ratios_to_the_engine_are_one_at_every_temperature(kind: str, temperature: float):
    assert ratio_errors(kind, temperature) < 1e-6


def test_dividing_log_probs_by_the_temperature_would_be_seen(monkeypatch: pytest.MonkeyPatch):
    """trl issue 4159, prime-rl 697, NeMo RL 935."""
    honest = logprobs_module._read_out

    def mutant(model, hidden, batch, temperature, readout):
        return honest(model, hidden, batch, 1.0, readout) / temperature

    monkeypatch.setattr(logprobs_module, "_read_out", mutant)
    assert ratio_errors("replay", 0.6) > 0.1
    assert ratio_errors("replay", 1.0) < 1e-6  # a temperature of 1 hides it


def test_the_dense_learner_of_a_deferred_rollout_is_another_policy():
    assert ratio_errors("dense", 0.8) > 1e-3


def test_all_kinds_agree_without_early_exits():
    model = small_model()
    full = ragged_responses(lengths=(1, 7, 2))
    dense = dense_logprobs(model, pack(full), temperature=0.8)
    for kind in ("replay", "hybrid"):
        assert torch.allclose(logprobs(kind, model, pack(full), temperature=0.8), dense, rtol=0, atol=1e-12)
