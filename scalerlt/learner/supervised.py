"""Supervised learning of a looped model: the loss of every loop, and an exit gate that learns what further loops gain.

Two stages, as Ouro (arXiv 2510.25741) is trained: first the model with all its loops, then the exit gate alone, on the
loss that was really gained by going on. Unlike Ouro's first stage, the weights of the loops are constants here and not
the gate's own probabilities: later loops weigh more, so that depth pays.
"""

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional

from scalerlt.learner.batching import PackedBatch
from scalerlt.models.ouro import OuroForCausalLM
from scalerlt.numerics.precision import internal_dtype


def loop_losses(model: OuroForCausalLM, batch: PackedBatch) -> tuple[Tensor, Tensor]:
    """How well each loop predicts each response token, and what its exit gate says; one teacher-forced causal pass.

    Args:
        model: all K loops of every token are run.
        batch: prompts and the responses to be learnt.

    Returns:
        -log p(target) [N, K] and the exit gate's logits [N, K], both in the internal dtype, loops last.
    """
    inputs, predictors = batch.padded()
    states = [state.flatten(0, 1)[predictors] for state in model(inputs)]
    internal = internal_dtype(model.dtype)
    losses = [functional.cross_entropy(model.logits(h).to(internal), batch.targets, reduction="none") for h in states]
    return torch.stack(losses, -1), torch.stack([model.exit_gate(h) for h in states], -1)


def deep_supervision_loss(losses: Tensor, loop_weights: Sequence[float]) -> Tensor:
    """The mean over tokens of the loops' weighted mean loss.

    Args:
        losses: [N, K].
        loop_weights: K numbers, not negative and not all zero; only their ratios count.

    Returns:
        A scalar.
    """
    weights = torch.tensor(loop_weights).to(losses)
    return (losses @ (weights / weights.sum())).mean()


def exit_gate_loss(losses: Tensor, gates: Tensor, *, slope: float, least_gain: float) -> Tensor:
    """Cross-entropy of the gate's decisions against those that hindsight would take.

    After loop d < K it should go on with probability sigmoid(slope * (gain - least_gain)), where gain is
    max(0, loss_d - loss_{d+1}), what the next loop really gains at this token. The last gate decides nothing.

    Args:
        losses: [N, K]; no gradient flows into them.
        gates: [N, K] logits; sigmoid of a logit is the probability to stop.
        slope: per nat; how sharply the target turns from stopping to going on.
        least_gain: in nats; the gain at which both are as good.

    Returns:
        A scalar, the mean over tokens and the first K - 1 loops.
    """
    gain = (losses[:, :-1] - losses[:, 1:]).detach().clamp_min(0)
    going_on = torch.sigmoid(slope * (gain - least_gain))
    return functional.binary_cross_entropy_with_logits(-gates[:, :-1], going_on)
