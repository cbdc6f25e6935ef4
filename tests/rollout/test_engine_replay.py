"""The engine forced to tokens and depths that it recorded: the same steps, so the same log-probs bit for bit."""

from dataclasses import replace

import pytest
import torch
from models.small import SMALL
from rollout.test_last_exited import K, deep_model
from rollout.test_shared_prefill import RULE, asked

from scalerlt.models.ouro import OuroForCausalLM
from scalerlt.rollout.exit_rule import ExitRule
from scalerlt.rollout.native import NativeEngine
from scalerlt.rollout.recurrence import SkippedKV
from scalerlt.rollout.request import Request, Response

DELAYED = ExitRule(threshold=0.5, min_loops=1, delay=1)
SCHEDULES: dict[str, tuple[ExitRule | None, SkippedKV]] = {
    "dense": (None, "last_exited"),
    "last_exited": (RULE, "last_exited"),
    "delayed_exit": (DELAYED, "last_exited"),
    "deferred_fill": (RULE, "deferred_fill"),
    "shared_kv": (RULE, "shared_kv"),
}


@pytest.fixture(autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)


def requests() -> list[Request]:
    drawn = asked([(5, 3), (3, 3), (9, 3)])
    return [replace(request, max_new_tokens=request.max_new_tokens + 5) for request in drawn]


def replayed(
    model: OuroForCausalLM, answers: list[Response], *, concurrency: int = 4, **settings: object
) -> list[Response]:
    """Everything forced; the exit gate is not asked and no recorded log-prob is given."""
    forced = [
        replace(request, forced_tokens=answer.tokens, forced_depths=answer.exit_depths)
        for request, answer in zip(requests(), answers, strict=True)
    ]
    return NativeEngine(model, concurrency=concurrency, **settings).generate(forced).responses


def mismatches(one: list[Response], other: list[Response]) -> int:
    """Tokens whose log-probs differ in any bit."""
    pairs = [pair for a, b in zip(one, other, strict=True) for pair in zip(a.logprobs, b.logprobs, strict=True)]
    assert len(pairs) > 40
    return sum(ours != theirs for ours, theirs in pairs)


@pytest.mark.parametrize(
    "settings",
    [{}, {"shared_prefill": True}, {"refill": False}, {"deterministic": True}],
    ids=["plain", "shared_prefill", "no_refill", "deterministic"],
)
@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_replay_is_the_rollout_bit_for_bit(dtype: torch.dtype, schedule: str, settings: dict[str, bool]) -> None:
    model = deep_model(dtype)
    rule, kv = SCHEDULES[schedule]
    engine = NativeEngine(model, concurrency=4, exit_rule=rule, kv=kv, **settings)
    answers = engine.generate(requests()).responses
    again = replayed(model, answers, kv=kv, **settings)
    assert mismatches(answers, again) == 0
    assert [answer.tokens for answer in again] == [answer.tokens for answer in answers]
    assert [answer.exit_depths for answer in again] == [answer.exit_depths for answer in answers]
    if rule is not None:
        assert len({depth for answer in answers for depth in answer.exit_depths[1:]}) > 1


def test_a_changed_depth_token_weight_or_batch_is_found_out() -> None:
    model = deep_model(torch.float32)
    answers = NativeEngine(model, concurrency=4, exit_rule=RULE).generate(requests()).responses
    first = answers[0]
    deeper = (K, first.exit_depths[1] % K + 1, *first.exit_depths[2:])
    assert mismatches(answers, replayed(model, [replace(first, exit_depths=deeper), *answers[1:]])) > 0
    other = (first.tokens[0], (first.tokens[1] + 1) % SMALL.vocab_size, *first.tokens[2:])
    assert mismatches(answers, replayed(model, [replace(first, tokens=other), *answers[1:]])) > 0
    # Another batch is another shape of products: the same to rounding, not to the bit.
    alone = replayed(model, answers, concurrency=1)
    assert mismatches(answers, alone) > 0
    for one, two in zip(answers, alone, strict=True):
        assert two.logprobs == pytest.approx(one.logprobs, abs=1e-4)
    with torch.no_grad():
        model.model.layers[1].mlp.up_proj.weight[0, 0] += 1e-3
    assert mismatches(answers, replayed(model, answers)) > 0
