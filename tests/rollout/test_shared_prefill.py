"""A prompt that runs once for all its requests: the same responses, fewer rows."""

import random
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from models.small import SMALL
from rollout.test_last_exited import DEEP, K, deep_model

from scalerlt.rollout.exit_rule import ExitRule
from scalerlt.rollout.native import NativeEngine
from scalerlt.rollout.request import Request
from scalerlt.rollout.stats import RolloutResult

RULE = ExitRule(threshold=0.6, min_loops=1)


@pytest.fixture(autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)


def asked(groups: list[tuple[int, int]], seed: int = 0) -> list[Request]:
    """For each group its prompt's length and its number of requests; sampled, greedy and traced ones."""
    rng = random.Random(seed)
    requests = []
    for group, (length, members) in enumerate(groups):
        prompt = tuple(rng.randrange(1, SMALL.vocab_size) for _ in range(length))
        for member in range(members):
            request = Request(
                request_id=f"{group}.{member}",
                prompt_tokens=prompt,
                max_new_tokens=1 + rng.randrange(6),
                temperature=(1.0, 0.0, 0.7)[member % 3],
                seed=rng.randrange(2**63),
            )
            if member == 3:
                depths = (K, *(rng.randint(1, K) for _ in range(request.max_new_tokens - 1)))
                request = replace(request, forced_depths=depths)
            requests.append(request)
    return requests


def generate(requests: list[Request], concurrency: int, *, shared: bool, rule: ExitRule | None = RULE) -> RolloutResult:
    engine = NativeEngine(deep_model(), concurrency=concurrency, exit_rule=rule, shared_prefill=shared)
    return engine.generate(requests)


@settings(max_examples=25, deadline=None)
@given(
    groups=st.lists(st.tuples(st.integers(1, 7), st.integers(1, 5)), min_size=1, max_size=4),
    concurrency=st.integers(1, 9),
    seed=st.integers(0, 9),
    early=st.booleans(),
)
def test_responses_are_the_same_and_no_prompt_token_is_lost(groups, concurrency: int, seed: int, early: bool) -> None:
    requests = asked(groups, seed)
    rule = RULE if early else None
    alone, shared = (generate(requests, concurrency, shared=share, rule=rule) for share in (False, True))
    for one, other in zip(alone.responses, shared.responses, strict=True):
        assert (one.tokens, one.exit_depths, one.finish_reason) == (
            other.tokens,
            other.exit_depths,
            other.finish_reason,
        )
        assert other.logprobs == pytest.approx(one.logprobs, abs=1e-10)
    run, reused = shared.stats.prompt_tokens, shared.stats.shared_prompt_tokens
    assert run + reused == alone.stats.prompt_tokens == sum(len(request.prompt_tokens) for request in requests)
    assert alone.stats.shared_prompt_tokens == 0
    assert shared.stats.recurrent_rows == alone.stats.recurrent_rows - K * reused
    assert shared.stats.kv_rows_written == alone.stats.kv_rows_written


def test_each_prompt_runs_once_where_all_requests_are_admitted_together() -> None:
    stats = generate(asked([(5, 4), (3, 2), (7, 1)]), 7, shared=True).stats
    assert (stats.prefill_calls, stats.prompt_tokens, stats.shared_prompt_tokens) == (1, 15, 3 * 5 + 3)
    # Of the copies each prompt is read once, however many slots take it.
    alone = generate(asked([(5, 4), (3, 2), (7, 1)]), 7, shared=False).stats
    assert alone.kv_rows_read - stats.kv_rows_read == K * (3 * 5 + 3) - K * (5 + 3)


def test_a_response_does_not_write_into_anothers_prompt() -> None:
    """Copies, not views: each request alone gives what it gives in company."""
    requests = asked([(6, 5)], seed=4)
    together = generate(requests, 5, shared=True).responses
    for request, response in zip(requests, together, strict=True):
        (alone,) = generate([request], 1, shared=True).responses
        assert alone.tokens == response.tokens
        assert alone.logprobs == pytest.approx(response.logprobs, abs=1e-10)
    assert DEEP.total_ut_steps == K
