"""The rollout engine `vllm` against the native engine and against one fp64 pass; one running vLLM serves all tests."""

from collections import Counter
from contextlib import nullcontext
from dataclasses import replace

import pytest
import torch
from vllm_engine.small_model import (
    CONFIG,
    TOLERANCE,
    largest_difference,
    logits_of,
    logprobs_of,
    model_of,
    requests_of,
)

from scalerlt.errors import UserError
from scalerlt.publication.full import FullPublication
from scalerlt.rollout.native import NativeEngine
from scalerlt.rollout.request import Request
from scalerlt.rollout.vllm import offline
from scalerlt.rollout.vllm.engine import VllmEngine
from scalerlt.rollout.vllm.generation import Generation
from scalerlt.rollout.vllm.offline import OfflineSettings

SETTINGS = OfflineSettings(prefix_caching=True)


@pytest.fixture(scope="module")
def model():
    return model_of(seed=1)


@pytest.fixture
def engine(model) -> VllmEngine:
    """A new engine each time, over the one running vLLM; the model has its first weights again."""
    with torch.no_grad():
        for own, first in zip(model.parameters(), model_of(seed=1).parameters(), strict=True):
            if not torch.equal(own, first):
                own.copy_(first)
    return VllmEngine(model, concurrency=8, settings=SETTINGS)


def answers_as_native(engine: VllmEngine, requests: list[Request], model) -> None:
    """The same greedy tokens, and log-probs within the tolerance."""
    native = NativeEngine(model, concurrency=8).generate(requests).responses
    for ours, theirs in zip(engine.generate(requests).responses, native, strict=True):
        assert ours.tokens == theirs.tokens
        assert largest_difference(ours.logprobs, theirs.logprobs) < TOLERANCE
        assert replace(ours, logprobs=(), raw_logprobs=()) == replace(theirs, logprobs=(), raw_logprobs=())


def test_greedy_tokens_are_the_native_engines(engine: VllmEngine, model) -> None:
    answers_as_native(engine, requests_of(12), model)
    answers_as_native(engine, requests_of(3, length=100, max_new_tokens=40), model)


@pytest.mark.parametrize("options", [{}, {"top_k": 20}, {"top_p": 0.7}, {"top_k": 50, "top_p": 0.8}])
@pytest.mark.parametrize("temperature", [0.7, 1.0, 1.5])
def test_logprobs_are_those_of_the_distribution_drawn_from(
    engine: VllmEngine, model, temperature: float, options: dict[str, float]
) -> None:
    asked = requests_of(3, temperature=temperature, **options)
    for request, response in zip(asked, engine.generate(asked).responses, strict=True):
        logits = logits_of(model, request, response)
        wanted = logprobs_of(logits, response.tokens, temperature=temperature, **options)
        assert largest_difference(response.logprobs, wanted) < TOLERANCE
        raw = logprobs_of(logits, response.tokens)
        assert largest_difference(response.raw_logprobs, raw) < TOLERANCE
        if temperature != 1.0:
            assert largest_difference(response.logprobs, raw) > 100 * TOLERANCE


def test_a_seed_repeats_its_tokens_in_other_company(engine: VllmEngine) -> None:
    asked = requests_of(6, temperature=1.0)
    first = {one.request_id: one for one in engine.generate(asked).responses}
    engine.concurrency = 2
    again = engine.generate(list(reversed(asked)))
    assert [one.tokens for one in again.responses] == [first[one.request_id].tokens for one in again.responses]
    assert again.stats.peak_active == 2
    other = engine.generate([replace(one, seed=one.seed + 1) for one in asked if one.seed is not None]).responses
    assert all(one.tokens != first[one.request_id].tokens for one in other)
    drawn = iter([7, 2**63 - 1])
    engine.draw_seed = lambda: next(drawn)
    unseeded = engine.generate([replace(one, seed=None) for one in asked[:2]]).responses
    assert [one.seed for one in unseeded] == [7, 2**63 - 1]
    assert engine.generate([replace(asked[0], seed=7)]).responses[0].tokens == unseeded[0].tokens


def test_a_response_ends_with_the_token_that_stops_it(engine: VllmEngine) -> None:
    asked = requests_of(1)[0]
    whole = engine.generate([asked]).responses[0]
    assert whole.finish_reason == "length" and len(whole.tokens) == 12
    stop = whole.tokens[5]
    cut = whole.tokens[: whole.tokens.index(stop) + 1]
    stopped = engine.generate([replace(asked, stop_token_ids=(stop,))]).responses[0]
    assert (stopped.tokens, stopped.finish_reason) == (cut, "stop")
    assert len(stopped.logprobs) == len(stopped.exit_depths) == len(cut)


def test_the_models_end_of_text_stops_unless_ignored(engine: VllmEngine, model) -> None:
    with torch.no_grad():
        model.lm_head.weight.zero_()  # all logits are equal: greedy takes the first, 0, which is the end of text
    asked = replace(requests_of(1)[0], ignore_eos=False)
    ended = engine.generate([asked]).responses[0]
    assert (ended.tokens, ended.finish_reason) == ((0,), "stop")
    assert engine.generate([replace(asked, ignore_eos=True)]).responses[0].tokens == (0,) * 12


def test_what_is_counted(engine: VllmEngine, model) -> None:
    """At full depth the work follows from the lengths; the native engine counts it as it goes."""
    asked, phases, first = requests_of(11), Counter(), []

    def on_phase(phase: str):
        phases[phase] += 1
        return nullcontext()

    engine.on_phase, engine.on_first_token = on_phase, lambda request: first.append(request.request_id)
    stats = engine.generate(asked).stats
    native = NativeEngine(model, concurrency=8).generate(asked).stats
    sizes = {"kv_cache_bytes": 0, "padded_tokens": 0}
    assert replace(stats, **sizes) == replace(native, **sizes)
    assert phases == {"prefill": stats.prefill_calls, "decode": stats.decode_steps}
    assert first == [request.request_id for request in asked]
    assert stats.kv_cache_bytes >= 8 * 256 * offline.position_bytes(model)


def test_requests_that_wait_share_their_steps_with_decoding_tokens(engine: VllmEngine) -> None:
    asked = requests_of(4)
    asked[0] = replace(asked[0], max_new_tokens=3)
    engine.concurrency = 2
    stats = engine.generate(asked).stats
    assert stats.mixed_tokens == 2  # the third joins the second, the fourth whichever goes on
    assert stats.generated_tokens == 3 + 3 * 12


def test_a_publication_is_the_new_policy_without_a_restart(engine: VllmEngine, model) -> None:
    running, new = engine.offline, model_of(seed=2)
    publication = FullPublication(engine)
    asked = requests_of(6, length=40)
    old = engine.generate(asked).responses
    publication.start(5)
    with pytest.raises(UserError, match="not finished"):
        engine.generate(asked)
    publication.update(list(new.named_parameters())[:7])
    publication.update(list(new.named_parameters())[7:])
    publication.finish()
    nbytes = sum(parameter.nbytes for parameter in model.parameters())
    assert publication.bytes_moved == 4 * nbytes  # to the engine's model, and from it to vLLM
    answers_as_native_version(engine, asked, new, version=5)
    assert engine.offline is running and engine.generate(asked).responses[0].tokens != old[0].tokens


def answers_as_native_version(engine: VllmEngine, asked: list[Request], model, version: int) -> None:
    native = NativeEngine(model, concurrency=8)
    native.weight_version = version
    for ours, theirs in zip(engine.generate(asked).responses, native.generate(asked).responses, strict=True):
        assert (ours.tokens, ours.weight_versions) == (theirs.tokens, theirs.weight_versions)
        assert largest_difference(ours.logprobs, theirs.logprobs) < TOLERANCE


def test_an_old_prefix_cache_is_not_used(engine: VllmEngine, model) -> None:
    """Vllm itself keeps a prompt's blocks, and only new weights or a new `generate` drop them."""
    asked = requests_of(1, length=90)

    def generated() -> Generation:
        generation = Generation(engine.offline.engine, CONFIG, asked, [0])
        generation.run(8, lambda phase: nullcontext(), lambda request: None)
        return generation

    engine.offline.forget()
    assert generated().answers[0].cached == 0
    assert generated().answers[0].cached == 64  # the whole blocks of 90 tokens
    new = model_of(seed=3)
    with torch.no_grad():
        for own, theirs in zip(model.parameters(), new.parameters(), strict=True):
            own.copy_(theirs)
    engine.take_weights()
    after = generated().answers[0]
    assert after.cached == 0
    assert tuple(after.tokens) == NativeEngine(new, concurrency=1).generate(asked).responses[0].tokens

    same = [replace(asked[0], request_id=f"{copy}") for copy in range(3)]
    for _ in range(2):
        stats = engine.generate(same).stats
        assert stats.shared_prompt_tokens == 2 * 64 and stats.prompt_tokens == 3 * 90 - 2 * 64


def test_changed_weights_are_taken_unasked(engine: VllmEngine, model) -> None:
    with torch.no_grad():
        model.lm_head.weight.mul_(-1)
    answers_as_native(engine, requests_of(3), model)
    assert engine.take_weights() == 0


def test_weights_do_not_change_under_way(engine: VllmEngine, model) -> None:
    def changing(request: Request) -> None:
        with torch.no_grad():
            model.lm_head.weight.mul_(1.5)
        engine.take_weights()

    engine.on_first_token = changing
    with pytest.raises(UserError, match="while it generates"):
        engine.generate(requests_of(2))
    engine.on_first_token = lambda request: None
    answers_as_native(engine, requests_of(2), model)  # what was under way is given up


def test_logits_that_are_not_finite_are_an_error(engine: VllmEngine, model) -> None:
    with torch.no_grad():
        model.lm_head.weight[3] = float("nan")
    with pytest.raises(FloatingPointError, match="request 'r0': the model's logits for position 3"):
        engine.generate(requests_of(2))
    with torch.no_grad():
        model.lm_head.weight[3] = 0.0
    answers_as_native(engine, requests_of(2), model)


def test_it_sleeps_and_wakes(engine: VllmEngine, model) -> None:
    """On a CPU vLLM gives back no memory; its scheduler stops and goes on."""
    engine.offline.sleep()
    assert engine.offline.engine.is_sleeping()
    answers_as_native(engine, requests_of(2), model)
    engine.offline.sleep()
    with torch.no_grad():
        model.lm_head.weight.mul_(-1)
    engine.take_weights()
    answers_as_native(engine, requests_of(2), model)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"forced_tokens": (1, 2)}, "takes no forced_tokens"),
        ({"forced_depths": (4, 2) + (4,) * 10}, "runs every token at full depth"),
        ({"temperature": 0.005}, "no lower one than 0.01"),
        ({"prompt_tokens": (600,)}, "outside the vocabulary"),
        ({"max_new_tokens": 254}, "256"),
    ],
)
def test_what_it_cannot_do_is_said_before_anything_runs(
    engine: VllmEngine, change: dict[str, object], said: str
) -> None:
    request = replace(requests_of(1)[0], **change)
    with pytest.raises(UserError, match=said):
        engine.generate([request])
    assert not engine.offline.engine.has_unfinished_requests()


def test_nothing_asked_is_nothing_done(engine: VllmEngine) -> None:
    result = engine.generate([])
    assert result.responses == [] and result.stats.generated_tokens == 0
