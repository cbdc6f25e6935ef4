"""The policy-gradient objective and its reductions.

The weights of all tokens of an optimizer step are fixed over the whole step, before it is split into micro-batches,
whose losses are then summed and never averaged: the gradient cannot depend on the split.
"""

from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor

Reduction = Literal["token_mean", "response_mean"]


def logical_weights(trained: Sequence[Sequence[bool]], reduction: Reduction) -> list[Tensor]:
    """The weight w_t of each response token of one optimizer step.

    With m_t = 1 where a token is trained, else 0:
    token_mean: m_t / (sum of m over the step).
    response_mean: m_t / (N * sum of m over the response), N the responses with at least one trained token.

    Args:
        trained: m of every response of the step; empty responses and all-zero ones are allowed.
        reduction: which of the two.

    Returns:
        fp64 weights, one tensor [T_i] per response. They sum to 1, or are all zero when nothing is trained.
    """
    masks = [torch.tensor(list(mask), dtype=torch.float64) for mask in trained]
    counts = [float(mask.sum()) for mask in masks]
    if reduction == "token_mean":
        step_tokens = sum(counts)
        return [mask / step_tokens if count else mask for mask, count in zip(masks, counts, strict=True)]
    if reduction == "response_mean":
        nonempty = sum(count > 0 for count in counts)
        return [mask / (nonempty * count) if count else mask for mask, count in zip(masks, counts, strict=True)]
    raise ValueError(f"reduction {reduction!r} is neither token_mean nor response_mean")


def policy_gradient_loss(logprobs: Tensor, weights: Tensor, advantages: Tensor) -> Tensor:
    """-sum of w_t * A * log p(y_t): its gradient is that of REINFORCE (Williams, 1992) with fixed advantages.

    Args:
        logprobs: [B, T].
        weights: [B, T] logical weights, zero at padding and where a token is not trained; what log p is there, minus
            infinity included, has no influence.
        advantages: [B].

    Returns:
        The micro-batch's part of the step's loss, a scalar.
    """
    trained = torch.where(weights != 0, logprobs, torch.zeros_like(logprobs))
    return -(weights * advantages[:, None] * trained).sum()
