"""Corrections for the difference between the policy that sampled and the learner's policy before its first update.

The weights of the two are the same, or, where the rollout lags behind, the learner's are newer. Of a sampled token
x = log p_old - log p_rollout, and e^x is its ratio; of a response the product of its trained tokens' ratios, or their
geometric mean. A correction gives every trained token a factor, a constant, by which its part of the surrogate is
multiplied; logical weights and KL penalty stay as they are, so that the loss of what is left out is zero and not
spread over the rest.

Names are the field's: TIS and sequence-level variants of verl's `rollout_correction` and slime's `--use-tis`; IcePop.
"""

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from scalerlt.learner.mismatch import LOG_RATIO_LIMIT


class Correction(Protocol):
    """A way to correct."""

    def factors(self, difference: Tensor, mask: Tensor) -> Tensor:
        """A factor for every token, [B, T], zero at what is left out.

        Args:
            difference: x, [B, T], zero where no token is trained.
            mask: [B, T] bool, true where a token is trained.
        """


@dataclass(frozen=True, kw_only=True)
class TruncatedImportance:
    """`correction=tis`: the ratio, at most `threshold`, of each token or of its response."""

    threshold: float
    level: str

    def factors(self, difference: Tensor, mask: Tensor) -> Tensor:
        """As in `Correction`."""
        log_ratio = difference if self.level == "token" else _of_response(difference, mask)
        return torch.where(mask, _ratio(log_ratio).clamp(max=self.threshold), 0.0)


@dataclass(frozen=True, kw_only=True)
class IcePop:
    """`correction=icepop`: the token's ratio between `low` and `high`, and nothing outside."""

    low: float
    high: float

    def factors(self, difference: Tensor, mask: Tensor) -> Tensor:
        """As in `Correction`."""
        ratio = _ratio(difference)
        return torch.where(mask & _between(ratio, self.low, self.high), ratio, 0.0)


@dataclass(frozen=True, kw_only=True)
class MaskedImportance:
    """`correction=mis`: the response's ratio between `low` and `high`, and nothing of a response outside."""

    low: float
    high: float

    def factors(self, difference: Tensor, mask: Tensor) -> Tensor:
        """As in `Correction`."""
        ratio = _ratio(_of_response(difference, mask))
        return torch.where(mask & _between(ratio, self.low, self.high), ratio, 0.0)


@dataclass(frozen=True, kw_only=True)
class Rejection:
    """`correction=seq_rs` and `geo_rs`: one for responses whose ratio, the product of their tokens' or its geometric
    mean, is between `low` and `high`, and nothing of the others."""

    low: float
    high: float
    mean: bool

    def factors(self, difference: Tensor, mask: Tensor) -> Tensor:
        """As in `Correction`."""
        ratio = _ratio(_of_response(difference, mask, mean=self.mean))
        return (mask & _between(ratio, self.low, self.high)).to(difference.dtype)


def correction_factors(correction: Correction, old: Tensor, rollout: Tensor, mask: Tensor) -> Tensor:
    """The factors [B, T] of a correction, without gradient.

    Args:
        correction: which.
        old, rollout: log-probs of the sampled tokens, [B, T].
        mask: [B, T] bool, true where a token is trained.
    """
    with torch.no_grad():
        return correction.factors(torch.where(mask, old - rollout, 0.0), mask)


def correction_statistics(factors: Tensor, difference: Tensor) -> dict[str, float]:
    """Over trained tokens, [N] both: the share that is kept, its complement, and of the factors mean, maximum and the
    share that is below the token's own ratio because it was truncated."""
    kept = factors > 0
    return {
        "rollout_corr/kept_share": float(kept.double().mean()),
        "rollout_corr/rollout_rs_masked_fraction": float((~kept).double().mean()),
        "rollout_corr/factor_mean": float(factors.mean()),
        "rollout_corr/factor_max": float(factors.max()),
        "tis_clipfrac": float((kept & (factors < _ratio(difference) * (1 - 1e-9))).double().mean()),
    }


def _of_response(difference: Tensor, mask: Tensor, *, mean: bool = False) -> Tensor:
    """The sum, or the mean, over the trained tokens of each response, [B, 1]."""
    total = difference.sum(-1, keepdim=True)
    return total / mask.sum(-1, keepdim=True).clamp(min=1) if mean else total


def _ratio(log_ratio: Tensor) -> Tensor:
    return log_ratio.clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT).exp()


def _between(ratio: Tensor, low: float, high: float) -> Tensor:
    return (ratio >= low) & (ratio <= high)
