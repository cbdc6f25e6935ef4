"""Choosing tokens from logits, with random numbers that depend on a request's seed and a token's position alone."""

import torch
from torch import Tensor

from scalerlt.numerics.precision import internal_dtype


def _signed(value: int) -> int:
    """The 64-bit pattern `value` as a signed integer: torch's int64 arithmetic is modulo 2^64."""
    return value - 2**64 if value >= 2**63 else value


_GOLDEN = _signed(0x9E3779B97F4A7C15)
_MIX_1 = _signed(0xBF58476D1CE4E5B9)
_MIX_2 = _signed(0x94D049BB133111EB)


def _logical_shift(x: Tensor, bits: int) -> Tensor:
    return (x >> bits) & (2 ** (64 - bits) - 1)


def _mix(x: Tensor) -> Tensor:
    """The output function of splitmix64 (Steele, Lea, Flood: Fast splittable pseudorandom number generators)."""
    x = (x ^ _logical_shift(x, 30)) * _MIX_1
    x = (x ^ _logical_shift(x, 27)) * _MIX_2
    return x ^ _logical_shift(x, 31)


def uniforms(seeds: Tensor, positions: Tensor) -> Tensor:
    """One random number in [0, 1) for each pair of seed and position, independent between pairs.

    The seed is mixed first, so the sequences of neighbouring seeds are not shifts of one another; 53 bits are used.

    Args:
        seeds: int64, not negative.
        positions: int64, broadcastable with seeds.

    Returns:
        fp64 of the broadcast shape.
    """
    mixed = _mix(_mix(seeds + _GOLDEN) + positions * _GOLDEN)
    return _logical_shift(mixed, 11).to(torch.float64) * 2.0**-53


def greedy(logits: Tensor) -> tuple[Tensor, Tensor]:
    """The most probable token of each row (the first, where several are) and its log-probability.

    Args:
        logits: [N, V], any floating dtype.

    Returns:
        tokens [N] int64; log-probabilities [N] in the internal dtype.
    """
    logprobs = torch.log_softmax(logits, -1, dtype=internal_dtype(logits.dtype))
    best, tokens = logprobs.max(-1)
    return tokens, best


def truncated(logits: Tensor, top_k: Tensor, top_p: Tensor) -> Tensor:
    """Logits of what is left of each row's distribution, minus infinity elsewhere.

    First the `top_k` most probable tokens are kept, then of these the fewest whose probabilities, renormalised, sum to
    `top_p` or more (nucleus sampling, arXiv 1904.09751; the order is vLLM's). Of equal logits the lower token id comes
    first; at least one token is kept.

    Args:
        logits: [N, V], divided by the temperature.
        top_k: [N] int64; 0: all.
        top_p: [N] fp64, above 0; 1: all.
    """
    values, order = logits.sort(dim=-1, descending=True, stable=True)
    ranks = torch.arange(logits.shape[-1], device=logits.device)
    outside = (ranks >= top_k[:, None]) & (top_k > 0)[:, None]
    probabilities = torch.softmax(values.double().masked_fill(outside, -torch.inf), -1)
    before = probabilities.cumsum(-1) - probabilities
    outside |= (before >= top_p[:, None]) & (top_p < 1)[:, None] & (ranks > 0)
    return logits.masked_fill(torch.zeros_like(outside).scatter(-1, order, outside), -torch.inf)


def sample(
    logits: Tensor,
    temperatures: Tensor,
    uniform: Tensor,
    forced: Tensor | None = None,
    truncation: tuple[Tensor, Tensor] | None = None,
    *,
    some_greedy: bool = True,
) -> tuple[Tensor, Tensor]:
    """One token per row: greedy where the temperature is 0, else drawn from softmax(logits / temperature).

    Drawn by inverting the cumulative distribution, summed in fp64 in vocabulary order: the token is the first whose
    cumulative probability exceeds `uniform` times the total.

    Args:
        logits: [N, V], any floating dtype.
        temperatures: [N] in the internal dtype.
        uniform: [N] fp64 in [0, 1).
        forced: [N] int64, the token to evaluate in place of the one chosen; -1 where the row is free.
        truncation: top_k and top_p as `truncated` takes them, of no consequence where greedy; None: none.
        some_greedy: whether a temperature may be 0; if not, the likeliest tokens are not looked for.

    Returns:
        tokens [N] int64; their log-probabilities [N] in the internal dtype: in the distribution drawn from, or under
        the unscaled logits where greedy.
    """
    is_greedy = temperatures == 0 if some_greedy else None
    divisors = temperatures if is_greedy is None else torch.where(is_greedy, 1.0, temperatures)
    scaled = logits.to(temperatures.dtype) / divisors[:, None]
    if truncation is not None:
        kept = truncated(scaled, *truncation)
        scaled = kept if is_greedy is None else torch.where(is_greedy[:, None], scaled, kept)
    logprobs = torch.log_softmax(scaled, -1)
    cumulative = logprobs.to(torch.float64).exp().cumsum(-1)
    drawn = torch.searchsorted(cumulative, (uniform * cumulative[:, -1])[:, None], right=True)
    # Only a row of NaN finds no token; the index stays valid, and the caller sees its NaN log-probability.
    tokens = drawn[:, 0].clamp(max=logits.shape[-1] - 1)
    if is_greedy is not None:
        tokens = torch.where(is_greedy, logprobs.argmax(-1), tokens)
    if forced is not None:
        tokens = torch.where(forced < 0, tokens, forced)
    return tokens, logprobs.gather(-1, tokens[:, None])[:, 0]


def raw_logprobs(logits: Tensor, tokens: Tensor) -> Tensor:
    """Log-probabilities [N], in the internal dtype, of `tokens` [N] under the unscaled `logits` [N, V]."""
    logprobs = torch.log_softmax(logits, -1, dtype=internal_dtype(logits.dtype))
    return logprobs.gather(-1, tokens[:, None])[:, 0]
