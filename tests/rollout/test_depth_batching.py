"""Continuous depth batching: every schedule against its plain implementation, and what batching must not change."""

import random
from collections.abc import Sequence
from dataclasses import replace
from itertools import accumulate, pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from models.small import SMALL
from rollout.test_last_exited import RULES, K, assert_agrees, deep_model, plain, ragged, traced

from scalerlt.errors import UserError
from scalerlt.rollout import decode_attention, kv_cache, native
from scalerlt.rollout.kv_cache import KVCache, Row
from scalerlt.rollout.native import NativeEngine
from scalerlt.rollout.recurrence import Recurrence, SkippedKV
from scalerlt.rollout.request import Request, Response

SCHEDULES = ["last_exited", "deferred_fill", "shared_kv"]


@pytest.fixture(autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)


@pytest.mark.parametrize("refill", [True, False])
@pytest.mark.parametrize("kv", SCHEDULES)
@pytest.mark.parametrize("rule", [RULES[2], RULES[8]], ids=str)
def test_schedules_agree_with_the_plain_implementation(kv: str, rule, refill: bool) -> None:
    model, asked = deep_model(), ragged(7, seed=11)
    result = NativeEngine(model, concurrency=4, exit_rule=rule, kv=kv, refill=refill).generate(asked)
    for request, response in zip(asked, result.responses, strict=True):
        expected = plain(model, request, rule, kv)
        assert expected.margin > 1e-9, "a tie at the threshold proves nothing"
        assert_agrees(response, expected)
    assert len({depth for response in result.responses for depth in response.exit_depths[1:]}) > 1


@pytest.mark.parametrize("kv", SCHEDULES)
def test_given_depths_in_every_order(kv: str) -> None:
    model, asked = deep_model(), traced(5)
    for request, response in zip(
        asked, NativeEngine(model, concurrency=3, kv=kv).generate(asked).responses, strict=True
    ):
        assert_agrees(response, plain(model, request, None, kv))


def test_the_schedules_are_different_policies() -> None:
    """So that the comparisons above tell them apart; at full depth two of them are the dense one."""
    model, asked = deep_model(), [replace(r, forced_tokens=(3,) * r.max_new_tokens) for r in traced(5)]
    early = [NativeEngine(model, concurrency=3, kv=kv).generate(asked).responses for kv in SCHEDULES]
    assert largest_difference(early[0], early[1]) > 1e-3
    assert largest_difference(early[0], early[2]) > 1e-3
    assert largest_difference(early[1], early[2]) > 1e-3
    deep = [replace(request, forced_depths=None) for request in asked]
    full = [NativeEngine(model, concurrency=3, kv=kv).generate(deep).responses for kv in SCHEDULES]
    assert largest_difference(full[0], full[1]) == 0
    assert largest_difference(full[0], full[2]) > 1e-3


def largest_difference(one: Sequence[Response], other: Sequence[Response]) -> float:
    pairs = zip(one, other, strict=True)
    return max(abs(x - y) for a, b in pairs for x, y in zip(a.logprobs, b.logprobs, strict=True))


def loops_in_each_batch(monkeypatch: pytest.MonkeyPatch) -> list[list[int]]:
    seen: list[list[int]] = []
    run = Recurrence._run

    def watched(self: Recurrence, rows: Sequence[Row], asks: bool) -> None:
        seen.append([row.loop for row in rows])
        run(self, rows, asks)

    monkeypatch.setattr(Recurrence, "_run", watched)
    return seen


def test_refill_runs_different_loops_in_one_batch_and_wastes_no_place(monkeypatch: pytest.MonkeyPatch) -> None:
    """Depths are given: with as many tokens as places, every batch but the last ones is full."""
    rng = random.Random(0)
    asked = [
        Request(
            request_id=str(index),
            prompt_tokens=(1, 2, 3),
            max_new_tokens=20,
            seed=index,
            ignore_eos=True,
            forced_depths=(K, *(rng.randint(1, K) for _ in range(19))),
        )
        for index in range(4)
    ]
    batches = loops_in_each_batch(monkeypatch)
    refilled = NativeEngine(deep_model(), concurrency=4).generate(asked)
    mixed = [batch for batch in batches if len(set(batch)) > 1]
    work = [sum(request.forced_depths[1:]) for request in asked]
    assert len(mixed) > len(batches) / 2
    assert len(batches) == max(work), "no token ever waits for another"
    assert all(len(batch) == 4 for batch in batches[: min(work)])
    batches.clear()
    waiting = NativeEngine(deep_model(), concurrency=4, refill=False).generate(asked)
    assert all(len(set(batch)) == 1 for batch in batches)
    assert len(batches) == sum(max(depths) for depths in zip(*(r.forced_depths[1:] for r in asked), strict=True))
    assert [r.tokens for r in waiting.responses] == [r.tokens for r in refilled.responses]
    assert largest_difference(waiting.responses, refilled.responses) < 1e-12
    assert waiting.stats.recurrent_rows == refilled.stats.recurrent_rows


@settings(max_examples=20, deadline=None)
@given(
    count=st.integers(1, 9),
    concurrency=st.integers(1, 6),
    seed=st.integers(0, 50),
    kv=st.sampled_from(SCHEDULES),
    refill=st.booleans(),
    shared=st.booleans(),
    deterministic=st.booleans(),
    rule=st.sampled_from([None, RULES[2], RULES[8]]),
)
def test_company_slots_and_settings_change_no_response(
    count: int, concurrency: int, seed: int, kv: str, refill: bool, shared: bool, deterministic: bool, rule
) -> None:
    """fp64, against each request by itself.

    The model amplifies rounding from token to token: by 10 million in the worst of these requests, in whose log-probs
    the plain implementation differs by as much. A wrong K/V shows in the third digit.
    """
    asked = ragged(count, seed=seed)
    model = deep_model()
    engine = NativeEngine(
        model,
        concurrency=concurrency,
        kv=kv,
        refill=refill,
        shared_prefill=shared,
        deterministic=deterministic,
        exit_rule=rule,
    )
    result = engine.generate(asked)
    alone = [NativeEngine(model, concurrency=1, kv=kv, exit_rule=rule).generate([r]).responses[0] for r in asked]
    assert [r.tokens for r in result.responses] == [r.tokens for r in alone]
    assert [r.exit_depths for r in result.responses] == [r.exit_depths for r in alone]
    assert largest_difference(result.responses, alone) < 1e-6
    assert result.stats.peak_active <= concurrency


def test_deferred_fill_runs_each_left_loop_at_most_once_and_only_when_it_is_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    batches = loops_in_each_batch(monkeypatch)

    def filled(*depths: int) -> int:
        request = Request(
            request_id="a",
            prompt_tokens=(5, 6),
            max_new_tokens=len(depths),
            ignore_eos=True,
            forced_depths=depths,
        )
        batches.clear()
        stats = NativeEngine(deep_model(), concurrency=1, kv="deferred_fill").generate([request]).stats
        assert stats.recurrent_rows == 2 * K + sum(depths[1:]) + stats.filled_rows
        assert sum(map(len, batches)) == sum(depths[1:]) + stats.filled_rows
        return stats.filled_rows

    assert filled(K, 2, 2, 2, 1) == 0, "nothing is read of loops that nobody runs"
    assert filled(K, 1, 2, 2) == 1
    assert filled(K, 1, 1, 1, K) == 3 * (K - 1)
    assert filled(K, 2, 1, 3, K, K) == 2 + 3 + 1, "each loop of each token once"
    assert filled(K, K, K, 1) == 0


def test_a_full_pool_makes_requests_wait_and_fails_none() -> None:
    model, asked = deep_model(), ragged(9, seed=2)
    longest = max(len(r.prompt_tokens) + r.max_new_tokens - 1 for r in asked)
    free = NativeEngine(model, concurrency=6, exit_rule=RULES[2]).generate(asked)
    for tokens, active in ((longest, 1), (3 * longest + longest - 1, 3), (100 * longest, 6)):
        engine = NativeEngine(model, concurrency=6, exit_rule=RULES[2], kv_cache_tokens=tokens)
        held = engine.generate(asked)
        assert held.stats.peak_active == active
        assert [r.tokens for r in held.responses] == [r.tokens for r in free.responses]
        assert held.stats.kv_cache_bytes <= tokens * free.stats.kv_cache_bytes / (6 * longest)
    with pytest.raises(UserError, match=f"kv_cache_tokens is {longest - 1}.*{longest} positions"):
        NativeEngine(model, concurrency=6, kv_cache_tokens=longest - 1).generate(asked)


def test_shared_kv_holds_one_plane_per_layer() -> None:
    model, asked = deep_model(), ragged(3)
    sizes = [NativeEngine(model, concurrency=3, kv=kv).generate(asked).stats.kv_cache_bytes for kv in SCHEDULES]
    assert sizes[0] == sizes[1] == K * sizes[2]


@pytest.mark.parametrize("concurrency", [9, 10, 11, 16])
def test_a_readout_that_is_filled_up_draws_the_same(concurrency: int, monkeypatch: pytest.MonkeyPatch) -> None:
    model, asked = deep_model(torch.float32), ragged(16, seed=5)
    expected = NativeEngine(model, concurrency=concurrency).generate(asked).responses
    monkeypatch.setattr(native, "LARGE_HEAD", 0)
    rows: list[int] = []
    logits = model.logits
    monkeypatch.setattr(model, "logits", lambda hidden: rows.append(len(hidden)) or logits(hidden))
    found = NativeEngine(model, concurrency=concurrency).generate(asked).responses
    assert not set(rows) & set(native.SLOW_ROWS)
    assert [response.tokens for response in found] == [response.tokens for response in expected]
    assert largest_difference(found, expected) < 2e-6


def test_first_tokens_are_announced_once_and_in_order_of_admission() -> None:
    asked, announced = ragged(7), []
    NativeEngine(deep_model(), concurrency=2, on_first_token=lambda request: announced.append(request)).generate(asked)
    assert announced == asked


@settings(max_examples=40, deadline=None)
@given(
    seed=st.integers(0, 2**31),
    rows=st.integers(1, 6),
    group=st.integers(1, 3),
    dtype=st.sampled_from([torch.float64, torch.float32]),
)
def test_all_ways_of_attending_are_one(seed: int, rows: int, group: int, dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(seed)
    capacity, heads, head_dim = 2 * decode_attention.KEY_BLOCK, 2, 8
    stored = torch.randn(2, 9, capacity, heads, head_dim, generator=generator, dtype=dtype)
    keys, values = stored
    queries = torch.randn(rows, heads, group, head_dim, generator=generator, dtype=dtype)
    lengths = torch.randint(1, capacity + 1, (rows,), generator=generator).tolist()
    first = int(torch.randint(0, 9 - rows + 1, (), generator=generator))
    places = torch.arange(first, first + rows)
    expected = torch.empty_like(queries)
    for row, (place, length) in enumerate(zip(places.tolist(), lengths, strict=True)):
        for head in range(heads):
            scores = queries[row, head] @ keys[place, :length, head].T * head_dim**-0.5
            expected[row, head] = scores.softmax(-1) @ values[place, :length, head]
    ways = {
        "in place": decode_attention.in_place([rows], places.tolist(), lengths, dtype, queries.device),
        "in place, row by row": decode_attention.in_place([1] * rows, places.tolist(), lengths, dtype, queries.device),
        "gathered": decode_attention.gathered(places, lengths, dtype),
        "by key blocks": decode_attention.by_key_blocks(places, lengths, dtype),
    }
    for name, read in ways.items():
        torch.testing.assert_close(read(queries, stored), expected, msg=lambda text, name=name: f"{name}: {text}")


@settings(max_examples=100, deadline=None)
@given(
    rows=st.lists(st.tuples(st.integers(0, 40), st.integers(1, 90)), min_size=1, max_size=20),
    unseen=st.none() | st.integers(0, 60),
)
def test_rows_of_a_group_lie_evenly_spaced_and_read_little_that_they_do_not_see(
    rows: list[tuple[int, int]], unseen: int | None
) -> None:
    places, lengths = zip(*sorted(rows), strict=True)
    sizes = decode_attention.evenly_spaced(places, lengths, unseen=unseen)
    assert sum(sizes) == len(rows) and min(sizes) > 0
    for end, size in zip(accumulate(sizes), sizes, strict=True):
        group = slice(end - size, end)
        steps = {right - left for left, right in pairwise(places[group])}
        assert len(steps) <= 1 and all(step > 0 for step in steps)
        if unseen is not None:
            assert size * max(lengths[group]) - sum(lengths[group]) <= unseen * (size - 1)


@pytest.mark.parametrize(
    ("places", "lengths", "unseen", "sizes"),
    [
        ([4, 5, 6, 7], [9, 9, 9, 9], 0, [4]),
        ([0, 3, 6, 7, 9, 20], [5] * 6, 0, [3, 2, 1]),
        ([4, 5, 6, 7], [9, 1, 9, 9], 7, [1, 1, 2]),
        ([4, 5, 6, 7], [9, 1, 9, 9], 8, [4]),
        ([4, 5, 6, 7], [2, 2, 5, 2], 5, [2, 2]),
        ([4, 5, 6, 7], [2, 2, 500, 2], None, [4]),
        ([3, 3, 3], [1, 2, 3], None, [1, 1, 1]),
        ([5, 4], [1, 1], None, [1, 1]),
    ],
)
def test_groups_of_rows(places: list[int], lengths: list[int], unseen: int | None, sizes: list[int]) -> None:
    assert decode_attention.evenly_spaced(places, lengths, unseen=unseen) == sizes


@pytest.mark.parametrize("kv", ["last_exited", "deferred_fill"])
@pytest.mark.parametrize("call_bytes", [0, 10**9])
def test_rows_at_different_loops_are_read_in_place_or_gathered(
    kv: SkippedKV, call_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And sequences are moved to be neighbours only where they are gathered otherwise."""
    monkeypatch.setattr(kv_cache, "CALL_BYTES", call_bytes)
    called: set[str] = set()

    def watch(name: str) -> None:
        way = getattr(decode_attention, name)
        monkeypatch.setattr(kv_cache, name, lambda *args: called.add(name) or way(*args))

    for name in ("in_place", "gathered", "by_key_blocks"):
        watch(name)
    moved: list[int] = []
    copy = KVCache.copy
    monkeypatch.setattr(KVCache, "copy", lambda self, *args: moved.append(1) or copy(self, *args))
    model, asked = deep_model(), ragged(9, seed=3)
    found = NativeEngine(model, concurrency=5, exit_rule=RULES[2], kv=kv).generate(asked).responses
    assert called == ({"in_place", "gathered"} if call_bytes else {"in_place"})
    assert bool(moved) == bool(call_bytes)
    for request, response in zip(asked, found, strict=True):
        assert_agrees(response, plain(model, request, RULES[2], kv=kv))


def test_a_request_that_waits_takes_the_place_of_one_that_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    """No sequence is moved while others wait."""
    waiting: list[int] = []
    copy = KVCache.copy
    engine = NativeEngine(deep_model(), concurrency=3, on_first_token=lambda request: waiting.append(1))
    monkeypatch.setattr(KVCache, "copy", lambda self, *args: waiting.append(0) or copy(self, *args))
    engine.generate(ragged(9, seed=3))
    assert waiting.count(1) == 9 and waiting[:9].count(0) == 0


def test_a_row_writes_its_own_place_alone() -> None:
    cache = KVCache(SMALL, slots=3, capacity=5, dtype=torch.float64, device="cpu")
    rows = [Row(slot=2, position=4, loop=1), Row(slot=0, position=0, loop=0)]
    attend = cache.decode(rows)
    heads, head_dim = SMALL.num_key_value_heads, SMALL.head_dim
    for layer in range(SMALL.num_hidden_layers):
        q = torch.randn(2, SMALL.num_attention_heads, head_dim, dtype=torch.float64)
        k, v = torch.randn(2, 2, heads, head_dim, dtype=torch.float64)
        attend(0, layer, q, k, v)
        for row, key, value in zip(rows, k, v, strict=True):
            assert torch.equal(cache._keys[row.loop, layer, row.slot, row.position], key)
            assert torch.equal(cache._values[row.loop, layer, row.slot, row.position], value)
    assert (cache._keys != 0).any(-1).any(-1).sum() == len(rows) * SMALL.num_hidden_layers
