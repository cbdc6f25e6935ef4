"""Two errors of a gradient that its arithmetic does not explain: what it is aimed at, and how few rollouts it is from.

`grad_bias`: the estimator's gradient against that of the policy that generated, which is the policy gradient through
the whole replay. `grad_sd`: its standard deviation over other rollouts that could have been drawn.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from scalerlt.learner.batching import TrainingResponse
from scalerlt.learner.comparison import first_gradient
from scalerlt.learner.objective import logical_count
from scalerlt.learner.step import ActorUpdate
from scalerlt.measure.gradients import norm


@dataclass(frozen=True, kw_only=True)
class GradientSpread:
    """The gradient over all prompt groups, and how far it would move with others.

    Attributes:
        gradients: of one step over all groups.
        norm: their Euclidean norm.
        standard_deviation: square root of the expected squared distance of the gradient to its mean; NaN for fewer than
            two prompt groups with a trained token.
        prompt_groups: how many have one.
    """

    gradients: dict[str, Tensor]
    norm: float
    standard_deviation: float
    prompt_groups: int


def gradient_spread(learner: ActorUpdate, prompt_groups: Sequence[Sequence[TrainingResponse]]) -> GradientSpread:
    """The bootstrap over prompt groups to first order, in closed form, without random numbers.

    The step's gradient is the ratio g = sum c_j g_j / sum c_j over J prompt groups, g_j a group's own gradient and c_j
    its count of tokens or responses, whichever the reduction divides by. Drawing J groups anew, with replacement,
    moves it with variance sum c_j^2 |g_j - g|^2 / (sum c_j)^2 to first order; J / (J - 1) takes the bias out.

    Args:
        learner: holds no gradient, and none afterwards; its weights stay. Meant to be fp64: sums of squares are taken.
        prompt_groups: responses of one prompt each, all of which are drawn together.
    """
    total = dict[str, Tensor]()  # sum of c_j g_j
    squared = dict[str, Tensor]()  # sum of c_j^2 g_j
    norms = counts = counts_squared = 0.0
    used = 0
    for responses in prompt_groups:
        count = logical_count([response.trained for response in responses], learner.reduction)
        if not count:
            continue
        used += 1
        _, gradients = first_gradient(learner, responses)
        norms += count**2 * norm(gradients) ** 2
        counts, counts_squared = counts + count, counts_squared + count**2
        for name, gradient in gradients.items():
            if gradient is not None:
                total.setdefault(name, torch.zeros_like(gradient)).add_(gradient, alpha=count)
                squared.setdefault(name, torch.zeros_like(gradient)).add_(gradient, alpha=count**2)
        learner.optimizer.clear()
    mean = {name: gradient / counts for name, gradient in total.items()}
    scatter = norms - 2 * _dot(squared, mean) + counts_squared * norm(mean) ** 2
    variance = max(scatter, 0.0) / counts**2 * used / (used - 1) if used > 1 else math.nan
    return GradientSpread(gradients=mean, norm=norm(mean), standard_deviation=math.sqrt(variance), prompt_groups=used)


def _dot(a: dict[str, Tensor], b: dict[str, Tensor]) -> float:
    return sum(float(a[name].double().flatten().dot(b[name].double().flatten())) for name in a)
