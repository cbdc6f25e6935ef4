"""Attention of response rows to a prefix that all responses share, and to what is before them in their own response.

Softmax over two sets of keys is exact when it is taken over each alone and the two are joined by the logarithms of
their normalisers (as in ring attention, arXiv 2310.01889). So the prefix stands once in memory and is read once for
the rows of all responses, and no row is scored against another response.
"""

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional

_flash = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
_flash_backward = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward


@dataclass(frozen=True)
class Places:
    """Where packed rows stand in responses that are padded on the right.

    Attributes:
        responses, width: of the padded shape.
        rows: [R] int64, the place of every row in the flattened shape; None: the rows fill it in order.
        asking: [Q] int64, the place of every row that attends; None: all rows do.
    """

    responses: int
    width: int
    rows: Tensor | None = None
    asking: Tensor | None = None

    def asked_by(self, rows: Tensor | None) -> "Places":
        """The same places where only the given of the R rows attend; None: all."""
        if rows is None:
            return self
        return replace(self, asking=rows if self.rows is None else self.rows[rows])


def prefix_attention(q: Tensor, k: Tensor, v: Tensor, prefix_k: Tensor, prefix_v: Tensor, places: Places) -> Tensor:
    """Each asking row attends to the whole prefix, to itself and to the rows before it in its response.

    Args:
        q: [Q, heads, head_dim] of the asking rows, rotated, not scaled.
        k, v: [R, kv_heads, head_dim] of all rows, k rotated.
        prefix_k, prefix_v: [P, kv_heads, head_dim].
        places: of the rows in their responses.

    Returns:
        [Q, heads, head_dim].
    """
    attend = split_attention if q.device.type == "cpu" else repeated_attention
    return attend(q, k, v, prefix_k, prefix_v, places)


def repeated_attention(q: Tensor, k: Tensor, v: Tensor, prefix_k: Tensor, prefix_v: Tensor, places: Places) -> Tensor:
    """`prefix_attention` with a copy of the prefix before each response, on any device."""
    asking = places.rows if places.asking is None else places.asking
    prefix = len(prefix_k)

    def keys(shared: Tensor, own: Tensor) -> Tensor:
        repeated = shared.transpose(0, 1).expand(places.responses, -1, -1, -1)
        return torch.cat((repeated, _padded(own, places.rows, places)), 2)

    visible = torch.ones(places.width, prefix + places.width, dtype=torch.bool, device=q.device).tril(prefix)
    attended = functional.scaled_dot_product_attention(
        _padded(q, asking, places), keys(prefix_k, k), keys(prefix_v, v), attn_mask=visible, enable_gqa=True
    )
    return _packed(attended, asking)


def split_attention(q: Tensor, k: Tensor, v: Tensor, prefix_k: Tensor, prefix_v: Tensor, places: Places) -> Tensor:
    """`prefix_attention` over the prefix once for all rows and over each response, on the CPU."""
    asking = places.rows if places.asking is None else places.asking
    attended: Tensor = _Split.apply(q, k, v, prefix_k, prefix_v, places.rows, asking, places)
    return attended


class _Split(torch.autograd.Function):
    """Two runs of torch's own kernel; its backward, given the joined result and normaliser, gives each its part."""

    @staticmethod
    def forward(
        ctx: Any,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        prefix_k: Tensor,
        prefix_v: Tensor,
        rows: Tensor | None,
        asking: Tensor | None,
        places: Places,
    ) -> Tensor:
        groups = q.shape[1] // k.shape[1]
        shared, shared_lse = _flash(_folded(q, groups), _heads(prefix_k), _heads(prefix_v))
        own, own_lse = _flash(
            _padded(q, asking, places),
            _repeated(_padded(k, rows, places), groups),
            _repeated(_padded(v, rows, places), groups),
            is_causal=True,
        )
        shared, shared_lse = _unfolded(shared, groups), _unfolded(shared_lse[..., None], groups)
        own, own_lse = _packed(own, asking), _packed(own_lse[..., None], asking)
        lse = torch.logaddexp(shared_lse, own_lse)
        joined = ((shared_lse - lse).exp() * shared + (own_lse - lse).exp() * own).to(q.dtype)
        ctx.save_for_backward(q, k, v, prefix_k, prefix_v, rows, asking, joined, lse)
        ctx.places = places
        return joined

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        q, k, v, prefix_k, prefix_v, rows, asking, joined, lse = ctx.saved_tensors
        places, groups = ctx.places, q.shape[1] // k.shape[1]
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
        own_q, *own_kv = _flash_backward(
            _padded(gradient, asking, places),
            _padded(q, asking, places),
            _repeated(_padded(k, rows, places), groups),
            _repeated(_padded(v, rows, places), groups),
            _padded(joined, asking, places),
            _padded(lse, asking, places).squeeze(-1),
            0.0,
            True,
        )
        own_k, own_v = (_packed(part.unflatten(1, (-1, groups)).sum(2), rows) for part in own_kv)
        prefix = (part[0].transpose(0, 1) for part in shared_kv)
        return _unfolded(shared_q, groups) + _packed(own_q, asking), own_k, own_v, *prefix, None, None, None


def _heads(x: Tensor) -> Tensor:
    """[P, kv_heads, D] to [1, kv_heads, P, D]."""
    return x.transpose(0, 1)[None]


def _folded(x: Tensor, groups: int) -> Tensor:
    """[Q, kv_heads * groups, D] to [1, kv_heads, Q * groups, D]: the heads that share keys are rows of one head."""
    return x.unflatten(1, (-1, groups)).transpose(0, 1).flatten(1, 2)[None]


def _unfolded(x: Tensor, groups: int) -> Tensor:
    """The inverse of `_folded`."""
    return x[0].unflatten(1, (-1, groups)).transpose(0, 1).flatten(1, 2)


def _padded(x: Tensor, places: Tensor | None, shape: Places) -> Tensor:
    """Packed rows [N, heads, D] as responses [B, heads, T, D], zero where no row stands."""
    if places is not None:
        x = x.new_zeros(shape.responses * shape.width, *x.shape[1:]).index_copy(0, places, x)
    return x.unflatten(0, (shape.responses, shape.width)).transpose(1, 2)


def _packed(x: Tensor, places: Tensor | None) -> Tensor:
    """The inverse of `_padded`."""
    flat = x.transpose(1, 2).flatten(0, 1)
    return flat if places is None else flat[places]


def _repeated(x: Tensor, groups: int) -> Tensor:
    """[B, kv_heads, T, D] with each head as often as query heads share it."""
    return x if groups == 1 else x.repeat_interleave(groups, 1)
