"""What a response may depend on beside its request: with `deterministic` nothing, to the bit; else up to rounding."""

import random
from dataclasses import replace

import pytest
import torch
from rollout.test_last_exited import TINY, ragged

from scalerlt.models.checkpoint import build
from scalerlt.models.ouro import OuroForCausalLM
from scalerlt.rollout.exit_rule import ExitRule
from scalerlt.rollout.native import NativeEngine
from scalerlt.rollout.recurrence import FIXED_ROWS, SkippedKV
from scalerlt.rollout.request import Request, Response

RULE = ExitRule(threshold=0.7, min_loops=2)
ASKED = [replace(r, ignore_eos=True) for r in ragged(FIXED_ROWS + 4, seed=2, vocabulary=512, longest=6)]
LONG = replace(ASKED[0], request_id="long", prompt_tokens=tuple(range(1, 100)), max_new_tokens=4)


def model(dtype: torch.dtype) -> OuroForCausalLM:
    """Random weights of tiny_ouro's shape whose gate stops tokens at depths 2, 3 and 4."""
    built = build(TINY, dtype=dtype, device="cpu", seed=1)
    with torch.no_grad():
        built.model.early_exit_gate.weight.mul_(20)
    return built


def by_id(responses: list[Response]) -> dict[str, Response]:
    return {response.request_id: response for response in responses}


@pytest.mark.parametrize(
    ("dtype", "kv", "threads"),
    [
        (torch.float32, "last_exited", 1),
        (torch.float32, "deferred_fill", 1),
        (torch.float32, "shared_kv", 1),
        (torch.float32, "last_exited", 2),
        (torch.bfloat16, "last_exited", 1),
    ],
)
def test_any_company_and_slot_gives_the_same_bits(dtype: torch.dtype, kv: SkippedKV, threads: int) -> None:
    """One sequence at a time, few, more than a batch has rows; other orders; shared prompts; a long one beside."""
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        built = model(dtype)

        def generate(requests: list[Request], concurrency: int, **settings: bool) -> dict[str, Response]:
            engine = NativeEngine(built, concurrency=concurrency, exit_rule=RULE, kv=kv, deterministic=True, **settings)
            return by_id(engine.generate(requests).responses)

        alone = generate(ASKED, 1)
        assert {depth for response in alone.values() for depth in response.exit_depths[1:]} == {2, 3, 4}
        shuffled = random.Random(1).sample([*ASKED, LONG], len(ASKED) + 1)
        several = [replace(r, request_id=f"{r.request_id}/2") for r in ASKED[:9]]
        for found in (
            generate(shuffled[:20], 7),
            generate(shuffled, len(shuffled), refill=False),
            generate([*ASKED, *several], 40, shared_prefill=True),
        ):
            for name, response in found.items():
                if name != "long":
                    assert replace(response, request_id="") == replace(alone[name.removesuffix("/2")], request_id="")
    finally:
        torch.set_num_threads(before)


def test_without_it_bits_depend_on_the_company() -> None:
    """What the test above would miss: fp32 log-probs differ in some bits, within 2e-6; tokens do not here."""
    torch.set_num_threads(1)
    built = model(torch.float32)
    alone = by_id(NativeEngine(built, concurrency=1, exit_rule=RULE).generate(ASKED).responses)
    together = NativeEngine(built, concurrency=16, exit_rule=RULE).generate(ASKED).responses
    pairs = [
        (one, other)
        for response in together
        for one, other in zip(response.logprobs, alone[response.request_id].logprobs, strict=True)
    ]
    assert sum(one != other for one, other in pairs) > 0
    assert max(abs(one - other) for one, other in pairs) < 2e-6
    assert all(response.tokens == alone[response.request_id].tokens for response in together)


def test_every_batch_has_the_fixed_number_of_rows() -> None:
    rows: list[int] = []

    class Watched(OuroForCausalLM):
        def loop(self, loop: int, x: torch.Tensor, *rest: torch.Tensor, **options: object) -> torch.Tensor:
            if x.dim() == 2:
                rows.append(len(x))
            return super().loop(loop, x, *rest, **options)  # type: ignore[arg-type]

    built = model(torch.float32)
    built.__class__ = Watched
    engine = NativeEngine(built, concurrency=40, exit_rule=RULE, deterministic=True)
    stats = engine.generate(ASKED).stats
    assert set(rows) == {FIXED_ROWS}
    assert sum(rows) == stats.padded_rows + stats.recurrent_rows - 4 * stats.prompt_tokens
    assert stats.prefill_calls == len(ASKED)
    assert stats.padded_tokens == 0
