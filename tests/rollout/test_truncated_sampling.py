"""top_k and top_p against sorting in plain Python, and through the engine."""

import math
from dataclasses import replace

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from models.small import SMALL, small_model
from schema.plain_config import plain_config

from scalerlt.errors import UserError
from scalerlt.rollout.native import NativeEngine
from scalerlt.rollout.request import Request
from scalerlt.rollout.sampling import sample, truncated
from scalerlt.schema import load_cell
from scalerlt.schema.machine import Machine


def near_a_tie(logits: list[float], top_k: int, top_p: float) -> bool:
    """Whether rounding decides where the nucleus ends."""
    order = sorted(logits, reverse=True)[: top_k or None]
    weights = [math.exp(logit - order[0]) for logit in order]
    return any(abs(sum(weights[:count]) / sum(weights) - top_p) < 1e-9 for count in range(1, len(order)))


def kept(logits: list[float], top_k: int, top_p: float) -> list[int]:
    """The token ids that are left, the most probable first."""
    order = sorted(range(len(logits)), key=lambda token: (-logits[token], token))[: top_k or None]
    weights = [math.exp(logits[token] - logits[order[0]]) for token in order]
    total, seen, left = sum(weights), 0.0, []
    for token, weight in zip(order, weights, strict=True):
        if left and seen / total >= top_p:
            break
        left.append(token)
        seen += weight
    return left


LOGITS = st.lists(st.integers(-40, 40).map(lambda tenths: tenths / 10), min_size=1, max_size=12)


@settings(max_examples=200, deadline=None)
@given(logits=LOGITS, top_k=st.integers(0, 14), top_p=st.floats(0.013, 0.997) | st.just(1.0))
def test_what_is_left_of_any_distribution(logits: list[float], top_k: int, top_p: float) -> None:
    assume(not near_a_tie(logits, top_k, top_p))
    expected = kept(logits, top_k, top_p)
    found = truncated(
        torch.tensor([logits], dtype=torch.float64), torch.tensor([top_k]), torch.tensor([top_p], dtype=torch.float64)
    )[0]
    assert sorted(expected) == found.isfinite().nonzero()[:, 0].tolist()
    assert [found[token].item() for token in expected] == [logits[token] for token in expected]


def test_rows_have_limits_of_their_own_and_log_probs_are_those_of_the_truncated_distribution() -> None:
    logits = torch.tensor([[2.0, 1.0, 0.0, -1.0]]).double().expand(4, 4)
    temperatures = torch.tensor([1.0, 1.0, 0.0, 0.5]).double()
    limits = torch.tensor([2, 0, 1, 0]), torch.tensor([1.0, 0.5, 0.1, 1.0]).double()
    uniform = torch.tensor([0.999, 0.999, 0.999, 0.0]).double()
    tokens, logprobs = sample(logits, temperatures, uniform, truncation=limits)
    assert tokens.tolist() == [1, 0, 0, 0]
    full = math.log(sum(math.exp(z) for z in (2, 1, 0, -1)))
    half = math.log(sum(math.exp(2 * z) for z in (2, 1, 0, -1)))
    assert logprobs.tolist() == pytest.approx([1 - math.log(math.exp(2) + math.exp(1)), 0.0, 2 - full, 4 - half])


def request(**options) -> Request:
    common = {"request_id": "a", "prompt_tokens": (1, 2, 3), "max_new_tokens": 12, "ignore_eos": True, "seed": 5}
    return Request(**common | options)


def test_the_engine_draws_from_what_is_left() -> None:
    model = small_model(torch.float64)
    with torch.no_grad():
        model.lm_head.weight.mul_(0.2)  # flat enough that limits matter

    def generate(*asked: Request):
        return NativeEngine(model, concurrency=3).generate(asked).responses

    greedy, one, tiny, free = generate(
        request(temperature=0.0),
        request(request_id="b", top_k=1),
        request(request_id="c", top_p=1e-9),
        request(request_id="d"),
    )
    assert greedy.tokens == one.tokens == tiny.tokens != free.tokens
    assert set(one.logprobs) == {0.0}
    assert one.raw_logprobs == pytest.approx(greedy.raw_logprobs, abs=1e-12)
    everything = generate(request(top_k=SMALL.vocab_size))[0]
    assert (everything.tokens, everything.logprobs) == (free.tokens, pytest.approx(free.logprobs, abs=1e-12))
    some = generate(request(top_k=5, top_p=0.8, max_new_tokens=40))[0]
    assert all(drawn >= raw for drawn, raw in zip(some.logprobs, some.raw_logprobs, strict=True))
    assert len(set(some.tokens)) > 2


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"top_k": -1}, "top_k is -1"),
        ({"top_p": 0.0}, "top_p is 0.0"),
        ({"top_p": 1.5}, "top_p is 1.5"),
        ({"top_k": 3, "forced_tokens": (1,)}, "may lie outside"),
    ],
)
def test_what_cannot_be_asked(options, message: str) -> None:
    with pytest.raises(UserError, match=message):
        NativeEngine(small_model(), concurrency=1).generate([request(**options)])
    if "forced_tokens" in options:
        NativeEngine(small_model(), concurrency=1).generate([replace(request(**options), temperature=0.0)])


def test_training_wants_the_whole_vocabulary() -> None:
    cpu = Machine(gpus=0, gpu_reason="none here", cpus=2)
    values = {"rollout.top_p": 0.9}
    reward = load_cell(plain_config(values, experiment="gsm8k_reward", algorithm="grpo"))
    assert "log-probs are of the whole vocabulary" in (reward.unsupported_on(cpu) or "")
    assert load_cell(plain_config(values, experiment="rollout_throughput")).unsupported_on(cpu) is None
