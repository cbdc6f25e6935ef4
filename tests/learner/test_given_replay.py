"""Log-probs of the replay that were evaluated elsewhere: their value, the learner's gradient, and no pass for them."""

import math
from collections.abc import Sequence
from dataclasses import replace
from functools import cache

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from learner.plain_learner import ragged_responses
from learner.prefix_cases import (
    GRPO,
    LAYOUTS,
    SHAPES,
    WAVES,
    gradients,
    group,
    largest_difference,
    make_learner,
    none_learner,
    packed,
    segmented,
    step_responses,
)
from learner.test_replay import with_depths
from models.small import SMALL, small_model

from scalerlt.learner.batching import TrainingResponse, pack
from scalerlt.learner.calibration import cut
from scalerlt.learner.checkpoint import LayerCheckpoint, LoopCheckpoint, NoCheckpoint
from scalerlt.learner.layout import WholeSequences
from scalerlt.learner.logprobs import logprobs, response_logprobs


def with_replay(responses: Sequence[TrainingResponse], seed: int = 0) -> list[TrainingResponse]:
    """Log-probs that no pass of the model gives; empty responses have them or not."""
    generator = torch.Generator().manual_seed(seed)
    found = []
    for index, response in enumerate(responses):
        values = (-4 * torch.rand(len(response.response_tokens), generator=generator, dtype=torch.float64)).tolist()
        found.append(replace(response, replay_logprobs=values if values or index % 2 else None))
    return found


def checkpointed(wave_responses: int) -> WholeSequences:
    return WholeSequences((LayerCheckpoint(), LoopCheckpoint())[wave_responses % 2])


KINDS = {"replay": "replay", "hybrid": "dense"}
"""Of each kind the one whose gradient it has."""


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
@pytest.mark.parametrize("kind", KINDS)
def test_the_value_is_given_and_the_gradient_is_the_learners_bit_for_bit(kind: str, dtype: torch.dtype) -> None:
    model = small_model(dtype)
    bare = with_depths(ragged_responses(lengths=(1, 7, 2, 30)))
    responses = with_replay(bare)
    found = logprobs(kind, model, pack(responses), temperature=0.8)
    assert found.dtype == (torch.float64 if dtype == torch.float64 else torch.float32)
    for row, response in zip(found, responses, strict=True):
        values = torch.tensor(response.replay_logprobs, dtype=torch.float64).to(found.dtype)
        assert torch.equal(row[: len(values)], values)
        assert not row[len(values) :].any()
    own = logprobs(KINDS[kind], model, pack(bare), temperature=0.8)
    coefficients = torch.randn(found.shape, generator=torch.Generator().manual_seed(0)).to(found)
    parameters = [p for name, p in model.named_parameters() if "early_exit_gate" not in name]
    ours = torch.autograd.grad((found * coefficients).sum(), parameters)
    theirs = torch.autograd.grad((own * coefficients).sum(), parameters)
    assert all(torch.equal(a, b) for a, b in zip(ours, theirs, strict=True))


@pytest.mark.parametrize("layout", [*LAYOUTS, checkpointed])
@pytest.mark.parametrize(("waves", "tokens"), [(2, 1000), (3, 12)])
def test_a_hybrid_runs_what_a_dense_learner_runs(layout, waves: int, tokens: int) -> None:
    """No packed replay: the same passes, rows, layers, readouts and bytes."""
    bare = step_responses(31)
    learner, result = {}, {}
    for name, options, responses in (
        ("given", {"logprob": "hybrid"}, with_replay(bare)),
        ("dense", {}, bare),
        ("evaluated", {"logprob": "hybrid"}, bare),
    ):
        learner[name] = make_learner(layout(wave_responses=waves), tokens=tokens, **options)
        result[name] = learner[name].step(responses)
    assert result["given"].runs == result["dense"].runs
    assert learner["given"].traffic(result["given"]) == learner["dense"].traffic(result["dense"])
    assert result["given"].runs.token_calls < result["evaluated"].runs.token_calls
    assert result["given"].runs.evaluations == result["evaluated"].runs.evaluations - 1


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_replay_learner_runs_its_replay_all_the_same(layout) -> None:
    bare = step_responses(31)
    runs = [
        make_learner(layout(wave_responses=2), logprob="replay").backward(responses).runs
        for responses in (bare, with_replay(bare))
    ]
    assert runs[0] == runs[1]


OPTIONS = {kind: {"logprob": kind, "objective": GRPO} for kind in KINDS}
"""The ratios of this objective make the gradient depend on the values."""


@cache
def of_whole_sequences(kind: str):
    """Loss and gradients of a step, which the given values have changed."""
    bare = step_responses(32)
    found = gradients(none_learner(**OPTIONS[kind]), with_replay(bare))
    assert largest_difference(gradients(none_learner(**OPTIONS[kind]), bare), found) > 1e-3
    return found


@pytest.mark.parametrize("layout", [*LAYOUTS, checkpointed])
@pytest.mark.parametrize("kind", KINDS)
def test_every_layout_gives_the_loss_and_gradients_of_whole_sequences(kind: str, layout) -> None:
    responses, expected = with_replay(step_responses(32)), of_whole_sequences(kind)
    for waves, tokens in ((2, 1000), (3, 9), (100, 1000)):
        learner = make_learner(layout(wave_responses=waves), tokens=tokens, **OPTIONS[kind])
        assert largest_difference(gradients(learner, responses[::-1]), expected) < 1e-12


@settings(max_examples=10, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    shapes=SHAPES,
    waves=st.integers(1, 4),
    tokens=st.integers(1, 30),
    kind=st.sampled_from(sorted(KINDS)),
    layout=st.sampled_from(LAYOUTS),
)
def test_any_shapes(seed: int, shapes, waves: int, tokens: int, kind: str, layout) -> None:
    responses = [r for index, (prompt, lengths) in enumerate(shapes) for r in group(seed + index, prompt, lengths)]
    responses = with_replay(responses, seed)
    expected = gradients(none_learner(**OPTIONS[kind]), responses)
    learner = make_learner(layout(wave_responses=waves), tokens=tokens, **OPTIONS[kind])
    assert largest_difference(gradients(learner, responses), expected) < 1e-12


@pytest.mark.parametrize("layout", LAYOUTS)
def test_statistics_see_the_given_values(layout) -> None:
    """The largest distance to the rollout's log-probs is that of the values that were given."""
    responses = with_replay(step_responses(31))
    found = make_learner(layout(2), logprob="hybrid").backward(responses).statistics
    differences = [
        abs(ours - theirs)
        for response in responses
        for ours, theirs, trained in zip(
            response.replay_logprobs or (), response.rollout_logprobs or (), response.trained, strict=True
        )
        if trained
    ]
    assert found["train_rollout_logprob_abs_diff_max"] == pytest.approx(max(differences), abs=1e-12)


@pytest.mark.parametrize(
    "layout", [NoCheckpoint, lambda: packed(2), lambda: segmented(1), *(lambda w=w: w(1) for w in WAVES)]
)
@pytest.mark.parametrize("kind", KINDS)
def test_those_of_some_responses_alone_are_refused(kind: str, layout) -> None:
    """In whatever micro-batch the others are."""
    responses = with_replay(group(31, 5, (4, 3, 2)))
    responses[1] = replace(responses[1], replay_logprobs=None)
    with pytest.raises(ValueError, match="some responses have replay_logprobs and some have none"):
        make_learner(layout(), tokens=4, logprob=kind).backward(responses)


def test_dense_log_probs_and_those_of_response_logprobs_take_no_notice() -> None:
    model, bare = small_model(), step_responses(31)
    for kind in ("dense", "replay", "hybrid"):
        options = {"temperature": 0.7, "microbatch_tokens": 20}
        expected = response_logprobs(kind, model, bare, **options)
        assert response_logprobs(kind, model, with_replay(bare), **options) == expected
    expected = gradients(none_learner(objective=GRPO), bare)
    assert largest_difference(gradients(none_learner(objective=GRPO), with_replay(bare)), expected) == 0


@pytest.mark.parametrize("kind", KINDS)
def test_an_impossible_token_keeps_a_finite_gradient(kind: str) -> None:
    values = [-1.0, -math.inf, -2.0]
    response = TrainingResponse([1, 2], [3, 5, 4], 1.0, exit_depths=[3, 1, 2], replay_logprobs=values)
    model = small_model()
    found = logprobs(kind, model, pack([response]), temperature=1.0)
    assert found[0].tolist() == values
    found[0, [0, 2]].sum().backward()
    assert all(p.grad is None or p.grad.isfinite().all() for p in model.parameters())


def test_a_calibration_measures_without_the_replay_too() -> None:
    response = with_replay(group(31, 5, (6,)))[0]
    assert cut(response, 1.0, 0.5).replay_logprobs == response.replay_logprobs[:3]
    assert len(response.replay_logprobs) == 6
    assert SMALL.total_ut_steps > 1
