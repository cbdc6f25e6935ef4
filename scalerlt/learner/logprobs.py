"""Log-probabilities of sampled tokens under the learner's policy."""

from typing import Protocol

import torch
from torch import Tensor

from scalerlt.learner.batching import PaddedBatch
from scalerlt.models.ouro import Schedule
from scalerlt.numerics.precision import internal_dtype


class LoopedModel(Protocol):
    """What the learner asks of a model."""

    @property
    def device(self) -> torch.device:
        """Where its parameters are."""

    def __call__(self, input_ids: Tensor, *, schedule: Schedule | None = None) -> list[Tensor]:
        """Token ids [B, S] to the hidden states of every loop, each [B, S, H], the last loop's last."""

    def logits(self, h: Tensor) -> Tensor:
        """Hidden states [..., H] to next-token logits [..., V]."""


def dense_logprobs(
    model: LoopedModel, batch: PaddedBatch, *, temperature: float, schedule: Schedule | None = None
) -> Tensor:
    """`logprob=dense`: every token at full depth, in one teacher-forced causal pass.

    Read out after the last loop, at the positions that predict response tokens only.

    Args:
        model: the policy.
        batch: what it sampled; padding has no influence.
        temperature: of the sampling, above 0: the distribution is softmax(logits / temperature) over the whole
            vocabulary. (Dividing log-probs instead would leave it unnormalised.)
        schedule: activation checkpointing; None: none.

    Returns:
        [B, T] in the internal dtype, zero where there is no response token.
    """
    if temperature <= 0:
        raise ValueError(f"temperature {temperature}: greedy sampling has no distribution to learn from")
    last = model(batch.input_ids, schedule=schedule)[-1]
    logits = model.logits(last.flatten(0, 1)[batch.predictors])
    logprobs = torch.log_softmax(logits.to(internal_dtype(logits.dtype)) / temperature, dim=-1)
    sampled = logprobs.gather(-1, batch.targets[:, None]).squeeze(-1)
    return sampled.new_zeros(batch.response_mask.shape).masked_scatter(batch.response_mask, sampled)
