"""The rollout engine `hf` against the native engine, and a plain transformer of ours against transformers' Llama."""

import json
from collections import Counter
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM
from vllm_engine.small_model import (
    CONFIG,
    TOLERANCE,
    largest_difference,
    logits_of,
    logprobs_of,
    model_of,
    requests_of,
)

from scalerlt.errors import Unsupported, UserError
from scalerlt.models.checkpoint import load_hf, save_hf
from scalerlt.rollout.hf import HfEngine
from scalerlt.rollout.native import NativeEngine
from scalerlt.rollout.plain import PlainEngine
from scalerlt.rollout.vllm.engine import VllmEngine

PLAIN = replace(CONFIG, total_ut_steps=1, num_hidden_layers=4, sandwich_norms=False)


@pytest.fixture(scope="module")
def model():
    return model_of(seed=1, config=PLAIN)


@pytest.fixture
def engine(model) -> HfEngine:
    return HfEngine(model, concurrency=4)


def test_greedy_tokens_are_the_native_engines(engine: HfEngine, model) -> None:
    asked = requests_of(11)
    native = NativeEngine(model, concurrency=4).generate(asked).responses
    for ours, theirs in zip(engine.generate(asked).responses, native, strict=True):
        assert largest_difference(ours.logprobs, theirs.logprobs) < TOLERANCE
        assert replace(ours, logprobs=(), raw_logprobs=()) == replace(theirs, logprobs=(), raw_logprobs=())


def test_vllm_runs_the_same_plain_transformer(model) -> None:
    asked = requests_of(5)
    native = NativeEngine(model, concurrency=8).generate(asked).responses
    for ours, theirs in zip(VllmEngine(model, concurrency=8).generate(asked).responses, native, strict=True):
        assert ours.tokens == theirs.tokens
        assert largest_difference(ours.logprobs, theirs.logprobs) < TOLERANCE


@pytest.mark.parametrize("options", [{}, {"top_k": 20}, {"top_p": 0.7}])
@pytest.mark.parametrize("temperature", [0.7, 1.0])
def test_logprobs_are_those_of_the_distribution_drawn_from(
    engine: HfEngine, model, temperature: float, options: dict[str, float]
) -> None:
    asked = requests_of(5, temperature=temperature, **options)
    for request, response in zip(asked, engine.generate(asked).responses, strict=True):
        logits = logits_of(model, request, response)
        wanted = logprobs_of(logits, response.tokens, temperature=temperature, **options)
        assert largest_difference(response.logprobs, wanted) < TOLERANCE
        assert largest_difference(response.raw_logprobs, logprobs_of(logits, response.tokens)) < TOLERANCE


def test_a_batch_repeats_its_tokens_and_leaves_the_random_state_alone(engine: HfEngine) -> None:
    asked = requests_of(4, temperature=1.0)
    before = torch.get_rng_state()
    first = engine.generate(asked).responses
    assert engine.generate(asked).responses == first
    assert torch.equal(torch.get_rng_state(), before)
    assert engine.generate([replace(asked[0], seed=5), *asked[1:]]).responses[0].tokens != first[0].tokens


def test_stops_and_what_is_counted(engine: HfEngine, model) -> None:
    asked = requests_of(7)
    stop = engine.generate(asked).responses[2].tokens[4]
    asked = [replace(request, stop_token_ids=(stop,)) for request in asked]
    phases, first = Counter(), []

    def on_phase(phase: str):
        phases[phase] += 1
        return nullcontext()

    engine.on_phase, engine.on_first_token = on_phase, lambda request: first.append(request.request_id)
    found, native = engine.generate(asked), NativeEngine(model, concurrency=4).generate(asked)
    for ours, theirs in zip(found.responses, native.responses, strict=True):
        assert (ours.tokens, ours.finish_reason) == (theirs.tokens, theirs.finish_reason)
    assert any(one.finish_reason == "stop" and len(one.tokens) < 12 for one in found.responses)
    plain = PlainEngine(model).generate(asked).stats  # the native engine also counts the K/V that it moves
    same = ("generated_tokens", "prompt_tokens", "recurrent_rows", "executed_depth_sum", "decode_depths")
    for name in (*same, "kv_rows_read", "kv_rows_written"):
        assert getattr(found.stats, name) == getattr(plain, name), name
    assert phases["prefill"] == found.stats.prefill_calls == 2 and first == [one.request_id for one in asked]
    assert found.stats.padded_rows > 0


def test_new_weights_are_read_where_they_are(model) -> None:
    model = model_of(seed=1, config=PLAIN)
    engine, new, asked = HfEngine(model, concurrency=4), model_of(seed=2, config=PLAIN), requests_of(3)
    with torch.no_grad():
        for own, theirs in zip(model.parameters(), new.parameters(), strict=True):
            own.copy_(theirs)
    native = NativeEngine(new, concurrency=4).generate(asked).responses
    assert [one.tokens for one in engine.generate(asked).responses] == [one.tokens for one in native]


def test_a_llama_checkpoint_is_read_and_written(model, tmp_path: Path) -> None:
    """A directory that transformers wrote gives its logits; one of ours gives transformers ours."""
    save_hf(model, tmp_path / "ours")
    theirs = LlamaForCausalLM.from_pretrained(tmp_path / "ours").eval()
    tokens = torch.tensor([[3, 200, 41, 7, 99, 500]])
    with torch.no_grad():
        ours = model.logits(model(tokens)[-1])
        assert (theirs(tokens).logits - ours).abs().max() < TOLERANCE
    theirs.save_pretrained(tmp_path / "theirs")
    assert json.loads((tmp_path / "theirs/config.json").read_text())["model_type"] == "llama"
    again = load_hf(tmp_path / "theirs", torch.float32, "cpu")
    assert again.config == model.config
    for (name, one), (_, other) in zip(again.named_parameters(), model.named_parameters(), strict=True):
        assert torch.equal(one, other), name
    published = LlamaForCausalLM(LlamaConfig(vocab_size=64, hidden_size=32, num_attention_heads=2, num_hidden_layers=1))
    published.save_pretrained(tmp_path / "defaults")
    assert load_hf(tmp_path / "defaults", torch.float32, "cpu").config.head_dim == 16


def test_what_it_refuses(engine: HfEngine) -> None:
    with pytest.raises(Unsupported, match="no looped models"):
        HfEngine(model_of(seed=1), concurrency=2)
    asked = requests_of(2)
    with pytest.raises(UserError, match=r"max_new_tokens is \[5, 12\]: rollout/engine=hf has one for all"):
        engine.generate([asked[0], replace(asked[1], max_new_tokens=5)])
    with pytest.raises(UserError, match="takes no forced_tokens"):
        engine.generate([replace(asked[0], forced_tokens=(1,))])
