"""How far the learner's policy is from the one that sampled, token by token.

Names are verl's (`rollout_corr/*`) and slime's (`train_rollout_logprob_abs_diff`); p99, F_2 and the maximum of the
latter are ours.
"""

import math

import torch
from torch import Tensor

LOG_RATIO_LIMIT = 20.0
"""Log-ratios are clamped to this before they are exponentiated, as in verl."""


def mismatch(learner: Tensor, rollout: Tensor, mask: Tensor) -> dict[str, float]:
    """The figures over all tokens where `mask` is true, with x = learner - rollout and the ratio e^x.

    rollout_corr/kl: mean of -x, the estimator k1 of KL(rollout || learner).
    rollout_corr/k3_kl: mean of e^x - 1 - x.
    train_rollout_logprob_abs_diff, .._max: mean and maximum of |x|.
    rollout_corr/rollout_is_mean, _max, _p99: of the ratio; p99 is the least ratio that 99 % of tokens do not exceed.
    rollout_corr/F_2: the share of tokens of which one policy's probability is more than twice the other's.
    rollout_corr/rollout_is_eff_sample_size: (sum of ratios)^2 / (n * sum of squared ratios), 1 at no mismatch.

    Args:
        learner: log-probs of the sampled tokens, any shape.
        rollout: those under the distribution that they were drawn from, as recorded; the same shape.
        mask: bool, the same shape.

    Returns:
        The figures by name, computed in fp64; none where the mask is empty.
    """
    difference = learner.detach().double()[mask] - rollout.detach().double()[mask]
    if not len(difference):
        return {}
    ratio = difference.clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT).exp()
    return {
        "rollout_corr/kl": float(-difference.mean()),
        "rollout_corr/k3_kl": float(k3(difference).mean()),
        "train_rollout_logprob_abs_diff": float(difference.abs().mean()),
        "train_rollout_logprob_abs_diff_max": float(difference.abs().max()),
        "rollout_corr/rollout_is_mean": float(ratio.mean()),
        "rollout_corr/rollout_is_max": float(ratio.max()),
        "rollout_corr/rollout_is_p99": percentile(ratio, 99),
        "rollout_corr/F_2": float((difference.abs() > math.log(2)).double().mean()),
        "rollout_corr/rollout_is_eff_sample_size": float(ratio.sum() ** 2 / (len(ratio) * ratio.square().sum())),
    }


def k3(difference: Tensor) -> Tensor:
    """e^x - 1 - x for log p - log q of samples of q: an unbiased, non-negative estimator of KL(q || p).

    (Schulman, "Approximating KL divergence", 2020.) Clamped as verl's `low_var_kl`: x to +-20, the result to 10.
    """
    x = difference.clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT)
    return (torch.expm1(x) - x).clamp(min=0.0, max=10.0)


def percentile(values: Tensor, percent: float) -> float:
    """The least of the values [N], N at least 1, that `percent` per cent of them do not exceed (nearest rank)."""
    rank = math.ceil(percent / 100 * len(values))
    return float(values.sort().values[max(rank, 1) - 1])
