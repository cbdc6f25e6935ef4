"""Bytes that a rollout moved, against what torch's operations really had as operands and against closed forms."""

import random
from collections import Counter

import pytest
import torch
from measure.operand_counter import OperandCounter
from models.small import SMALL, small_model
from torch.nn import functional

import scalerlt.rollout.kv_cache as kv_cache
import scalerlt.rollout.native as native
from scalerlt.rollout.exit_rule import ExitRule
from scalerlt.rollout.kv_cache import KVCache
from scalerlt.rollout.native import NativeEngine
from scalerlt.rollout.request import Request
from scalerlt.rollout.stats import RolloutResult
from scalerlt.rollout.traffic import rollout_traffic

K, L = SMALL.total_ut_steps, SMALL.num_hidden_layers
RULES = {
    "dense": None,
    "last_exited": ExitRule(threshold=0.6, min_loops=1),
    "two loops": ExitRule(threshold=1.0, min_loops=1, max_loops=2),
}


@pytest.fixture(autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)


def requests(count: int = 7) -> list[Request]:
    """Ragged prompts and responses, so that sequences end and are moved at different times."""
    draw = random.Random(4)
    return [
        Request(
            request_id=str(index),
            prompt_tokens=tuple(draw.randrange(1, SMALL.vocab_size) for _ in range(draw.randint(1, 9))),
            max_new_tokens=draw.randint(1, 8),
            seed=index,
            ignore_eos=True,
        )
        for index in range(count)
    ]


class Observed:
    """A rollout watched from outside: operands of all operations, and what attention was given."""

    def __init__(
        self, monkeypatch: pytest.MonkeyPatch, rule: ExitRule | None, *, concurrency: int, dtype: torch.dtype
    ) -> None:
        self.model = small_model(dtype)
        self.attended = 0
        pools: list[KVCache] = []
        kernel = functional.scaled_dot_product_attention

        def attention(q, k, v, attn_mask=None, **options):
            share = 1.0 if attn_mask is None else float((attn_mask == 0).float().mean())
            self.attended += round(share * (k.nbytes + v.nbytes))
            return kernel(q, k, v, attn_mask=attn_mask, **options)

        def pool(*args, **options) -> KVCache:
            pools.append(KVCache(*args, **options))
            self.operands = OperandCounter(self.model, keys=pools[0]._keys, values=pools[0]._values)
            self.operands.__enter__()
            return pools[0]

        monkeypatch.setattr(functional, "scaled_dot_product_attention", attention)
        # Gathered copies are no part of the traffic: K/V of rows at different loops are read where they are. Those in
        # step are moved to be neighbours.
        monkeypatch.setattr(kv_cache, "CALL_BYTES", 10**9 if rule is None else 0)
        monkeypatch.setattr(native, "KVCache", pool)
        engine = NativeEngine(self.model, concurrency=concurrency, exit_rule=rule)
        self.result: RolloutResult = engine.generate(requests())
        self.operands.__exit__(None, None, None)
        self.traffic = rollout_traffic(self.model, self.result.stats)

    @property
    def padding(self) -> int:
        """Rows of padding."""
        return self.result.stats.padded_tokens


@pytest.mark.parametrize(
    ("rule", "concurrency", "dtype"),
    [
        ("dense", 3, torch.float32),
        ("last_exited", 3, torch.float32),
        ("last_exited", 7, torch.float32),
        ("two loops", 3, torch.float32),
        ("last_exited", 3, torch.bfloat16),
    ],
)
def test_against_the_operands_of_every_operation(
    monkeypatch: pytest.MonkeyPatch, rule: str, concurrency: int, dtype: torch.dtype
) -> None:
    observed = Observed(monkeypatch, RULES[rule], concurrency=concurrency, dtype=dtype)
    traffic, operands, size = observed.traffic, observed.operands, dtype.itemsize
    weights = {name: read for name, read in operands.read.items() if name not in ("keys", "values")}
    head = weights.pop("lm_head.weight")
    assert traffic.weights == sum(weights.values()) - observed.padding * SMALL.hidden_size * size
    generated = sum(len(response.tokens) for response in observed.result.responses)
    assert traffic.readout == head + 2 * generated * SMALL.vocab_size * size
    assert traffic.kv_written == operands.written["keys"] + operands.written["values"]
    kv_row = 2 * SMALL.num_key_value_heads * SMALL.head_dim * size
    copied = operands.read["keys"] + operands.read["values"]
    assert traffic.kv_read == observed.attended - observed.padding * K * L * kv_row + copied
    assert traffic.total == traffic.weights + traffic.kv_read + traffic.kv_written + traffic.readout
    if concurrency == 3:
        assert copied > 0, "sequences that ended at different times were moved, or tokens stopped early"


@pytest.mark.parametrize("rule", RULES)
def test_one_sequence_at_a_time_against_a_closed_form(rule: str) -> None:
    """From the responses alone: with one slot there is neither a batch nor a move."""
    model = small_model(torch.float32)
    responses = NativeEngine(model, concurrency=1, exit_rule=RULES[rule]).generate(requests())
    loops = read = written = fed = 0
    for request, response in zip(requests(), responses.responses, strict=True):
        prompt = len(request.prompt_tokens)
        loops, read, written, fed = loops + K, read + K * prompt, written + K * prompt, fed + prompt
        for index, depth in enumerate(response.exit_depths[1:]):
            position = prompt + index
            loops += depth
            read += depth * (position + 1) + (1 if depth < K else 0)
            written += depth + (K - depth)
            fed += 1
    hidden, inner, vocabulary, queries, keys = 20, 28, 29, 4 * 6, 2 * 6
    layer = hidden * (2 * queries + 2 * keys + 3 * inner + 4)
    gates = loops - K * len(responses.responses) if rule == "last_exited" else 0
    traffic = rollout_traffic(model, responses.stats)
    assert traffic.weights == 4 * (loops * (L * layer + hidden) + gates * (hidden + 1) + fed * hidden)
    assert traffic.kv_read == 4 * read * L * 2 * keys
    assert traffic.kv_written == 4 * written * L * 2 * keys
    generated = responses.stats.generated_tokens
    assert traffic.readout == 4 * generated * vocabulary * (hidden + 2)
    if rule == "last_exited":
        depths = Counter(depth for response in responses.responses for depth in response.exit_depths[1:])
        assert len(depths) > 1, "the example stops at different depths"


def test_a_batch_reads_the_weights_once() -> None:
    """Weights for a whole batch are those for one sequence; K/V grow with it."""
    model = small_model(torch.float32)
    asked = [
        Request(request_id=str(i), prompt_tokens=(1, 2, 3), max_new_tokens=4, seed=i, ignore_eos=True) for i in range(5)
    ]
    one, five = (
        rollout_traffic(model, NativeEngine(model, concurrency=count).generate(asked[:count]).stats) for count in (1, 5)
    )
    rows = 4 * SMALL.hidden_size * (3 + 3)
    assert five.weights - 5 * rows == one.weights - rows
    assert five.kv_read == 5 * one.kv_read and five.kv_written == 5 * one.kv_written


def test_forced_depths_ask_no_gate() -> None:
    model = small_model(torch.float32)
    rule = ExitRule(threshold=0.6, min_loops=1)
    forced = Request(
        request_id="forced",
        prompt_tokens=(1, 2),
        max_new_tokens=3,
        seed=0,
        forced_tokens=(3, 4, 5),
        forced_depths=(3, 1, 2),
    )
    stats = NativeEngine(model, concurrency=1, exit_rule=rule).generate([forced]).stats
    assert (stats.loop_runs, stats.gate_runs) == (3 + 1 + 2, 0)
    # Prompt of 2 at K = 3 loops; then positions 2 and 3 at depths 1 and 2, each copied from where it stopped.
    assert stats.kv_rows_read == 3 * 2 + (3 + 1) + (2 * 4 + 1)
    assert stats.kv_rows_written == 3 * 4


def test_nothing_asked_moves_nothing() -> None:
    model = small_model(torch.float32)
    assert rollout_traffic(model, NativeEngine(model, concurrency=2).generate([]).stats).total == 0
