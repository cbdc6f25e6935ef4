import math

import pytest
import torch
from learner.plain_learner import ragged_responses
from models.small import small_model

from scalerlt.learner.batching import TrainingResponse
from scalerlt.learner.bias import gradient_spread
from scalerlt.learner.checkpoint import NoCheckpoint
from scalerlt.learner.objective import logical_count, logical_weights
from scalerlt.learner.optimizer import ActorOptimizer, OptimizerSettings, freeze_exit_gate
from scalerlt.learner.step import ActorUpdate


def make_learner(reduction: str) -> ActorUpdate:
    model = small_model()
    freeze_exit_gate(model)
    return ActorUpdate(
        model,
        ActorOptimizer(model, OptimizerSettings(name="sgd", learning_rate=1.0)),
        schedule=NoCheckpoint(),
        reduction=reduction,
        temperature=0.7,
        microbatch_tokens=1000,
    )


def flat(gradients) -> torch.Tensor:
    return torch.cat([gradients[name].flatten() for name in sorted(gradients)])


def gradient(learner: ActorUpdate, responses) -> torch.Tensor:
    learner.backward(responses)
    found = flat(learner.optimizer.gradients()).clone()
    learner.optimizer.clear()
    return found


def prompt_groups(count: int, lengths: tuple[int, ...]) -> list[list[TrainingResponse]]:
    return [ragged_responses(seed=seed, lengths=lengths) for seed in range(count)]


@pytest.mark.parametrize("reduction", ["token_mean", "response_mean"])
def test_with_equal_counts_it_is_the_standard_error_of_the_mean(reduction: str):
    groups, learner = prompt_groups(4, (2, 3)), make_learner(reduction)
    spread = gradient_spread(learner, groups)
    rows = torch.stack([gradient(learner, group) for group in groups])
    mean = rows.mean(0)
    assert torch.allclose(flat(spread.gradients), mean, rtol=0, atol=1e-12)
    assert torch.allclose(mean, gradient(learner, [r for group in groups for r in group]), rtol=0, atol=1e-12)
    expected = math.sqrt(float((rows - mean).square().sum()) / 3 / 4)
    assert spread.standard_deviation == pytest.approx(expected, rel=1e-10)
    assert spread.norm == pytest.approx(float(mean.norm()))
    assert spread.prompt_groups == 4


@pytest.mark.parametrize("reduction", ["token_mean", "response_mean"])
def test_it_is_what_a_bootstrap_finds(reduction: str):
    """Groups drawn anew 4,000 times, the step's gradient of each computed with its own denominators."""
    groups = [ragged_responses(seed=s, lengths=(1 + s % 3, 2 + s % 5)[: 1 + (s > 3)]) for s in range(12)]
    learner = make_learner(reduction)
    spread = gradient_spread(learner, groups)
    counts = torch.tensor([logical_count([r.trained for r in g], reduction) for g in groups], dtype=torch.float64)
    rows = torch.stack([gradient(learner, group) for group in groups]) * counts[:, None]
    drawn = torch.randint(12, (4000, 12), generator=torch.Generator().manual_seed(0))
    times = torch.nn.functional.one_hot(drawn, 12).sum(1).double()  # how often each group was drawn
    again = (times / (times @ counts)[:, None]) @ rows
    found = math.sqrt(float((again - again.mean(0)).square().sum(1).mean()) * 12 / 11)
    assert spread.standard_deviation == pytest.approx(found, rel=0.05)
    whole = gradient(learner, [r for group in groups for r in group])
    assert torch.allclose(flat(spread.gradients), whole, rtol=0, atol=1e-12)


def test_groups_without_a_trained_token_do_not_count():
    groups, learner = prompt_groups(2, (2, 3)), make_learner("token_mean")
    expected = gradient_spread(learner, groups)
    found = gradient_spread(
        learner, [*groups, [TrainingResponse([1], [2], 1.0, [False])], [TrainingResponse([1], [], 1.0)]]
    )
    assert (found.standard_deviation, found.prompt_groups) == (expected.standard_deviation, 2)
    alone = gradient_spread(learner, groups[:1])
    assert math.isnan(alone.standard_deviation)
    assert all(parameter.grad is None for parameter in learner.model.parameters())


@pytest.mark.parametrize("reduction", ["token_mean", "response_mean"])
def test_counts_are_the_denominators_of_the_weights(reduction: str):
    masks = [[True, False, True], [], [False], [True]]
    weights = logical_weights(masks, reduction)
    count = logical_count(masks, reduction)
    assert count == (3 if reduction == "token_mean" else 2)
    assert float(weights[3][0]) == pytest.approx(1 / count)
