"""One learner step: forward, loss and backward of each micro-batch, then the optimizer."""

import math
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from scalerlt.learner.batching import TrainingResponse, microbatches, pad
from scalerlt.learner.logprobs import LoopedModel, dense_logprobs
from scalerlt.learner.objective import Reduction, logical_weights, policy_gradient_loss
from scalerlt.learner.optimizer import ActorOptimizer
from scalerlt.models.ouro import Schedule

OnPhase = Callable[[str], AbstractContextManager[None]]
"""Makes the context in which the phase of this name runs: forward, backward, optimizer."""


def no_phase(name: str) -> AbstractContextManager[None]:
    """Phases are of no interest."""
    return nullcontext()


@dataclass(frozen=True, kw_only=True)
class BackwardResult:
    """What the backward passes of one optimizer step saw.

    Attributes:
        loss: of the whole step.
        trained_tokens: response tokens with a weight, never padding.
        prompt_tokens: tokens of the prompts that were run, once for each response.
        padded_tokens: tokens that the model ran, prompts and padding included.
        microbatches: forward and backward passes.
    """

    loss: float
    trained_tokens: int
    prompt_tokens: int
    padded_tokens: int
    microbatches: int


@dataclass(frozen=True, kw_only=True)
class StepResult(BackwardResult):
    """What one optimizer step did.

    Attributes:
        grad_norm: global gradient norm before clipping.
        updated: false when the weights stayed as they were: nothing was trained, or the gradient was not finite.
    """

    grad_norm: float
    updated: bool


class ActorUpdate:
    """The learner of one policy.

    Args:
        model: the policy.
        optimizer: of this model's parameters.
        schedule: activation checkpointing.
        reduction: of the loss over the tokens of an optimizer step.
        temperature: of the sampling.
        microbatch_tokens: padded tokens per forward and backward pass; decides about memory alone.
    """

    def __init__(
        self,
        model: LoopedModel,
        optimizer: ActorOptimizer,
        *,
        schedule: Schedule,
        reduction: Reduction,
        temperature: float,
        microbatch_tokens: int,
    ) -> None:
        self.model = model
        self.optimizer = optimizer
        self._schedule = schedule
        self._reduction = reduction
        self._temperature = temperature
        self._microbatch_tokens = microbatch_tokens

    def step(self, responses: Sequence[TrainingResponse], on_phase: OnPhase = no_phase) -> StepResult:
        """One optimizer step over all of `responses`."""
        result = self.backward(responses, on_phase)
        with on_phase("optimizer"):
            grad_norm = self.optimizer.step()
        updated = result.trained_tokens > 0 and math.isfinite(grad_norm)
        return StepResult(**vars(result), grad_norm=grad_norm, updated=updated)

    def backward(self, responses: Sequence[TrainingResponse], on_phase: OnPhase = no_phase) -> BackwardResult:
        """Forward and backward passes over all of `responses`; the gradients stay in the optimizer.

        Responses without a trained token have no part in the loss and are not run.
        """
        weights = logical_weights([response.trained for response in responses], self._reduction)
        kept = [index for index, weight in enumerate(weights) if bool(weight.any())]
        losses: list[Tensor] = []
        padded_tokens = 0
        for picked in microbatches([responses[index].rows for index in kept], self._microbatch_tokens):
            chosen = [kept[index] for index in picked]
            loss, tokens = self._microbatch([responses[i] for i in chosen], [weights[i] for i in chosen], on_phase)
            losses.append(loss)
            padded_tokens += tokens
        return BackwardResult(
            loss=sum(float(loss) for loss in losses),
            trained_tokens=sum(int((weight != 0).sum()) for weight in weights),
            prompt_tokens=sum(len(responses[index].prompt_tokens) for index in kept),
            padded_tokens=padded_tokens,
            microbatches=len(losses),
        )

    def _microbatch(
        self, responses: list[TrainingResponse], weights: list[Tensor], on_phase: OnPhase
    ) -> tuple[Tensor, int]:
        with on_phase("forward"):
            batch = pad(responses, self.model.device)
            logprobs = dense_logprobs(self.model, batch, temperature=self._temperature, schedule=self._schedule)
            token_weights = pad_sequence(weights, batch_first=True).to(logprobs)
            advantages = torch.tensor([response.advantage for response in responses], dtype=torch.float64).to(logprobs)
            loss = policy_gradient_loss(logprobs, token_weights, advantages)
        with on_phase("backward"):
            loss.backward()
            self.optimizer.accumulate()
        return loss.detach(), batch.input_ids.numel()
