"""The RLTT objective (arXiv 2602.10520): every loop's prediction of a sampled token gets credit for the reward."""

from dataclasses import dataclass

import torch
from torch import Tensor

from scalerlt.learner.grpo import kl_penalty, kl_statistics
from scalerlt.learner.objective import SampledTokens


@dataclass(frozen=True, kw_only=True)
class Rltt:
    """sum of w_t * [-A * sum over r of c_r * log p^(r) + kl_coef * k3]: no ratio, nothing is clipped.

    p^(r) is read out after loop r; c_r is proportional to r^alpha and sums to 1, or is the exit distribution of the
    position that predicts the token, through which no gradient flows; the KL divergence to the frozen reference policy
    is that of the last loop.

    Attributes:
        alpha: 0 gives every loop the same credit, more favours later loops; None: the exit distribution gives it.
        kl_coef: of the KL divergence, estimated by k3; at 0 no reference is needed.
    """

    alpha: float | None
    kl_coef: float
    all_loops: bool = True

    @property
    def exits(self) -> bool:
        """Whether the exit distribution is wanted."""
        return self.alpha is None

    def loss(self, tokens: SampledTokens) -> Tensor:
        """The micro-batch's part of the step's loss, a scalar.

        Raises:
            ValueError: kl_coef is above 0 and the tokens lack the reference policy's log-probs, or the exit
                distribution is wanted and they lack it.
        """
        logprobs = torch.where(tokens.weights != 0, tokens.logprobs, 0.0)
        loss = -(tokens.weights * tokens.advantages * (self.credit(tokens) * logprobs).sum(0)).sum()
        return loss + kl_penalty(tokens, logprobs[-1], self.kl_coef)

    def statistics(self, tokens: SampledTokens) -> dict[str, float]:
        """pg_loss, mean log-prob and mean credit of each loop (from 1), and k3 to the reference where there is one."""
        credit = self.credit(tokens)
        means, weights = tokens.logprobs.mean(-1).tolist(), credit.mean(-1).tolist()
        return {
            "pg_loss": float(-(tokens.weights * tokens.advantages * (credit * tokens.logprobs).sum(0)).sum()),
            **{f"rltt/loop_{loop}_log_prob": mean for loop, mean in enumerate(means, start=1)},
            **{f"rltt/loop_{loop}_weight": weight for loop, weight in enumerate(weights, start=1)},
            **kl_statistics(tokens, tokens.logprobs[-1]),
        }

    def credit(self, tokens: SampledTokens) -> Tensor:
        """c_1 .. c_K of each token, of the log-probs' number of dimensions."""
        if self.alpha is None:
            if tokens.exit_distribution is None:
                raise ValueError("credit by the exit distribution, and the tokens have none")
            return tokens.exit_distribution.detach()
        powers = torch.arange(1, len(tokens.logprobs) + 1, dtype=torch.float64) ** self.alpha
        return (powers / powers.sum()).to(tokens.logprobs).reshape(-1, *(1,) * (tokens.logprobs.dim() - 1))
