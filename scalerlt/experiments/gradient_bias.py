"""What a learner's gradient is aimed at: against that of the policy that generated, and its spread over rollouts."""

import copy
from collections.abc import Sequence

import torch

from scalerlt.experiments.building import build_learner
from scalerlt.learner.batching import TrainingResponse
from scalerlt.learner.bias import GradientSpread, gradient_spread
from scalerlt.learner.checkpoint import NoCheckpoint
from scalerlt.learner.comparison import TWO_UPDATES, first_gradient, parameter_group
from scalerlt.learner.readout import FULL
from scalerlt.learner.step import ActorUpdate, PolicyGradient
from scalerlt.measure.gradients import ErrorReport, compare
from scalerlt.models.ouro import OuroForCausalLM
from scalerlt.schema import Cell


def compare_policy(
    cell: Cell,
    fp64: ActorUpdate,
    prompt_groups: Sequence[Sequence[TrainingResponse]],
    generated: OuroForCausalLM | None = None,
) -> tuple[GradientSpread, ErrorReport | None]:
    """The spread of the fp64 estimator's gradient, and its error against that of the policy that generated, which is
    the policy gradient through the whole replay; None where the two are the same formula.

    Args:
        cell: whose estimator it is.
        fp64: the estimator; it holds no gradient.
        prompt_groups: the rollouts.
        generated: the weights that generated them, in fp64; None: the estimator's.
    """
    responses = [response for group in prompt_groups for response in group]
    full = cell.model.total_ut_steps
    dense = all(depth == full for response in responses for depth in response.exit_depths or ())
    if dense and cell.algorithm.name == "policy_gradient" and generated is None:
        # Of a single prompt group nothing is resampled, and a gradient in fp64 is what takes longest in a cell.
        return gradient_spread(fp64, prompt_groups if len(prompt_groups) > 1 else []), None
    spread = gradient_spread(fp64, prompt_groups)
    on_policy = build_learner(
        cell,
        generated or fp64.model,
        schedule=NoCheckpoint(),
        settings=TWO_UPDATES,
        objective=PolicyGradient(),
        logprob="replay",
        readout=FULL,
    )
    _, gradients = first_gradient(on_policy, responses)
    return spread, compare(spread.gradients, gradients, group=parameter_group)


def bias_of_step(
    cell: Cell,
    model: OuroForCausalLM,
    served: OuroForCausalLM,
    prompt_groups: Sequence[Sequence[TrainingResponse]],
) -> dict[str, float]:
    """`grad_bias` and `grad_sd` of the estimator at the weights of `model` over a rollout batch that `served`, older or
    rounded as it may be, generated; what would be relative to a gradient of zero is left out."""
    wide, generated = (copy.deepcopy(one).requires_grad_().to(torch.float64) for one in (model, served))
    fp64 = build_learner(cell, wide, schedule=NoCheckpoint(), settings=TWO_UPDATES, readout=FULL)
    spread, bias = compare_policy(cell, fp64, prompt_groups, generated)
    error, cosine = (0.0, 1.0) if bias is None else (bias.total.relative_l2, bias.total.cosine)
    if spread.norm == 0:
        return {"grad_bias_relative_l2": error, "grad_bias_cosine": cosine} if error else {}
    figures = {"grad_bias_relative_l2": error, "grad_bias_cosine": cosine}
    if spread.prompt_groups > 1:
        figures["grad_sd_relative"] = spread.standard_deviation / spread.norm
    return figures
