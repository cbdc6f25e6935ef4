"""The plain engine answers as the batched one does, and counts what it does."""

from dataclasses import replace

import pytest
import torch
from models.small import SMALL
from rollout.test_last_exited import K, deep_model
from rollout.test_native_engine import TINY
from rollout.test_shared_prefill import asked

from scalerlt.errors import UserError
from scalerlt.models.checkpoint import build
from scalerlt.rollout.native import NativeEngine
from scalerlt.rollout.plain import PlainEngine
from scalerlt.rollout.request import Request


@pytest.fixture(autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)


def requests(**changes: object) -> list[Request]:
    """Prompts of 1 to 9 tokens, sampled, greedy, at another temperature and from a part of the vocabulary."""
    kinds = [{}, {"temperature": 0.0}, {"temperature": 0.6}, {"top_k": 5}, {"top_p": 0.7}]
    drawn = asked([(5, 3), (1, 3), (9, 3)])
    return [
        replace(request, max_new_tokens=8 + index, **{**kinds[index % len(kinds)], **changes})
        for index, request in enumerate(drawn)
    ]


@pytest.mark.parametrize("ignore_eos", [False, True])
@pytest.mark.parametrize(("dtype", "bound"), [(torch.float32, 2e-6), (torch.float64, 1e-13)])
def test_the_same_tokens_and_log_probs_as_the_batched_engine(
    dtype: torch.dtype, bound: float, ignore_eos: bool
) -> None:
    model = build(TINY, dtype=dtype, device="cpu", seed=1)
    wanted = requests(ignore_eos=ignore_eos)
    batched = NativeEngine(model, concurrency=4).generate(wanted).responses
    plain = PlainEngine(model).generate(wanted).responses
    for ours, theirs in zip(plain, batched, strict=True):
        for name in ("request_id", "tokens", "exit_depths", "finish_reason", "seed", "weight_versions"):
            assert getattr(ours, name) == getattr(theirs, name), name
        for name in ("logprobs", "raw_logprobs"):
            assert getattr(ours, name) == pytest.approx(getattr(theirs, name), rel=0, abs=bound), name
    assert len({token for response in plain for token in response.tokens}) > 30


def test_it_counts_what_it_does() -> None:
    model = deep_model(torch.float32)
    wanted = requests(ignore_eos=True, temperature=1.0)
    stats = PlainEngine(model).generate(wanted).stats
    prompts = sum(len(request.prompt_tokens) for request in wanted)
    generated = sum(request.max_new_tokens for request in wanted)
    fed = prompts + generated - len(wanted)
    assert (stats.prompt_tokens, stats.generated_tokens, stats.readouts) == (prompts, generated, generated)
    assert stats.recurrent_rows == stats.kv_rows_written == K * fed
    assert (stats.decode_steps, stats.prefill_calls, stats.peak_active) == (generated - len(wanted), len(wanted), 1)
    assert stats.loop_runs == K * generated
    assert stats.decode_depths == {K: generated - len(wanted)}
    assert stats.mean_executed_depth == K
    assert stats.padded_tokens == stats.padded_rows == 0
    # A prompt of n reads n positions in each loop, and a token at position p the p + 1 up to itself.
    read = sum(
        len(r.prompt_tokens) + sum(range(len(r.prompt_tokens) + 1, len(r.prompt_tokens) + r.max_new_tokens))
        for r in wanted
    )
    assert stats.kv_rows_read == K * read
    longest = max(len(r.prompt_tokens) + r.max_new_tokens - 1 for r in wanted)
    row = 2 * SMALL.num_hidden_layers * SMALL.num_key_value_heads * SMALL.head_dim * 4
    assert stats.kv_cache_bytes == K * longest * row


def test_forced_tokens_are_evaluated_bit_for_bit_and_phases_and_first_tokens_are_told() -> None:
    model = deep_model(torch.bfloat16)
    wanted, told = requests(top_k=0, top_p=1.0), []

    class Phase:
        def __init__(self, name: str) -> None:
            self.name = name

        def __enter__(self) -> None:
            told.append(self.name)

        def __exit__(self, *_: object) -> None:
            told.append("end")

    answers = PlainEngine(model).generate(wanted).responses
    forced = [replace(r, forced_tokens=a.tokens, seed=0) for r, a in zip(wanted, answers, strict=True)]
    again = PlainEngine(model, on_phase=Phase, on_first_token=lambda r: told.append(r.request_id)).generate(forced)
    assert [a.logprobs for a in again.responses] == [a.logprobs for a in answers]
    decoded = ["decode", "end"] * (len(answers[0].tokens) - 1)
    assert told[: 3 + len(decoded)] == ["prefill", "end", wanted[0].request_id, *decoded]


def test_what_it_cannot_do_is_said_before_anything_runs() -> None:
    engine = PlainEngine(deep_model(torch.float32))
    [request] = asked([(5, 1)])
    depths = (K,) * request.max_new_tokens
    with pytest.raises(UserError, match="takes no forced_depths"):
        engine.generate([replace(request, forced_depths=depths)])
    with pytest.raises(UserError, match="the prompt is empty"):
        engine.generate([replace(request, prompt_tokens=())])
