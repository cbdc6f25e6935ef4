"""Attention of response rows to a prefix that all responses share, and to what is before them in their own response.

Softmax over two sets of keys is exact when it is taken over each alone and the two are joined by the logarithms of
their normalisers (as in ring attention, arXiv 2310.01889). So the prefix stands once in memory and is read once for
the rows of all responses, and no row is scored against another response.
"""

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional

from scalerlt.learner.rows import Places, attend_within, packed, padded

_flash = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
_flash_backward = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward


def prefix_attention(
    q: Tensor, k: Tensor, v: Tensor, prefix_k: Tensor, prefix_v: Tensor, places: Places, rows: Tensor | None
) -> Tensor:
    """Each asking row attends to the whole prefix, to itself and to the rows before it in its response.

    Args:
        q: [Q, heads, head_dim] of the asking rows, rotated, not scaled.
        k, v: [R, kv_heads, head_dim] of all rows, k rotated.
        prefix_k, prefix_v: [P, kv_heads, head_dim].
        places: of all rows in their responses.
        rows: [Q] int64, which of them ask; None: all.

    Returns:
        [Q, heads, head_dim].
    """
    if q.device.type != "cpu":
        return repeated_attention(q, k, v, prefix_k, prefix_v, places, rows)
    attended: Tensor = _Split.apply(q, k, v, prefix_k, prefix_v, places, places.of(rows))
    return attended


def packed_attention(
    q: Tensor, k: Tensor, v: Tensor, prompt: int, places: Places | None, rows: Tensor | None
) -> Tensor:
    """The rows of a prompt, then those of its responses: causal attention among the former, and `prefix_attention` of
    the latter to them.

    Args:
        q: [P + Q, heads, head_dim], of the prompt and of the asking rows of the responses.
        k, v: [P + R, kv_heads, head_dim].
        prompt: P.
        places: of the R rows in their responses; None: there are none.
        rows: [Q] int64, which of the R rows ask; None: all.

    Returns:
        [P + Q, heads, head_dim].
    """
    if len(q) == prompt:  # no response asks, though some may have rows
        k, v, places = k[:prompt], v[:prompt], None
    if q.device.type == "cpu":
        attended: Tensor = _Packed.apply(q, k, v, prompt, places, None if places is None else places.of(rows))
        return attended
    within = attend_within(Places(1, prompt), 0, 0, None, q[:prompt], k[:prompt], v[:prompt])
    if places is None:
        return within
    shared = repeated_attention(q[prompt:], k[prompt:], v[prompt:], k[:prompt], v[:prompt], places, rows)
    return torch.cat((within, shared))


def repeated_attention(
    q: Tensor, k: Tensor, v: Tensor, prefix_k: Tensor, prefix_v: Tensor, places: Places, rows: Tensor | None
) -> Tensor:
    """`prefix_attention` with a copy of the prefix before each response, on any device."""
    asking, prefix = places.of(rows), len(prefix_k)

    def keys(shared: Tensor, own: Tensor) -> Tensor:
        repeated = shared.transpose(0, 1).expand(places.sequences, -1, -1, -1)
        return torch.cat((repeated, _in_responses(own, places.rows, places)), 2)

    visible = torch.ones(places.width, prefix + places.width, dtype=torch.bool, device=q.device).tril(prefix)
    attended = functional.scaled_dot_product_attention(
        _in_responses(q, asking, places), keys(prefix_k, k), keys(prefix_v, v), attn_mask=visible, enable_gqa=True
    )
    return packed(attended, asking)


class _Split(torch.autograd.Function):
    """`prefix_attention` on a CPU by two runs of torch's own kernel; its backward, given the joined result and
    normaliser, gives each its part."""

    @staticmethod
    def forward(
        ctx: Any,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        prefix_k: Tensor,
        prefix_v: Tensor,
        places: Places,
        asking: Tensor | None,
    ) -> Tensor:
        groups = q.shape[1] // k.shape[1]
        shared, shared_lse = _flash(_folded(q, groups), _heads(prefix_k), _heads(prefix_v))
        shared, shared_lse = _unfolded(shared, groups), _unfolded(shared_lse[..., None], groups)
        attended, lse = shared.contiguous(), shared_lse.contiguous()
        _join(attended, lse, *_own(q, k, v, places, asking))
        ctx.save_for_backward(q, k, v, prefix_k, prefix_v, places.rows, asking, attended, lse)
        ctx.places = places
        return attended

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        q, k, v, prefix_k, prefix_v, _, asking, joined, lse = ctx.saved_tensors
        groups = q.shape[1] // k.shape[1]
        shared_q, *shared_kv = _flash_backward(
            _folded(gradient, groups),
            _folded(q, groups),
            _heads(prefix_k),
            _heads(prefix_v),
            _folded(joined, groups),
            _folded(lse, groups).squeeze(-1),
            0.0,
            False,
        )
        own_q, own_k, own_v = _own_backward(gradient, q, k, v, ctx.places, asking, joined, lse)
        prefix = (part[0].transpose(0, 1) for part in shared_kv)
        return _unfolded(shared_q, groups) + own_q, own_k, own_v, *prefix, None, None


class _Packed(torch.autograd.Function):
    """`packed_attention` on a CPU. To the kernel a row behind the last key is one that sees all of them, so one causal
    run over the prompt's keys serves the prompt's rows and the prefix part of all others."""

    @staticmethod
    def forward(
        ctx: Any, q: Tensor, k: Tensor, v: Tensor, prompt: int, places: Places | None, asking: Tensor | None
    ) -> Tensor:
        groups = q.shape[1] // k.shape[1]
        attended, lse = _flash(
            _heads(q), _repeated(_heads(k[:prompt]), groups), _repeated(_heads(v[:prompt]), groups), is_causal=True
        )
        attended, lse = packed(attended, None), packed(lse[..., None], None)
        if places is not None:
            own = _own(q[prompt:], k[prompt:], v[prompt:], places, asking)
            _join(attended[prompt:], lse[prompt:], *own)
        ctx.save_for_backward(q, k, v, None if places is None else places.rows, asking, attended, lse)
        ctx.prompt, ctx.places = prompt, places
        return attended

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        q, k, v, _, asking, attended, lse = ctx.saved_tensors
        prompt, groups = ctx.prompt, q.shape[1] // k.shape[1]
        found_q, *found_kv = _flash_backward(
            _heads(gradient),
            _heads(q),
            _repeated(_heads(k[:prompt]), groups),
            _repeated(_heads(v[:prompt]), groups),
            _heads(attended),
            _heads(lse).squeeze(-1),
            0.0,
            True,
        )
        found_q = packed(found_q, None)
        found_k, found_v = (packed(_summed(part, groups), None) for part in found_kv)
        if ctx.places is None:
            return found_q, found_k, found_v, None, None, None
        gradient, q, k, v, attended, lse = (tensor[prompt:] for tensor in (gradient, q, k, v, attended, lse))
        own_q, own_k, own_v = _own_backward(gradient, q, k, v, ctx.places, asking, attended, lse)
        found_q[prompt:] += own_q
        return found_q, torch.cat((found_k, own_k)), torch.cat((found_v, own_v)), None, None, None


def _own(q: Tensor, k: Tensor, v: Tensor, places: Places, asking: Tensor | None) -> tuple[Tensor, Tensor]:
    """The asking rows' attention within their responses, [Q, heads, D], and the logarithms of its normalisers,
    [Q, heads, 1]."""
    groups = q.shape[1] // k.shape[1]
    own, lse = _flash(
        _in_responses(q, asking, places),
        _repeated(_in_responses(k, places.rows, places), groups),
        _repeated(_in_responses(v, places.rows, places), groups),
        is_causal=True,
    )
    return packed(own, asking), packed(lse[..., None], asking)


def _own_backward(
    gradient: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    places: Places,
    asking: Tensor | None,
    joined: Tensor,
    lse: Tensor,
) -> tuple[Tensor, Tensor, Tensor]:
    """The gradients of q, k and v through `_own`, from the joined result and normalisers."""
    groups = q.shape[1] // k.shape[1]
    own_q, *own_kv = _flash_backward(
        _in_responses(gradient, asking, places),
        _in_responses(q, asking, places),
        _repeated(_in_responses(k, places.rows, places), groups),
        _repeated(_in_responses(v, places.rows, places), groups),
        _in_responses(joined, asking, places),
        _in_responses(lse, asking, places).squeeze(-1),
        0.0,
        True,
    )
    own_k, own_v = (packed(_summed(part, groups), places.rows) for part in own_kv)
    return packed(own_q, asking), own_k, own_v


def _join(shared: Tensor, shared_lse: Tensor, own: Tensor, own_lse: Tensor) -> None:
    """Makes of attention over one set of keys that over both, in place, and so of its normalisers' logarithms."""
    shared.lerp_(own, torch.sigmoid(own_lse - shared_lse).to(own.dtype))
    torch.logaddexp(shared_lse, own_lse, out=shared_lse)


def _in_responses(x: Tensor, places: Tensor | None, shape: Places) -> Tensor:
    return padded(x, places, shape.sequences, shape.width)


def _heads(x: Tensor) -> Tensor:
    """[P, heads, D] to [1, heads, P, D]."""
    return x.transpose(0, 1)[None]


def _folded(x: Tensor, groups: int) -> Tensor:
    """[Q, kv_heads * groups, D] to [1, kv_heads, Q * groups, D]: the heads that share keys are rows of one head."""
    return _heads(x) if groups == 1 else x.unflatten(1, (-1, groups)).transpose(0, 1).flatten(1, 2)[None]


def _unfolded(x: Tensor, groups: int) -> Tensor:
    """The inverse of `_folded`."""
    return packed(x, None) if groups == 1 else x[0].unflatten(1, (-1, groups)).transpose(0, 1).flatten(1, 2)


def _repeated(x: Tensor, groups: int) -> Tensor:
    """[B, kv_heads, T, D] with each head as often as query heads share it."""
    return x if groups == 1 else x.repeat_interleave(groups, 1)


def _summed(x: Tensor, groups: int) -> Tensor:
    """Gradients of `_repeated` heads to those of the heads."""
    return x if groups == 1 else x.unflatten(1, (-1, groups)).sum(2)
