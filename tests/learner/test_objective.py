import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from scalerlt.learner.objective import logical_weights, policy_gradient_loss

masks = st.lists(st.lists(st.booleans(), max_size=6), min_size=1, max_size=5)


def test_token_mean_and_response_mean_by_hand():
    trained = [[True], [True, False, True], [], [False, False]]
    assert [w.tolist() for w in logical_weights(trained, "token_mean")] == [
        [1 / 3],
        [1 / 3, 0.0, 1 / 3],
        [],
        [0.0, 0.0],
    ]
    # Two responses have a trained token: each weighs one half.
    assert [w.tolist() for w in logical_weights(trained, "response_mean")] == [
        [0.5],
        [0.25, 0.0, 0.25],
        [],
        [0.0, 0.0],
    ]


@given(masks, st.sampled_from(["token_mean", "response_mean"]))
def test_weights_sum_to_one_or_nothing_is_trained(trained, reduction):
    weights = logical_weights(trained, reduction)
    total = sum(float(weight.sum()) for weight in weights)
    assert total == pytest.approx(1.0 if any(map(any, trained)) else 0.0)
    for weight, mask in zip(weights, trained, strict=True):
        assert (weight != 0).tolist() == list(mask)
        assert weight.dtype == torch.float64


def test_an_unknown_reduction_is_refused():
    with pytest.raises(ValueError, match="'mean'"):
        logical_weights([[True]], "mean")


def test_loss_and_gradient_by_hand():
    logprobs = torch.tensor([[-1.0, -2.0], [-3.0, -4.0]], requires_grad=True)
    weights = torch.tensor([[0.5, 0.25], [0.25, 0.0]])
    advantages = torch.tensor([2.0, -1.0])
    loss = policy_gradient_loss(logprobs, weights, advantages)
    assert loss.item() == pytest.approx(-(0.5 * 2 * -1 + 0.25 * 2 * -2 + 0.25 * -1 * -3))
    loss.backward()
    assert logprobs.grad.tolist() == [[-1.0, -0.5], [0.25, -0.0]]


def test_what_stands_at_untrained_places_has_no_influence():
    logprobs = torch.tensor([[-1.0, -math.inf, math.nan]], requires_grad=True)
    loss = policy_gradient_loss(logprobs, torch.tensor([[1.0, 0.0, 0.0]]), torch.tensor([1.0]))
    loss.backward()
    assert loss.item() == 1.0
    assert logprobs.grad.tolist() == [[-1.0, 0.0, 0.0]]
