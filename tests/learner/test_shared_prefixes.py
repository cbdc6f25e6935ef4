"""Shared prefixes against whole sequences."""

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from learner.prefix_cases import (
    ESTIMATORS,
    LAYOUTS,
    SHAPES,
    gradients,
    group,
    largest_difference,
    make_learner,
    none_learner,
    packed,
    step_responses,
)
from models.small import small_model

from scalerlt.learner.checkpoint import NoCheckpoint
from scalerlt.learner.comparison import Tolerances, learn_twice, schedule_errors
from scalerlt.learner.prefix.attention import packed_attention, prefix_attention, repeated_attention
from scalerlt.learner.rows import Places, attend_within
from scalerlt.measure.gradients import Tolerance


@pytest.mark.parametrize(("seed", "reduction"), [(31, "token_mean"), (32, "response_mean")])
@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_loss_and_every_gradient_are_those_of_whole_sequences(seed: int, estimator: str, reduction: str) -> None:
    options = {**ESTIMATORS[estimator], "reduction": reduction}
    responses = step_responses(seed)
    expected = gradients(none_learner(**options), responses)
    assert max(float(gradient.abs().max()) for gradient in expected[1].values()) > 0.1
    for layout in LAYOUTS:
        found = gradients(make_learner(layout(wave_responses=2), **options), responses)
        assert largest_difference(found, expected) < 1e-12, layout


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("estimator", ["hybrid", "rltt"])
def test_waves_micro_batches_and_order_change_nothing(layout, estimator: str) -> None:
    responses = step_responses(34)
    expected = gradients(none_learner(**ESTIMATORS[estimator]), responses)
    backwards = responses[::-1]
    for waves, tokens in ((1, 1000), (3, 9), (100, 1000)):
        learner = make_learner(layout(wave_responses=waves), tokens=tokens, **ESTIMATORS[estimator])
        assert largest_difference(gradients(learner, backwards), expected) < 1e-12


@settings(max_examples=20, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    shapes=SHAPES,
    waves=st.integers(1, 4),
    tokens=st.integers(1, 30),
    estimator=st.sampled_from(sorted(ESTIMATORS)),
    layout=st.sampled_from(LAYOUTS),
)
def test_any_shapes(seed: int, shapes, waves: int, tokens: int, estimator: str, layout) -> None:
    responses = [r for index, (prompt, lengths) in enumerate(shapes) for r in group(seed + index, prompt, lengths)]
    expected = gradients(none_learner(**ESTIMATORS[estimator]), responses)
    learner = make_learner(layout(wave_responses=waves), tokens=tokens, **ESTIMATORS[estimator])
    assert largest_difference(gradients(learner, responses), expected) < 1e-12


FP32 = Tolerances(gradient=Tolerance(1e-5, 8e-5), parameter_change=Tolerance(2e-6, 8e-5), moments=Tolerance(1e-6, 8e-5))


@pytest.mark.parametrize("estimator", ["grpo dense", "grpo hybrid", "rltt"])
def test_two_updates_in_fp32_stay_within_the_gates(estimator: str) -> None:
    minibatches = [step_responses(31), step_responses(32)]
    # At larger weights the gate on the change of parameters fails: docs/design/prefix.md, Limits.
    options = {**ESTIMATORS[estimator], "dtype": torch.float32, "initializer_range": 0.02}
    without = learn_twice(none_learner(**options), minibatches)
    fp64 = none_learner(**options | {"dtype": torch.float64})
    exact = learn_twice(fp64, minibatches)
    assert all(grad_norm > 0.01 for grad_norm in without.grad_norms)
    for layout in LAYOUTS:
        found = learn_twice(make_learner(layout(wave_responses=3), **options), minibatches)
        errors = schedule_errors(found, without, exact, FP32)
        assert errors.loss_abs < 2e-6
        assert errors.gradient.total.relative_l2 < 2e-6
        for figures in (errors.gradient.total, errors.parameter_change, errors.exp_avg, errors.exp_avg_sq):
            assert figures.elementwise is not None
            assert figures.elementwise <= 1
        assert errors.update_norm > 0.01
        assert not set(found.moments["exp_avg"]) & {"model.early_exit_gate.weight", "model.early_exit_gate.bias"}


@pytest.mark.parametrize("initializer_range", [0.05, 0.2])
def test_two_updates_in_fp32_are_as_near_to_fp64_as_those_of_whole_sequences(initializer_range: float) -> None:
    """Where the gate fails on a rough model, it is whole sequences' rounding as much as that of shared prefixes."""
    minibatches = [step_responses(31), step_responses(32)]
    options = {**ESTIMATORS["grpo dense"], "initializer_range": initializer_range}
    without = learn_twice(none_learner(**options, dtype=torch.float32), minibatches)
    exact = learn_twice(none_learner(**options), minibatches)
    for layout in LAYOUTS:
        learner = make_learner(layout(wave_responses=3), **options, dtype=torch.float32)
        errors = schedule_errors(learn_twice(learner, minibatches), without, exact, FP32)
        assert errors.change_rounding.relative_l2 < 3 * errors.change_rounding_floor.relative_l2
        assert errors.rounding.total.relative_l2 < 3 * errors.rounding_floor.total.relative_l2


@pytest.mark.parametrize("layout", LAYOUTS)
def test_frozen_parameters_get_no_gradient(layout) -> None:
    responses = step_responses(33)
    frozen = ["lm_head.weight", "model.layers.0.self_attn.k_proj.weight", "model.embed_tokens.weight"]
    results = []
    for chosen in (NoCheckpoint(), layout(wave_responses=2)):
        learner = make_learner(chosen, frozen=frozen)
        results.append(gradients(learner, responses))
        assert not set(results[-1][1]) & {*frozen, "model.early_exit_gate.weight", "model.early_exit_gate.bias"}
    assert largest_difference(results[1], results[0]) < 1e-12


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_head_alone_may_learn(layout) -> None:
    """No part of the prompt then has a gradient."""
    frozen = [name for name, _ in small_model().named_parameters() if name != "lm_head.weight"]
    found, expected = (
        gradients(make_learner(chosen, frozen=frozen), step_responses(33)) for chosen in (layout(2), NoCheckpoint())
    )
    assert set(found[1]) == {"lm_head.weight"}
    assert largest_difference(found, expected) < 1e-12


@pytest.mark.parametrize("layout", LAYOUTS)
def test_the_scale_of_the_loss_scales_the_gradient(layout) -> None:
    responses = step_responses(31)
    loss, gradient = gradients(make_learner(layout(2)), responses)
    eightfold = [replace(response, advantage=8 * response.advantage) for response in responses]
    expected = (8 * loss, {name: 8 * value for name, value in gradient.items()})
    assert largest_difference(gradients(make_learner(layout(2)), eightfold), expected) == 0


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("estimator", ["replay", "hybrid"])
def test_traces_that_no_rollout_leaves_are_refused(layout, estimator: str) -> None:
    responses = group(31, 5, (4, 3))
    learner = make_learner(layout(2), **ESTIMATORS[estimator])
    for depths, said in (([1, 1, 1, 1], "does not start with 3"), ([3, 4, 1, 1], "outside 1 .. 3")):
        with pytest.raises(ValueError, match=said):
            learner.backward([replace(responses[0], exit_depths=depths), responses[1]])
    with pytest.raises(ValueError, match="some have none"):
        learner.backward([replace(responses[0], exit_depths=None), responses[1]])


@pytest.mark.parametrize("layout", LAYOUTS)
def test_statistics_are_those_of_whole_sequences(layout) -> None:
    responses = step_responses(31)
    for options in (ESTIMATORS["grpo hybrid"], ESTIMATORS["rltt"]):
        expected = none_learner(**options).backward(responses)
        found = make_learner(layout(2), **options).backward(responses)
        assert found.statistics == pytest.approx(expected.statistics, abs=1e-12)
        assert (found.trained_tokens, found.prompt_tokens) == (expected.trained_tokens, expected.prompt_tokens)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_hybrid_values_are_replays_bit_for_bit(layout, dtype: torch.dtype) -> None:
    values = {}
    for estimator in ("replay", "hybrid"):
        learner = make_learner(layout(2), dtype, **ESTIMATORS[estimator])
        values[estimator] = learner.backward(step_responses(31)).statistics
    if layout is not packed:
        assert values["hybrid"] == values["replay"]
    elif dtype == torch.float64:  # its replay comes after the dense pass's prompt, in products of another shape
        assert values["hybrid"] == pytest.approx(values["replay"], rel=1e-12, abs=1e-12)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_step_that_trains_nothing_runs_nothing(layout) -> None:
    learner = make_learner(layout(2))
    result = learner.step([replace(r, mask=[False] * len(r.response_tokens)) for r in group(31, 4, (3, 0, 2))])
    assert (result.loss, result.updated, result.runs.token_calls) == (0.0, False, 0)
    assert learner.traffic(result).total == 0


@pytest.mark.parametrize("groups", [1, 2])
@pytest.mark.parametrize("asking", [None, [0, 2, 5, 6]])
@pytest.mark.parametrize("lengths", [(3, 3), (4, 1, 2)])
def test_attention_to_a_prefix_once_is_attention_to_its_copies(groups: int, asking, lengths) -> None:
    generator = torch.Generator().manual_seed(0)
    width, count = max(lengths), sum(lengths)
    rows = torch.tensor([width * index + place for index, length in enumerate(lengths) for place in range(length)])
    if asking is not None and count < 7:
        asking = [place for place in asking if place < count]
    places = Places(len(lengths), width, None if count == width * len(lengths) else rows)
    asked = None if asking is None else torch.tensor(asking)
    shapes = ((len(asking or rows), 2 * groups), (count, 2), (count, 2), (5, 2), (5, 2))
    tensors = [torch.randn(*shape, 6, generator=generator, dtype=torch.float64, requires_grad=True) for shape in shapes]
    q, k, v, prefix_k, prefix_v = tensors
    copies = repeated_attention(*tensors, places, asked)
    agree(prefix_attention(*tensors, places, asked), copies, tensors)
    prompt_q = torch.randn(5, 2 * groups, 6, generator=generator, dtype=torch.float64, requires_grad=True)
    within = attend_within(Places(1, 5), 0, 0, None, prompt_q, prefix_k, prefix_v)
    once = packed_attention(
        torch.cat((prompt_q, q)), torch.cat((prefix_k, k)), torch.cat((prefix_v, v)), 5, places, asked
    )
    agree(once, torch.cat((within, copies)), [*tensors, prompt_q])


def agree(once: torch.Tensor, other: torch.Tensor, tensors: list[torch.Tensor]) -> None:
    """The same values and the same gradients."""
    assert float((once - other).detach().abs().max()) < 1e-14
    weights = torch.randn(once.shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    for ours, theirs in zip(
        torch.autograd.grad(once, tensors, weights, retain_graph=True),
        torch.autograd.grad(other, tensors, weights, retain_graph=True),
        strict=True,
    ):
        assert float((ours - theirs).abs().max()) < 1e-14
