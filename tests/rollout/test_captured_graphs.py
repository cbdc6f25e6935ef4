"""Captured graphs generate what eager does; on a CPU a stretch that is run again stands for its graph."""

from dataclasses import replace

import pytest
import torch
from models.small import SMALL

from scalerlt.models.checkpoint import build
from scalerlt.models.ouro import OuroForCausalLM
from scalerlt.rollout import captured, native
from scalerlt.rollout.captured import CapturedLoop
from scalerlt.rollout.exit_rule import ExitRule
from scalerlt.rollout.native import NativeEngine
from scalerlt.rollout.request import Request

CUDA = torch.cuda.is_available()


@pytest.fixture(params=["again", pytest.param("cuda", marks=pytest.mark.skipif(not CUDA, reason="needs a GPU"))])
def model(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> OuroForCausalLM:
    if request.param == "again":
        # A graph repeats its work on the tensors that it was captured with, and so does the function.
        monkeypatch.setattr(native, "captured_loop", lambda model: CapturedLoop(model, lambda run: run))
    device = "cuda" if request.param == "cuda" else "cpu"
    return build(SMALL, dtype=torch.float32, device=device, seed=3)


def requests(count: int) -> list[Request]:
    return [
        Request(
            request_id=str(index),
            prompt_tokens=tuple((5 * index + place) % SMALL.vocab_size for place in range(2 + index)),
            max_new_tokens=4 + index,
            ignore_eos=True,
            seed=index,
        )
        for index in range(count)
    ]


@pytest.mark.parametrize("kv", ["last_exited", "deferred_fill", "shared_kv"])
def test_it_generates_what_eager_does(model: OuroForCausalLM, kv: native.SkippedKV) -> None:
    """Seven requests in four slots: batches of 1 to 4 rows and, of deferred_fill, more, at loops of their own."""
    rule = ExitRule(threshold=0.5, min_loops=1)
    eager = NativeEngine(model, concurrency=4, exit_rule=rule, kv=kv).generate(requests(7))
    graphs = NativeEngine(model, concurrency=4, exit_rule=rule, kv=kv, captured_graphs=True).generate(requests(7))
    assert graphs.stats == eager.stats
    for one, other in zip(graphs.responses, eager.responses, strict=True):
        assert replace(one, logprobs=(), raw_logprobs=()) == replace(other, logprobs=(), raw_logprobs=())
        assert max(abs(a - b) for a, b in zip(one.logprobs, other.logprobs, strict=True)) < 2e-6


def test_a_replay_repeats_every_bit(model: OuroForCausalLM) -> None:
    engine = NativeEngine(model, concurrency=4, exit_rule=ExitRule(threshold=0.5, min_loops=1), captured_graphs=True)
    first = engine.generate(requests(6)).responses
    forced = [
        replace(request, forced_tokens=response.tokens, forced_depths=response.exit_depths)
        for request, response in zip(requests(6), first, strict=True)
    ]
    assert [one.logprobs for one in engine.generate(forced).responses] == [one.logprobs for one in first]


def test_new_weights_in_place_are_the_policy(model: OuroForCausalLM) -> None:
    engine = NativeEngine(model, concurrency=4, captured_graphs=True)
    before = engine.generate(requests(3)).responses
    with torch.no_grad():
        model.model.layers[0].mlp.down_proj.weight.mul_(-2.0)
    after = engine.generate(requests(3)).responses
    eager = NativeEngine(model, concurrency=4).generate(requests(3)).responses
    assert [one.tokens for one in after] == [one.tokens for one in eager]
    assert max(abs(a - b) for a, b in zip(after[2].logprobs, before[2].logprobs, strict=True)) > 1e-3


def test_a_stretch_is_captured_once_for_each_power_of_two(model: OuroForCausalLM) -> None:
    captures = []

    def capture(run: captured.Capture) -> object:
        captures.append(run)
        return run

    loop = CapturedLoop(model, capture)  # type: ignore[arg-type]
    width = SMALL.head_dim
    for rows in (1, 3, 4, 4, 2, 3):
        x = torch.randn(rows, SMALL.hidden_size, device=model.device)
        with torch.inference_mode():
            loop(0, x, x.new_ones(rows, 1, width), x.new_zeros(rows, 1, width), attend=lambda loop, layer, q, k, v: q)
    assert len(captures) == 3 * (SMALL.num_hidden_layers + 1)
