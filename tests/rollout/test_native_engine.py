import random
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import numpy as np
import pytest
import torch
from models.plain_ouro import plain_generate
from models.small import SMALL, plain_twin, small_model

from scalerlt.errors import UserError
from scalerlt.models.checkpoint import build
from scalerlt.models.config import OuroConfig
from scalerlt.rollout.native import NativeEngine
from scalerlt.rollout.request import Request

K = SMALL.total_ut_steps


def requests(count: int, seed: int = 0, *, temperatures: tuple[float, ...] = (0.0, 1.0, 0.6)) -> list[Request]:
    """Ragged prompts and lengths, greedy and sampled."""
    rng = random.Random(seed)
    return [
        Request(
            request_id=f"r{index}",
            prompt_tokens=tuple(rng.randrange(1, SMALL.vocab_size) for _ in range(rng.randint(1, 9))),
            max_new_tokens=rng.randint(1, 7),
            temperature=temperatures[index % len(temperatures)],
            seed=rng.randrange(2**63),
        )
        for index in range(count)
    ]


@pytest.mark.parametrize("concurrency", [1, 3, 8])
def test_cached_batched_decoding_agrees_with_the_plain_implementation(concurrency: int) -> None:
    torch.set_num_threads(1)
    model = small_model()
    plain = plain_twin(model)
    asked = requests(8)
    result = NativeEngine(model, concurrency=concurrency).generate(asked)
    for request, response in zip(asked, result.responses, strict=True):
        tokens, logprobs = plain_generate(
            plain,
            list(request.prompt_tokens),
            request.max_new_tokens,
            request.temperature,
            request.seed,
            {SMALL.eos_token_id or 0},
        )
        assert response.request_id == request.request_id
        assert list(response.tokens) == tokens
        np.testing.assert_allclose(response.logprobs, logprobs, rtol=0, atol=1e-10)
        assert response.seed == request.seed
        assert response.finish_reason == ("stop" if tokens[-1] == 0 else "length")


def test_logprobs_are_those_of_a_full_forward_in_fp32() -> None:
    model = small_model(torch.float32)
    asked = requests(24, seed=5)
    for request, response in zip(asked, NativeEngine(model, concurrency=5).generate(asked).responses, strict=True):
        sequence = torch.tensor([[*request.prompt_tokens, *response.tokens]])
        with torch.no_grad():
            logits = model.logits(model(sequence)[-1])[0, len(request.prompt_tokens) - 1 : -1]
        logprobs = torch.log_softmax(logits / (request.temperature or 1.0), -1)
        expected = logprobs.gather(-1, torch.tensor(response.tokens)[:, None])[:, 0]
        # 24 vocabulary entries of size up to 10 and 6 layer passes: the last bits of the logits.
        np.testing.assert_allclose(response.logprobs, expected, rtol=0, atol=1e-5)


TINY = OuroConfig(
    vocab_size=512,
    hidden_size=64,
    intermediate_size=160,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
    head_dim=16,
    total_ut_steps=4,
    rope_theta=10000.0,
    rms_norm_eps=1e-6,
    max_position_embeddings=512,
)


def test_a_response_does_not_depend_on_concurrency_order_or_company() -> None:
    torch.set_num_threads(1)
    model = build(TINY, dtype=torch.float32, device="cpu", seed=1)
    rng = random.Random(2)
    asked = [
        replace(
            request,
            prompt_tokens=tuple(rng.randrange(512) for _ in range(rng.randint(1, 40))),
            max_new_tokens=rng.randint(1, 30),
            ignore_eos=True,
        )
        for request in requests(40, seed=2)
    ]
    alone = {r.request_id: r for r in NativeEngine(model, concurrency=1).generate(asked).responses}
    shuffled = rng.sample(asked, len(asked))
    for concurrency, order in ((4, asked), (16, shuffled), (64, shuffled), (7, shuffled[:20])):
        result = NativeEngine(model, concurrency=concurrency).generate(order)
        assert [response.request_id for response in result.responses] == [r.request_id for r in order]
        for response in result.responses:
            reference = alone[response.request_id]
            assert response.tokens == reference.tokens
            np.testing.assert_allclose(response.logprobs, reference.logprobs, rtol=0, atol=2e-6)


def test_an_engine_keeps_nothing_from_an_earlier_call_or_earlier_weights() -> None:
    model = small_model()
    engine = NativeEngine(model, concurrency=3)
    before = engine.generate(requests(6)).responses
    assert engine.generate(requests(6)).responses == before
    with torch.no_grad():
        model.lm_head.weight.mul_(0.5)
    after = engine.generate(requests(6)).responses
    assert after == NativeEngine(model, concurrency=3).generate(requests(6)).responses
    assert after != before


def test_stop_tokens_end_a_response_and_belong_to_it() -> None:
    model = small_model()
    free = Request(request_id="a", prompt_tokens=(5, 6), max_new_tokens=12, temperature=1.0, seed=4, ignore_eos=True)
    engine = NativeEngine(model, concurrency=2)
    full = engine.generate([free]).responses[0]
    assert len(full.tokens) == len(full.logprobs) == 12
    assert full.finish_reason == "length"
    stop = full.tokens[4]
    first = full.tokens.index(stop)
    stopped = engine.generate([replace(free, stop_token_ids=(stop,))]).responses[0]
    assert stopped.tokens == full.tokens[: first + 1]
    assert stopped.logprobs == full.logprobs[: first + 1]
    assert stopped.finish_reason == "stop"
    # A stop token as the very last allowed token is a stop.
    exact = engine.generate([replace(free, stop_token_ids=(stop,), max_new_tokens=first + 1)]).responses[0]
    assert exact.finish_reason == "stop"


def test_the_models_eos_stops_unless_ignored() -> None:
    model = small_model()
    with torch.no_grad():
        model.lm_head.weight.zero_()
    always_eos = Request(request_id="a", prompt_tokens=(5,), max_new_tokens=3, temperature=0.0)
    engine = NativeEngine(model, concurrency=1)  # all logits equal: greedy takes the first, which is eos
    assert engine.generate([always_eos]).responses[0].tokens == (0,)
    ignored = engine.generate([replace(always_eos, ignore_eos=True)]).responses[0]
    assert ignored.tokens == (0, 0, 0)
    assert ignored.finish_reason == "length"


def test_statistics_count_what_ran() -> None:
    model = small_model()
    asked = [
        Request(request_id=str(i), prompt_tokens=(1,) * p, max_new_tokens=n, temperature=1.0, seed=i, ignore_eos=True)
        for i, (p, n) in enumerate([(2, 4), (5, 1), (3, 2), (1, 3)])
    ]
    stats = NativeEngine(model, concurrency=2).generate(asked).stats
    assert stats.generated_tokens == 10
    assert stats.prompt_tokens == 11
    # Prefill: requests 0 and 1 together (3 rows of padding); 1 ends at once and 2 takes its slot; 2 ends after one
    # decode step and 3 takes its slot; 0 and 3 end after two more.
    assert stats.prefill_calls == 3
    assert stats.padded_tokens == 3
    assert stats.decode_steps == 3
    # Of each response the last token is never fed back.
    assert stats.recurrent_rows == K * (11 + 10 - 4)
    assert stats.mean_executed_depth == K
    assert stats.peak_active == 2
    planes, capacity = K * SMALL.num_hidden_layers, 5
    assert stats.kv_cache_bytes == 2 * planes * 2 * capacity * 2 * 6 * 8


def test_phases_are_announced_around_the_work() -> None:
    entered: list[str] = []
    open_phases: list[str] = []

    @contextmanager
    def on_phase(phase: str) -> Iterator[None]:
        assert not open_phases
        open_phases.append(phase)
        entered.append(phase)
        yield
        open_phases.pop()

    stats = NativeEngine(small_model(), concurrency=2, on_phase=on_phase).generate(requests(5)).stats
    # A decode batch is one loop of the tokens in flight; prompts run all of theirs at once.
    loops = SMALL.total_ut_steps
    assert Counter(entered) == {"prefill": stats.prefill_calls, "decode": loops * stats.decode_steps}
    assert entered[0] == "prefill"


def test_no_requests_no_work() -> None:
    result = NativeEngine(small_model(), concurrency=2).generate([])
    assert result.responses == []
    assert result.stats.generated_tokens == 0


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_stays_near_fp64_of_the_same_weights(dtype: torch.dtype) -> None:
    model = small_model(dtype)
    asked = requests(12)
    responses = NativeEngine(model, concurrency=3).generate(asked).responses
    model.to(torch.float64)
    errors = []
    for request, response in zip(asked, responses, strict=True):
        sequence = torch.tensor([[*request.prompt_tokens, *response.tokens]])
        with torch.no_grad():
            logits = model.logits(model(sequence)[-1])[0, len(request.prompt_tokens) - 1 : -1]
        logprobs = torch.log_softmax(logits / (request.temperature or 1.0), -1)
        expected = logprobs.gather(-1, torch.tensor(response.tokens)[:, None])[:, 0]
        errors += (torch.tensor(response.logprobs) - expected).abs().tolist()
    assert 0 < sum(errors) / len(errors) < 64 * (2.0**-8 if dtype == torch.bfloat16 else 2.0**-11)


def test_logits_that_are_not_finite_are_an_error_that_names_the_request() -> None:
    model = small_model(torch.float32)
    with torch.no_grad():
        model.model.embed_tokens.weight[7] = float("nan")
    good = Request(request_id="good", prompt_tokens=(3,), max_new_tokens=2)
    bad = Request(request_id="bad", prompt_tokens=(3, 7), max_new_tokens=2)
    with pytest.raises(FloatingPointError, match=r"'bad'.*position 2"):
        NativeEngine(model, concurrency=2).generate([good, bad])


def test_concurrency_has_to_be_positive() -> None:
    with pytest.raises(UserError, match="concurrency is 0"):
        NativeEngine(small_model(), concurrency=0)


def test_generation_leaves_the_model_trainable() -> None:
    model = small_model()
    NativeEngine(model, concurrency=2).generate(requests(3))
    model(torch.tensor([[1, 2, 3]]))[-1].sum().backward()
    assert all(p.grad is not None for name, p in model.named_parameters() if name.startswith("model.layers"))
