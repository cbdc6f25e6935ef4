"""What an objective is, its reductions, and the plain policy gradient.

The weights of all tokens of an optimizer step are fixed over the whole step, before it is split into micro-batches,
whose losses are then summed and never averaged: the gradient cannot depend on the split.
"""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Literal, Protocol

import torch
from torch import Tensor

Reduction = Literal["token_mean", "response_mean"]


@dataclass(frozen=True, kw_only=True)
class SampledTokens:
    """Response tokens with all that a loss may be made of; None: not given.

    Attributes:
        logprobs: [B, T] of the learner, or [K, B, T] after every loop. The only tensor with a gradient.
        weights: [B, T] logical weights, zero at padding and where a token is not trained; whatever else stands at such
            places, minus infinity included, may have no influence.
        advantages: [B, 1].
        rollout_logprobs: [B, T] under the distribution that the tokens were drawn from.
        old_logprobs: [B, T] that ratios are taken against.
        ref_logprobs: [B, T] of the frozen reference policy.
        exit_distribution: [K, B, T] of the position that predicts each token, without gradient.
        factors: [B, T] of the correction, constants; None: 1.
    """

    logprobs: Tensor
    weights: Tensor
    advantages: Tensor
    rollout_logprobs: Tensor | None = None
    old_logprobs: Tensor | None = None
    ref_logprobs: Tensor | None = None
    exit_distribution: Tensor | None = None
    factors: Tensor | None = None

    def trained(self) -> "SampledTokens":
        """The N tokens with a weight alone, without gradient and in fp64: [N], log-probs [N] or [K, N]."""
        mask = self.weights != 0

        def pick(tensor: Tensor | None) -> Tensor | None:
            return (
                None if tensor is None else tensor.detach().expand(*tensor.shape[:-2], *mask.shape)[..., mask].double()
            )

        return SampledTokens(**{field.name: pick(getattr(self, field.name)) for field in fields(self)})  # type: ignore[arg-type]

    @staticmethod
    def joined(parts: Sequence["SampledTokens"]) -> "SampledTokens":
        """The tokens of all micro-batches of a step, each as `trained` gives it; at least one."""
        columns = {field.name: [getattr(part, field.name) for part in parts] for field in fields(SampledTokens)}
        return SampledTokens(
            **{name: None if None in column else torch.cat(column, -1) for name, column in columns.items()}  # type: ignore[arg-type]
        )


class Objective(Protocol):
    """What a learner step minimises: a sum over tokens, so that it does not matter how they are split."""

    @property
    def all_loops(self) -> bool:
        """Whether it wants the log-probs after every loop."""

    @property
    def exits(self) -> bool:
        """Whether it wants the exit distribution beside them."""

    def loss(self, tokens: SampledTokens) -> Tensor:
        """The micro-batch's part of the step's loss, a scalar."""

    def statistics(self, tokens: SampledTokens) -> dict[str, float]:
        """Figures over all trained tokens of the step, by the field's names; tokens as `trained` gives them."""


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


def logical_count(trained: Sequence[Sequence[bool]], reduction: Reduction) -> int:
    """What `logical_weights` divides by: trained tokens, or responses with at least one."""
    return sum(sum(mask) if reduction == "token_mean" else any(mask) for mask in trained)


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
