"""The GRPO objective (arXiv 2402.03300): PPO's clipped ratios with advantages of prompt groups, and a KL penalty."""

from dataclasses import dataclass

import torch
from torch import Tensor

from scalerlt.learner.mismatch import LOG_RATIO_LIMIT, k3, percentile
from scalerlt.learner.objective import SampledTokens


@dataclass(frozen=True, kw_only=True)
class Grpo:
    """sum of w_t * [-f_t min(rho A, clip(rho, 1 - clip_low, 1 + clip_high) A) + kl_coef * k3], rho = p / p_old, f_t the
    factor of the correction, else 1.

    Attributes:
        clip_low, clip_high: of the ratio (PPO, arXiv 1707.06347; a clip_high above clip_low: DAPO, arXiv 2503.14476).
        kl_coef: of the KL divergence to the frozen reference policy, estimated by k3; at 0 none is needed.
    """

    clip_low: float
    clip_high: float
    kl_coef: float
    all_loops: bool = False
    exits: bool = False

    def loss(self, tokens: SampledTokens) -> Tensor:
        """The micro-batch's part of the step's loss, a scalar.

        Raises:
            ValueError: the tokens lack old log-probs, or those of the reference policy for a kl_coef above 0.
        """
        mask = tokens.weights != 0
        logprobs = torch.where(mask, tokens.logprobs, 0.0)
        old = torch.where(mask, _required(tokens.old_logprobs, "old log-probs of every response"), 0.0)
        loss = (_corrected(tokens) * self._surrogate(logprobs, old, tokens.advantages)[0]).sum()
        return loss + kl_penalty(tokens, logprobs, self.kl_coef)

    def statistics(self, tokens: SampledTokens) -> dict[str, float]:
        """pg_loss, the share of clipped tokens, k1 to the old policy, the ratio's mean, maximum, 99th percentile and
        farthest distance from 1, and the mean k3 to the reference where there is one."""
        old = _required(tokens.old_logprobs, "old log-probs of every response")
        surrogate, ratio, clipped = self._surrogate(tokens.logprobs, old, tokens.advantages)
        return {
            "pg_loss": float((_corrected(tokens) * surrogate).sum()),
            "actor/pg_clipfrac": float(clipped.double().mean()),
            "actor/ppo_kl": float((old - tokens.logprobs).mean()),
            "actor/ratio_mean": float(ratio.mean()),
            "actor/ratio_max": float(ratio.max()),
            "actor/ratio_p99": percentile(ratio, 99),
            "actor/ratio_deviation_max": float((ratio - 1).abs().max()),
            **kl_statistics(tokens, tokens.logprobs),
        }

    def _surrogate(self, logprobs: Tensor, old: Tensor, advantages: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Of each token: -min(rho A, clip(rho) A), rho, and whether the clipped one is the smaller."""
        ratio = (logprobs - old).clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT).exp()
        free = -advantages * ratio
        clipped = -advantages * ratio.clamp(1 - self.clip_low, 1 + self.clip_high)
        return torch.maximum(free, clipped), ratio, clipped > free


def kl_penalty(tokens: SampledTokens, logprobs: Tensor, coefficient: float) -> Tensor:
    """coefficient * sum of w_t * k3 of log p_ref - log p; `logprobs` are finite where a token has no weight.

    Raises:
        ValueError: the coefficient is above 0 and the tokens lack the reference policy's log-probs.
    """
    if not coefficient:
        return logprobs.new_zeros(())
    ref = _required(tokens.ref_logprobs, f"the reference policy's log-probs, as kl_coef is {coefficient:g}")
    return coefficient * (tokens.weights * k3(torch.where(tokens.weights != 0, ref, 0.0) - logprobs)).sum()


def kl_statistics(tokens: SampledTokens, logprobs: Tensor) -> dict[str, float]:
    """The weighted mean k3 to the reference policy, if there is one; its coefficient is not part of it."""
    if tokens.ref_logprobs is None:
        return {}
    return {"actor/kl_loss": float((tokens.weights * k3(tokens.ref_logprobs - logprobs)).sum())}


def _corrected(tokens: SampledTokens) -> Tensor:
    return tokens.weights if tokens.factors is None else tokens.weights * tokens.factors


def _required(values: Tensor | None, what: str) -> Tensor:
    if values is None:
        raise ValueError(f"the objective needs {what}")
    return values
