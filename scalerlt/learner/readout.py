"""From hidden states to the log-probs of sampled tokens: over the whole vocabulary at once, or tile by tile.

The whole vocabulary costs several matrices of the size rows x vocabulary: the logits, their log-softmax, which autograd
keeps, and their gradients. Tile by tile (Liger Kernel, arXiv 2410.10989; Cut Cross-Entropy, arXiv 2411.09009) one
product of hidden states and a few thousand rows of the output head stands at a time, always in the same memory, and
what is kept for the backward pass are the operands and a few numbers for each row. The price is one product more:
the backward pass makes the logits again.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import reduce
from itertools import pairwise, repeat
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from scalerlt.numerics.precision import internal_dtype

TILE = 2048
"""Rows of the output head in a tile, if nothing else is said."""


class OutputHead(Protocol):
    """What readout asks of a model."""

    @property
    def lm_head(self) -> torch.nn.Linear:
        """The output head, without bias."""

    def logits(self, h: Tensor) -> Tensor:
        """Hidden states [..., H] to next-token logits [..., V]."""


class Readout(Protocol):
    """A way of reading log-probs out."""

    def __call__(self, model: OutputHead, hidden: Tensor, targets: Tensor, temperature: float) -> Tensor:
        """Log-probs [N] of `targets` [N] under softmax(logits / temperature), in the internal dtype.

        Args:
            model: whose output head reads out.
            hidden: hidden states [N, H] that predict the targets.
            targets: token ids.
            temperature: above 0.
        """

    def bytes_moved(self, head: int, logits: int, evaluations: int) -> int:
        """Algorithmic traffic of so many evaluations, the last differentiated, as `LearnerTraffic` counts.

        Args:
            head: bytes of the output head.
            logits: bytes of the logits of the whole vocabulary.
            evaluations: forward passes.
        """


class FullReadout:
    """`checkpoint.readout=full`: all logits at once, differentiated by autograd."""

    def __call__(self, model: OutputHead, hidden: Tensor, targets: Tensor, temperature: float) -> Tensor:
        """As in `Readout`."""
        logits = model.logits(hidden)
        logprobs = torch.log_softmax(logits.to(internal_dtype(logits.dtype)) / temperature, dim=-1)
        return logprobs.gather(-1, targets[:, None]).squeeze(-1)

    def bytes_moved(self, head: int, logits: int, evaluations: int) -> int:
        """The output head is read once in each forward and once in the backward pass; logits are written and read once,
        and so is their gradient."""
        return (evaluations + 1) * (head + 2 * logits)


@dataclass(frozen=True)
class TiledReadout:
    """`checkpoint.readout=tiled`: `tile` rows of the output head at a time; see `tiled_readout`."""

    tile: int = TILE

    def __call__(self, model: OutputHead, hidden: Tensor, targets: Tensor, temperature: float) -> Tensor:
        """As in `Readout`."""
        return tiled_readout(hidden, model.lm_head.weight, targets, temperature=temperature, tile=self.tile).logprobs

    def bytes_moved(self, head: int, logits: int, evaluations: int) -> int:
        """The output head is read once in each forward and twice in the backward pass; a tile of logits stays near."""
        return (evaluations + 2) * head


FULL = FullReadout()


class Reference(NamedTuple):
    """The policy that the KL divergence is taken to: hidden states [N, H'] and output head [V, H'], both constants."""

    hidden: Tensor
    weight: Tensor


class TokenReadout(NamedTuple):
    """What is read out of N hidden states, each [N] in the internal dtype.

    Attributes:
        logprobs: of the targets.
        entropy: of the whole distribution, in nats; None unless wanted.
        kl: KL(policy || reference) over the whole vocabulary, in nats; None without a reference.
    """

    logprobs: Tensor
    entropy: Tensor | None
    kl: Tensor | None


def tiled_readout(
    hidden: Tensor,
    weight: Tensor,
    targets: Tensor,
    *,
    temperature: float,
    tile: int = TILE,
    entropy: bool = False,
    reference: Reference | None = None,
) -> TokenReadout:
    """Log-prob, entropy and KL divergence under softmax(hidden @ weight.T / temperature), logits never standing whole.

    Products are in the dtype of their operands and everything else is in the internal dtype, as in a readout of the
    whole vocabulary: logits are rounded to the operands' dtype before the softmax, and so is their gradient before it
    is multiplied. Two things differ, both by rounding alone: the normaliser is summed tile by tile, and so is the
    gradient of `hidden`, for narrow operands in the internal dtype.

    A logit of minus infinity has probability zero and no gradient. Where the reference has such a logit and the policy
    has not, the divergence is infinite.

    Args:
        hidden: [N, H]; N may be 0.
        weight: [V, H], the dtype of `hidden`. Where it wants no gradient, none is computed; neither for `hidden`.
        targets: token ids [N].
        temperature: above 0; of the reference's distribution too.
        tile: rows of `weight` at a time, above 0.
        entropy: whether the entropy is wanted. It and the divergence take one more pass over the tiles.
        reference: to which the divergence is wanted.

    Raises:
        IndexError: a target outside the vocabulary.
        RuntimeError: in the backward pass, when hidden states, weight or targets were changed in place since, and with
            `create_graph`: there are first derivatives only.
    """
    frozen = (None, None) if reference is None else (reference.hidden.detach(), reference.weight.detach())
    evaluated = _Tiled.apply(hidden, weight, targets, *frozen, temperature, tile, entropy)
    return TokenReadout(*evaluated)


class _Distribution:
    """softmax(hidden @ weight.T / temperature) of N rows, a tile of the vocabulary at a time, in the same memory.

    Attributes:
        edges: where each tile begins in the vocabulary, and where the last one ends.
        maximum: the largest logit of each row, [N, 1], once it is normalised.
        log_total: the logarithm of the sum of exp(logit - maximum), [N, 1].
    """

    def __init__(
        self,
        hidden: Tensor,
        weight: Tensor,
        temperature: float,
        tile: int,
        maximum: Tensor | None = None,
        log_total: Tensor | None = None,
    ) -> None:
        vocabulary, internal = len(weight), internal_dtype(hidden.dtype)
        self.edges = [*range(0, vocabulary, tile), vocabulary]
        self._hidden, self._weight, self._temperature = hidden, weight, temperature
        self._product = hidden.new_empty(len(hidden) * min(tile, vocabulary))
        self._logits = self._product.to(internal)
        self.maximum = hidden.new_full((len(hidden), 1), -torch.inf, dtype=internal) if maximum is None else maximum
        self.log_total = torch.zeros_like(self.maximum) if log_total is None else log_total

    def normalise(self, places: Sequence["_Places"]) -> Tensor:
        """One pass over the tiles: sets `maximum` and `log_total`, and returns the log-probs [N, 1] at `places`."""
        total, selected = torch.zeros_like(self.maximum), torch.zeros_like(self.maximum)
        for logits, (rows, columns) in zip(self._tiles(), places, strict=True):
            selected[rows, 0] = logits[rows, columns]
            maximum = self.maximum.maximum(logits.amax(-1, keepdim=True))
            # Where all logits so far are minus infinity, subtracting their maximum would give NaN.
            shift = maximum.masked_fill(maximum.isneginf(), 0)
            total.mul_((self.maximum - shift).exp_()).add_(logits.sub_(shift).exp_().sum(-1, keepdim=True))
            self.maximum = maximum
        self.log_total = total.log_()
        return self._normalised(selected)

    def logprobs(self) -> Iterator[Tensor]:
        """The log-probs [N, tile] of one tile after another; each overwrites the one before."""
        return map(self._normalised, self._tiles())

    def _tiles(self) -> Iterator[Tensor]:
        for start, stop in pairwise(self.edges):
            shape = len(self._hidden), stop - start
            product, logits = (flat[: shape[0] * shape[1]].view(shape) for flat in (self._product, self._logits))
            torch.mm(self._hidden, self._weight[start:stop].t(), out=product)
            if logits.dtype != product.dtype:
                logits.copy_(product)
            yield logits.div_(self._temperature)

    def _normalised(self, logits: Tensor) -> Tensor:
        # As log_softmax does: the large part first, which leaves the small one its digits.
        return logits.sub_(self.maximum).sub_(self.log_total)


class _Places(NamedTuple):
    """Rows whose target is in a tile, and its column there."""

    rows: Tensor
    columns: Tensor


def _places(targets: Tensor, edges: Sequence[int]) -> list[_Places]:
    """Where the targets are in each tile."""
    ordered, order = targets.sort()
    before = torch.searchsorted(ordered, torch.tensor(edges, device=targets.device)).tolist()
    if before[0] > 0 or before[-1] < len(targets):
        raise IndexError(f"a target is outside the vocabulary of {edges[-1]} tokens")
    return [
        _Places(order[first:last], ordered[first:last] - start)
        for start, (first, last) in zip(edges, pairwise(before), strict=False)
    ]


def _expectation(probability: Tensor, values: Tensor) -> Tensor:
    """Of each row, [N]; what has probability zero does not count, infinite or not."""
    return values.masked_fill(probability == 0, 0).mul_(probability).sum(-1)


class _Tiled(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        hidden: Tensor,
        weight: Tensor,
        targets: Tensor,
        reference_hidden: Tensor | None,
        reference_weight: Tensor | None,
        temperature: float,
        tile: int,
        wants_entropy: bool,
    ) -> tuple[Tensor, Tensor | None, Tensor | None]:
        policy = _Distribution(hidden, weight, temperature, tile)
        places = _places(targets, policy.edges)
        logprobs = policy.normalise(places).squeeze(-1)
        entropy = torch.zeros_like(logprobs) if wants_entropy else None
        reference = kl = None
        if reference_hidden is not None and reference_weight is not None:
            reference = _Distribution(reference_hidden, reference_weight, temperature, tile)
            reference.normalise(places)
            kl = torch.zeros_like(logprobs)
        if entropy is not None or kl is not None:
            for logp, logq in zip(policy.logprobs(), _logprobs(reference), strict=False):
                probability = logp.exp()
                if entropy is not None:
                    entropy -= _expectation(probability, logp)
                if kl is not None and logq is not None:
                    kl += _expectation(probability, logp - logq)
        ctx.save_for_backward(
            *(targets, entropy, kl),
            *(hidden, weight, policy.maximum, policy.log_total),
            *((reference_hidden, reference_weight, reference.maximum, reference.log_total) if reference else ()),
        )
        ctx.temperature, ctx.tile = temperature, tile
        ctx.set_materialize_grads(False)
        return logprobs, entropy, kl

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor | None, ...]:
        if torch.is_grad_enabled():
            raise RuntimeError("a tiled readout has first derivatives only: use readout=full with create_graph")
        if all(gradient is None for gradient in gradients):
            return (None,) * 8
        targets, entropy, kl, hidden, weight, maximum, log_total, *of_reference = ctx.saved_tensors
        policy = _Distribution(hidden, weight, ctx.temperature, ctx.tile, maximum, log_total)
        reference = None
        if of_reference:
            operand, head, *normaliser = of_reference
            reference = _Distribution(operand, head, ctx.temperature, ctx.tile, *normaliser)
        wants_hidden, wants_weight = ctx.needs_input_grad[:2]
        internal = maximum.dtype
        grad_hidden = torch.zeros_like(hidden, dtype=internal) if wants_hidden else None
        grad_weight = torch.empty_like(weight) if wants_weight else None
        for start, places, logp, logq in zip(
            policy.edges, _places(targets, policy.edges), policy.logprobs(), _logprobs(reference), strict=False
        ):
            part = slice(start, start + logp.shape[1])
            gradient = _logit_gradient(logp, logq, places, entropy, kl, gradients)
            gradient = gradient.div_(ctx.temperature).to(hidden.dtype)
            if grad_hidden is not None and hidden.dtype == internal:
                grad_hidden.addmm_(gradient, weight[part])
            elif grad_hidden is not None:
                grad_hidden += gradient @ weight[part]
            if grad_weight is not None:
                torch.mm(gradient.t(), hidden, out=grad_weight[part])
        return None if grad_hidden is None else grad_hidden.to(hidden.dtype), grad_weight, *[None] * 6


def _logprobs(distribution: _Distribution | None) -> Iterator[Tensor | None]:
    return repeat(None) if distribution is None else distribution.logprobs()


def _logit_gradient(
    logp: Tensor,
    logq: Tensor | None,
    places: _Places,
    entropy: Tensor | None,
    kl: Tensor | None,
    gradients: Sequence[Tensor | None],
) -> Tensor:
    """What the gradients of log-probs, entropy and divergence, each [N], come to at one tile of logits.

    With p the probabilities, H the entropy and KL the divergence: g_logprob (onehot - p) - g_H p (log p + H)
    + g_KL p (log p - log q - KL). `logp` is overwritten.
    """
    grad_logprobs, grad_entropy, grad_kl = (None if g is None else g[:, None] for g in gradients)
    slopes = []
    if grad_entropy is not None and entropy is not None:
        slopes.append((logp + entropy[:, None]).mul_(-grad_entropy))
    if grad_kl is not None and kl is not None and logq is not None:
        slopes.append((logp - logq).sub_(kl[:, None]).mul_(grad_kl))
    probability = logp.exp_()
    slopes = [slope.masked_fill_(probability == 0, 0).mul_(probability) for slope in slopes]
    if grad_logprobs is not None:
        probability[places] -= 1
        slopes.append(probability.mul_(-grad_logprobs))
    return reduce(torch.Tensor.add_, slopes)
