"""The RLTT objective (arXiv 2602.10520): every loop's prediction of a sampled token gets credit for the reward."""

from dataclasses import dataclass

import torch
from torch import Tensor

from scalerlt.learner.grpo import kl_penalty, kl_statistics
from scalerlt.learner.objective import SampledTokens


@dataclass(frozen=True, kw_only=True)
class Rltt:
    """sum of w_t * [-A * sum over r of c_r * log p^(r) + kl_coef * k3]: no ratio, nothing is clipped.

    p^(r) is read out after loop r; c_r is proportional to r^alpha and sums to 1; the KL divergence to the frozen
    reference policy is that of the last loop.

    Attributes:
        alpha: 0 gives every loop the same credit, more favours later loops.
        kl_coef: of the KL divergence, estimated by k3; at 0 no reference is needed.
    """

    alpha: float
    kl_coef: float
    all_loops: bool = True

    def loss(self, tokens: SampledTokens) -> Tensor:
        """The micro-batch's part of the step's loss, a scalar.

        Raises:
            ValueError: kl_coef is above 0 and the tokens lack the reference policy's log-probs.
        """
        logprobs = torch.where(tokens.weights != 0, tokens.logprobs, 0.0)
        credited = torch.tensordot(self.credit(len(logprobs)).to(logprobs), logprobs, 1)
        loss = -(tokens.weights * tokens.advantages * credited).sum()
        return loss + kl_penalty(tokens, logprobs[-1], self.kl_coef)

    def statistics(self, tokens: SampledTokens) -> dict[str, float]:
        """pg_loss, mean log-prob and credit of each loop (from 1), and k3 to the reference where there is one."""
        credit = self.credit(len(tokens.logprobs)).to(tokens.logprobs)
        means = tokens.logprobs.mean(-1).tolist()
        return {
            "pg_loss": float(-(tokens.weights * tokens.advantages * torch.tensordot(credit, tokens.logprobs, 1)).sum()),
            **{f"rltt/loop_{loop}_log_prob": mean for loop, mean in enumerate(means, start=1)},
            **{f"rltt/loop_{loop}_weight": weight for loop, weight in enumerate(credit.tolist(), start=1)},
            **kl_statistics(tokens, tokens.logprobs[-1]),
        }

    def credit(self, loops: int) -> Tensor:
        """c_1 .. c_K, [K] fp64."""
        powers = torch.arange(1, loops + 1, dtype=torch.float64) ** self.alpha
        return powers / powers.sum()
