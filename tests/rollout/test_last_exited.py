"""The deferred rollout against its plain implementation, and what must not change it."""

import random
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
import torch
from models.small import SMALL, plain_twin
from rollout.plain_last_exited import PlainResponse, plain_last_exited

from scalerlt.errors import UserError
from scalerlt.models.checkpoint import build
from scalerlt.models.config import OuroConfig
from scalerlt.models.ouro import OuroForCausalLM
from scalerlt.rollout.exit_rule import ExitRule
from scalerlt.rollout.kv_cache import KVCache, Row
from scalerlt.rollout.native import NativeEngine
from scalerlt.rollout.request import Request, Response

K = 4
DEEP = replace(SMALL, total_ut_steps=K)


@pytest.fixture(autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)


def deep_model(
    dtype: torch.dtype = torch.float64, *, bias: float = 0.0, config: OuroConfig = DEEP, seed: int = 5
) -> OuroForCausalLM:
    """Random weights whose exit gate stops tokens at all depths."""
    model = build(config, dtype=dtype, device="cpu", seed=seed)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "norm" in name:
                parameter.copy_(0.5 + torch.rand(parameter.shape, generator=generator))
        model.model.early_exit_gate.weight.mul_(0.5)
        model.model.early_exit_gate.bias.fill_(bias)
    return model


def ragged(count: int, seed: int = 0, *, vocabulary: int = SMALL.vocab_size, longest: int = 8) -> list[Request]:
    """Ragged prompts and lengths; greedy and sampled."""
    rng = random.Random(seed)
    return [
        Request(
            request_id=f"r{index}",
            prompt_tokens=tuple(rng.randrange(1, vocabulary) for _ in range(rng.randint(1, longest))),
            max_new_tokens=rng.randint(2, longest),
            temperature=(0.0, 1.0, 0.6)[index % 3],
            seed=rng.randrange(2**63),
        )
        for index in range(count)
    ]


def plain(model: OuroForCausalLM, request: Request, rule: ExitRule | None, kv: str = "last_exited") -> PlainResponse:
    rule = rule or ExitRule(threshold=1.0, min_loops=1)
    assert request.seed is not None
    return plain_last_exited(
        plain_twin(model),
        list(request.prompt_tokens),
        request.max_new_tokens if request.forced_tokens is None else len(request.forced_tokens),
        temperature=request.temperature,
        seed=request.seed,
        stops=set(request.stops(model.config)),
        threshold=rule.threshold,
        min_loops=rule.min_loops,
        max_loops=rule.max_loops,
        delay=rule.delay,
        trace=None if request.forced_depths is None else list(request.forced_depths),
        forced=None if request.forced_tokens is None else list(request.forced_tokens),
        kv=kv,
    )


def assert_agrees(response: Response, expected: PlainResponse) -> None:
    assert list(response.tokens) == expected.tokens
    assert list(response.exit_depths) == expected.depths
    np.testing.assert_allclose(response.logprobs, expected.logprobs, rtol=0, atol=1e-10)
    np.testing.assert_allclose(response.raw_logprobs, expected.raw_logprobs, rtol=0, atol=1e-10)


RULES = [
    ExitRule(threshold=0.3, min_loops=1),
    ExitRule(threshold=0.5, min_loops=2),
    ExitRule(threshold=0.6, min_loops=2),
    ExitRule(threshold=0.7, min_loops=3),
    ExitRule(threshold=0.5, min_loops=1, max_loops=2),
    ExitRule(threshold=1.0, min_loops=2, max_loops=3),
    ExitRule(threshold=1e-9, min_loops=2),
    ExitRule(threshold=0.6, min_loops=2, delay=1),
    ExitRule(threshold=0.3, min_loops=1, delay=1),
    ExitRule(threshold=0.5, min_loops=1, max_loops=3, delay=1),
]


@pytest.mark.parametrize("rule", RULES, ids=str)
def test_early_exits_agree_with_the_plain_implementation(rule: ExitRule) -> None:
    model = deep_model()
    asked = ragged(6, seed=int(100 * rule.threshold))
    result = NativeEngine(model, concurrency=4, exit_rule=rule).generate(asked)
    for request, response in zip(asked, result.responses, strict=True):
        expected = plain(model, request, rule)
        assert expected.margin > 1e-9, "a tie at the threshold proves nothing"
        assert_agrees(response, expected)
    depths = [depth for response in result.responses for depth in response.exit_depths[1:]]
    assert len(set(depths)) > 1 or rule.threshold in (1.0, 1e-9)
    assert result.stats.decode_depths == {depth: depths.count(depth) for depth in set(depths)}


def test_depths_vary_over_the_whole_range() -> None:
    """What the comparisons above rest on."""
    responses = NativeEngine(deep_model(), concurrency=8, exit_rule=RULES[2]).generate(ragged(20)).responses
    assert {depth for response in responses for depth in response.exit_depths[1:]} == {2, 3, 4}


def traced(seed: int = 3) -> list[Request]:
    """Requests with depths of their own, in every order."""
    rng = random.Random(seed)
    return [
        replace(
            request,
            ignore_eos=True,
            forced_depths=(K, *(rng.randint(1, K) for _ in range(request.max_new_tokens - 1))),
        )
        for request in ragged(6, seed=seed)
    ]


def compare_traced(concurrency: int = 4, seed: int = 3) -> None:
    model, asked = deep_model(), traced(seed)
    responses = NativeEngine(model, concurrency=concurrency).generate(asked).responses
    for request, response in zip(asked, responses, strict=True):
        assert_agrees(response, plain(model, request, None))


@pytest.mark.parametrize("concurrency", [1, 4])
def test_given_depths_agree_with_the_plain_implementation(concurrency: int) -> None:
    compare_traced(concurrency)


def no_copy(self: KVCache, rows: list[Row]) -> None:
    pass


def only_the_next_loop(self: KVCache, rows: list[Row]) -> None:
    for row in rows:
        for pool in (self._keys, self._values):
            pool[row.loop + 1 : row.loop + 2, :, row.slot, row.position] = pool[row.loop, :, row.slot, row.position]


def another_layer(self: KVCache, rows: list[Row]) -> None:
    for row in rows:
        for pool in (self._keys, self._values):
            pool[row.loop + 1 :, :, row.slot, row.position] = pool[row.loop, :, row.slot, row.position].flip(0)


def keys_alone(self: KVCache, rows: list[Row]) -> None:
    for row in rows:
        pool = self._keys
        pool[row.loop + 1 :, :, row.slot, row.position] = pool[row.loop, :, row.slot, row.position]


def from_the_first_loop(self: KVCache, rows: list[Row]) -> None:
    for row in rows:
        for pool in (self._keys, self._values):
            pool[row.loop + 1 :, :, row.slot, row.position] = pool[0, :, row.slot, row.position]


def right(self: KVCache, rows: list[Row]) -> None:
    for row in rows:
        for pool in (self._keys, self._values):
            pool[row.loop + 1 :, :, row.slot, row.position] = pool[row.loop, :, row.slot, row.position]


@pytest.mark.parametrize("mutant", [no_copy, only_the_next_loop, another_layer, keys_alone, from_the_first_loop])
def test_a_wrong_copy_of_keys_and_values_is_found_out(mutant: object, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(KVCache, "copy_to_deeper", mutant)
    with pytest.raises(AssertionError):
        compare_traced()
    monkeypatch.setattr(KVCache, "copy_to_deeper", right)
    compare_traced()


@pytest.mark.parametrize("threshold", [1.0, 1.5, float("inf")])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_a_threshold_of_one_is_the_dense_rollout_bit_for_bit(threshold: float, dtype: torch.dtype) -> None:
    """Also where the gate is certain: in bf16 1 - prod (1 - lambda) would round to 1."""
    model = deep_model(dtype, bias=30.0)
    asked = ragged(7)
    dense = NativeEngine(model, concurrency=3).generate(asked)
    rule = ExitRule(threshold=threshold, min_loops=1)
    deferred = NativeEngine(model, concurrency=3, exit_rule=rule).generate(asked)
    assert deferred.responses == dense.responses
    assert deferred.stats == dense.stats
    assert {depth for response in dense.responses for depth in response.exit_depths} == {K}


def test_the_threshold_itself_is_reached() -> None:
    """lambda is exactly 1/2 at every loop: after loop 2 the probability is 3/4, and 3/4 >= 3/4."""
    model = deep_model(torch.float32)
    with torch.no_grad():
        model.model.early_exit_gate.weight.zero_()
        model.model.early_exit_gate.bias.zero_()
    asked = [Request(request_id="a", prompt_tokens=(3, 4), max_new_tokens=3, ignore_eos=True)]
    for threshold, depth in ((0.5, 1), (0.75, 2), (0.76, 3), (0.875, 3), (0.88, 4)):
        rule = ExitRule(threshold=threshold, min_loops=1)
        response = NativeEngine(model, concurrency=1, exit_rule=rule).generate(asked).responses[0]
        assert response.exit_depths == (K, depth, depth)


def test_loops_below_the_minimum_count() -> None:
    """Certain at loop 1, doubtful afterwards: the token stops at min_loops, not one loop later."""
    model = deep_model()
    gates = iter([40.0, -40.0, -40.0, -40.0])
    model.exit_gate = lambda h: torch.full(h.shape[:-1], next(gates), dtype=h.dtype)  # type: ignore[method-assign]
    asked = [Request(request_id="a", prompt_tokens=(3, 4), max_new_tokens=2, ignore_eos=True)]
    engine = NativeEngine(model, concurrency=1, exit_rule=ExitRule(threshold=0.9, min_loops=2))
    assert engine.generate(asked).responses[0].exit_depths == (K, 2)


def test_the_gate_is_not_asked_where_depths_are_given(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_gate(self: OuroForCausalLM, h: torch.Tensor) -> torch.Tensor:
        raise AssertionError("the exit gate was asked")

    monkeypatch.setattr(OuroForCausalLM, "exit_gate", no_gate)
    asked = traced()
    responses = NativeEngine(deep_model(), concurrency=4, exit_rule=RULES[0]).generate(asked).responses
    assert [response.exit_depths for response in responses] == [request.forced_depths for request in asked]


def test_given_depths_and_the_gate_side_by_side() -> None:
    model, rule = deep_model(), RULES[1]
    mixed = [a if index % 2 else replace(b, request_id=f"g{index}") for index, (a, b) in enumerate(_pairs())]
    for request, response in zip(
        mixed, NativeEngine(model, concurrency=6, exit_rule=rule).generate(mixed).responses, strict=True
    ):
        assert_agrees(response, plain(model, request, rule))


def _pairs() -> Sequence[tuple[Request, Request]]:
    return list(zip(traced(), ragged(6, seed=8), strict=True))


def test_only_loops_that_ran_are_counted() -> None:
    rows: list[int] = []

    class Counting(OuroForCausalLM):
        def loop(self, loop: int, x: torch.Tensor, *rest: torch.Tensor, **options: object) -> torch.Tensor:
            rows.append(x.shape[:-1].numel())
            return super().loop(loop, x, *rest, **options)  # type: ignore[arg-type]

    model = deep_model()
    model.__class__ = Counting
    result = NativeEngine(model, concurrency=5, exit_rule=RULES[2]).generate(ragged(9))
    stats = result.stats
    assert sum(rows) == stats.recurrent_rows + K * stats.padded_tokens
    depths = [depth for response in result.responses for depth in response.exit_depths]
    assert stats.executed_depth_sum == sum(depths)
    assert stats.mean_executed_depth == sum(depths) / len(depths) < K
    assert stats.decode_depths.total() == stats.generated_tokens - len(result.responses)


TINY = OuroConfig(
    vocab_size=512,
    hidden_size=64,
    intermediate_size=160,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
    head_dim=16,
    total_ut_steps=K,
    rope_theta=10000.0,
    rms_norm_eps=1e-6,
    max_position_embeddings=512,
)


def test_a_response_does_not_depend_on_concurrency_order_or_company() -> None:
    """fp32; the seeds are such that no gate and no draw is within rounding of a tie."""
    model = build(TINY, dtype=torch.float32, device="cpu", seed=1)
    with torch.no_grad():
        model.model.early_exit_gate.weight.mul_(20)
    asked = [replace(r, ignore_eos=True) for r in ragged(24, seed=2, vocabulary=512, longest=16)]
    rule = ExitRule(threshold=0.7, min_loops=2)
    alone = {r.request_id: r for r in NativeEngine(model, concurrency=1, exit_rule=rule).generate(asked).responses}
    assert {depth for response in alone.values() for depth in response.exit_depths[1:]} == {2, 3, 4}
    shuffled = random.Random(4).sample(asked, len(asked))
    for concurrency, order in ((4, asked), (16, shuffled), (64, shuffled), (7, shuffled[:15])):
        for response in NativeEngine(model, concurrency=concurrency, exit_rule=rule).generate(order).responses:
            reference = alone[response.request_id]
            assert response.tokens == reference.tokens
            assert response.exit_depths == reference.exit_depths
            np.testing.assert_allclose(response.logprobs, reference.logprobs, rtol=0, atol=2e-6)


def forced(request: Request, response: Response) -> Request:
    """The same request, held to what was generated for it."""
    return replace(request, forced_tokens=response.tokens, forced_depths=response.exit_depths, seed=0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_response_forced_to_itself_is_the_same(dtype: torch.dtype) -> None:
    model, asked = deep_model(dtype), ragged(8)
    responses = NativeEngine(model, concurrency=3, exit_rule=RULES[2]).generate(asked).responses
    again = [forced(request, response) for request, response in zip(asked, responses, strict=True)]
    replayed = NativeEngine(model, concurrency=3).generate(again).responses
    assert [replace(r, seed=0) for r in responses] == list(replayed)


def test_forced_tokens_are_evaluated_under_other_weights() -> None:
    old, new = deep_model(), deep_model(seed=6)
    asked = ragged(6)
    responses = NativeEngine(old, concurrency=3, exit_rule=RULES[2]).generate(asked).responses
    again = [forced(request, response) for request, response in zip(asked, responses, strict=True)]
    replayed = NativeEngine(new, concurrency=4).generate(again).responses
    for request, before, after in zip(again, responses, replayed, strict=True):
        assert after.tokens == before.tokens
        assert_agrees(after, plain(new, request, None))
        assert np.abs(np.subtract(after.logprobs, before.logprobs)).max() > 0.1


def test_forced_tokens_go_on_past_a_stop_and_end_where_they_end() -> None:
    request = Request(request_id="a", prompt_tokens=(3,), max_new_tokens=9, forced_tokens=(5, 0, 7))
    engine = NativeEngine(deep_model(), concurrency=1)
    response = engine.generate([request]).responses[0]
    assert (response.tokens, response.finish_reason) == ((5, 0, 7), "length")
    assert response.exit_depths == (K, K, K)
    response = engine.generate([replace(request, forced_tokens=(5, 0))]).responses[0]
    assert (response.tokens, response.finish_reason) == ((5, 0), "stop")


def test_raw_and_processed_logprobs() -> None:
    model = deep_model()
    asked = ragged(9)
    for request, response in zip(asked, NativeEngine(model, concurrency=4).generate(asked).responses, strict=True):
        sequence = torch.tensor([[*request.prompt_tokens, *response.tokens]])
        with torch.no_grad():
            logits = model.logits(model(sequence)[-1])[0, len(request.prompt_tokens) - 1 : -1]
        chosen = torch.tensor(response.tokens)[:, None]
        raw = torch.log_softmax(logits, -1).gather(-1, chosen)[:, 0]
        np.testing.assert_allclose(response.raw_logprobs, raw, rtol=0, atol=1e-10)
        if request.temperature in (0.0, 1.0):
            assert response.raw_logprobs == response.logprobs
        else:
            assert np.abs(np.subtract(response.raw_logprobs, response.logprobs)).max() > 1e-2


def test_a_request_without_a_seed_gets_one_and_learns_it() -> None:
    model = deep_model()
    seeds = iter([11, 2**63 - 1])
    asked = [replace(r, seed=None, temperature=1.0, request_id=str(i)) for i, r in enumerate(ragged(2))]
    responses = NativeEngine(model, concurrency=2, draw_seed=lambda: next(seeds)).generate(asked).responses
    assert [response.seed for response in responses] == [11, 2**63 - 1]
    known = [replace(request, seed=response.seed) for request, response in zip(asked, responses, strict=True)]
    assert NativeEngine(model, concurrency=2).generate(known).responses == list(responses)
    first, second = (NativeEngine(model, concurrency=2).generate(asked).responses[0].seed for _ in range(2))
    assert first != second
    assert all(0 <= seed < 2**63 for seed in (first, second))


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"threshold": 0.0, "min_loops": 1}, "exit threshold is 0.0"),
        ({"threshold": float("nan"), "min_loops": 1}, "exit threshold is nan"),
        ({"threshold": 0.5, "min_loops": 0}, "min_loops is 0 and max_loops is None"),
        ({"threshold": 0.5, "min_loops": 3, "max_loops": 2}, "min_loops is 3 and max_loops is 2"),
        ({"threshold": 0.5, "min_loops": 5}, "min_loops is 5 and max_loops is None: the model has 4 loops"),
        ({"threshold": 0.5, "min_loops": 2, "max_loops": 5}, "max_loops is 5: the model has 4 loops"),
    ],
)
def test_impossible_rules(values: dict[str, float], message: str) -> None:
    with pytest.raises(UserError, match=message):
        NativeEngine(deep_model(), concurrency=1, exit_rule=ExitRule(**values))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"forced_tokens": ()}, "0 forced_tokens, there have to be 1 .. max_new_tokens=3"),
        ({"forced_tokens": (1, 2, 3, 4)}, "4 forced_tokens"),
        ({"forced_tokens": (1, 99)}, r"forced_tokens holds \[99\]"),
        ({"forced_depths": (4, 2)}, "2 forced_depths, there have to be 3, as many as max_new_tokens"),
        (
            {"forced_tokens": (1, 2), "forced_depths": (4, 2, 2)},
            "3 forced_depths, there have to be 2, as many as forced",
        ),
        ({"forced_depths": (4, 0, 5)}, r"forced_depths holds \[0, 5\], outside 1 .. 4"),
        ({"forced_depths": (2, 2, 2)}, "forced_depths starts with 2: the first token is read out at 4"),
    ],
)
def test_impossible_traces(change: dict[str, tuple[int, ...]], message: str) -> None:
    request = replace(Request(request_id="a", prompt_tokens=(1,), max_new_tokens=3), **change)  # type: ignore[arg-type]
    with pytest.raises(UserError, match=message):
        NativeEngine(deep_model(), concurrency=1).generate([request])


def test_a_delayed_exit_is_one_loop_later() -> None:
    """Hazards of 0.3, threshold 0.5, at least 2 loops: stopped after 2 loops, or with the delay after 3."""
    model = deep_model(bias=float(np.log(0.3 / 0.7)))
    with torch.no_grad():
        model.model.early_exit_gate.weight.zero_()
    for delay, depth in ((0, 2), (1, 3)):
        rule = ExitRule(threshold=0.5, min_loops=2, delay=delay)
        responses = NativeEngine(model, concurrency=4, exit_rule=rule).generate(ragged(4)).responses
        assert {found for response in responses for found in response.exit_depths[1:]} == {depth}
