from dataclasses import replace

import pytest
import torch
from experiments.actor_cells import WrongGradient
from learner.plain_learner import ragged_responses
from models.small import SMALL

from scalerlt.learner.checkpoint import LoopCheckpoint, NoCheckpoint
from scalerlt.learner.comparison import (
    TWO_UPDATES,
    Tolerances,
    learn_twice,
    parameter_group,
    schedule_errors,
)
from scalerlt.learner.optimizer import ActorOptimizer, freeze_exit_gate
from scalerlt.learner.step import ActorUpdate
from scalerlt.measure.gradients import Tolerance
from scalerlt.models.checkpoint import build

TOLERANCES = Tolerances(
    gradient=Tolerance(1e-5, 8e-5), parameter_change=Tolerance(2e-6, 8e-5), moments=Tolerance(1e-6, 8e-5)
)
MINIBATCHES = [ragged_responses(seed=1, lengths=(1, 7, 2)), ragged_responses(seed=2, lengths=(4, 1))]


def gentle_model(dtype: torch.dtype = torch.float64):
    """Small weights: rounding errors stay of the size of the format's."""
    return build(replace(SMALL, initializer_range=0.1), dtype=dtype, device="cpu", seed=5)


def make_learner(model, schedule) -> ActorUpdate:
    freeze_exit_gate(model)
    return ActorUpdate(
        model,
        ActorOptimizer(model, TWO_UPDATES),
        schedule=schedule,
        reduction="response_mean",
        temperature=1.0,
        microbatch_tokens=16,
    )


def errors(schedule, dtype: torch.dtype):
    under_schedule = learn_twice(make_learner(gentle_model(dtype), schedule), MINIBATCHES)
    without = learn_twice(make_learner(gentle_model(dtype), NoCheckpoint()), MINIBATCHES)
    wide = make_learner(gentle_model(dtype).to(torch.float64), NoCheckpoint())
    return under_schedule, schedule_errors(under_schedule, without, learn_twice(wide, MINIBATCHES), TOLERANCES)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_a_right_schedule_has_no_error_and_that_of_rounding_is_the_floor(dtype: torch.dtype):
    learning, found = errors(LoopCheckpoint(), dtype)
    assert found.loss_abs == 0
    for figures in (found.gradient.total, found.parameter_change, found.exp_avg, found.exp_avg_sq):
        assert (figures.mismatches, figures.elementwise, figures.relative_l2) == (0, 0.0, 0.0)
        assert figures.elements > 0
    assert found.rounding == found.rounding_floor
    assert found.change_rounding == found.change_rounding_floor
    assert (found.change_rounding.relative_l2 > 1e-7) == (dtype != torch.float64)
    expected = {torch.float64: (0.0, 1e-15), torch.float32: (1e-8, 1e-5), torch.bfloat16: (1e-3, 0.5)}[dtype]
    assert expected[0] <= found.rounding.total.relative_l2 < expected[1]
    assert all(norm > 0 for norm in learning.grad_norms)
    assert found.update_norm > 1e-3


def test_a_wrong_schedule_fails_every_gate():
    _, found = errors(WrongGradient(), torch.float32)
    assert found.loss_abs == 0
    assert found.gradient.total.elementwise > 1
    assert found.gradient.total.relative_l2 > 0.1
    assert found.gradient.groups["head"].mismatches == 0  # outside the loops, so right
    assert found.gradient.groups["embedding"].relative_l2 > 0.5
    assert found.rounding.total.relative_l2 > 100 * found.rounding_floor.total.relative_l2
    for figures in (found.parameter_change, found.exp_avg, found.exp_avg_sq):
        assert figures.elementwise > 1


def test_two_updates_use_two_minibatches_or_one_twice():
    both = learn_twice(make_learner(gentle_model(), NoCheckpoint()), MINIBATCHES)
    one = learn_twice(make_learner(gentle_model(), NoCheckpoint()), MINIBATCHES[:1])
    assert both.loss == one.loss
    assert both.grad_norms[0] == one.grad_norms[0]
    assert both.grad_norms[1] != one.grad_norms[1]
    learner = make_learner(gentle_model(), NoCheckpoint())
    for minibatch in MINIBATCHES:
        learner.step(minibatch)
    initial = dict(gentle_model().named_parameters())
    for name, master in learner.optimizer.masters.items():
        assert torch.equal(both.changes[name], master.detach() - initial[name].detach())


def test_the_changes_of_bf16_are_those_of_its_masters():
    learning = learn_twice(make_learner(gentle_model(torch.bfloat16), NoCheckpoint()), MINIBATCHES)
    assert {change.dtype for change in learning.changes.values()} == {torch.float32}
    assert {gradient.dtype for gradient in learning.gradients.values()} == {torch.float32}


def test_every_tensor_of_the_model_has_its_group():
    groups: dict[str, list[str]] = {}
    for name in SMALL.tensor_shapes():
        groups.setdefault(parameter_group(name), []).append(name)
    counts = {group: len(names) for group, names in groups.items()}
    layers = SMALL.num_hidden_layers
    assert counts == {
        "embedding": 1,
        "attention": 4 * layers,
        "mlp": 3 * layers,
        "norm": 4 * layers + 1,
        "exit_gate": 2,
        "head": 1,
    }
