"""Attention of one new token per row over stored K/V: four ways to the same result, up to rounding.

Each function prepares the rows of a batch and returns what attends: queries [n, kv_heads, group, head_dim] to outputs
of that shape, over keys and values [2, places, capacity, kv_heads, head_dim], where row i sees the first `lengths[i]`
positions of its place. The scale is head_dim^-0.5.
"""

from collections import defaultdict
from collections.abc import Callable, Sequence

import torch
from torch import Tensor
from torch.nn import functional

Read = Callable[[Tensor, Tensor], Tensor]

KEY_BLOCK = 64
"""Keys that `by_key_blocks` takes at a time."""


def in_place(first: int, lengths: Sequence[int], dtype: torch.dtype, device: torch.device) -> Read:
    """Row i's place is `first` + i; all are read as they lie, up to the longest."""
    used, rows = max(lengths), slice(first, first + len(lengths))
    mask = _mask(lengths, used, dtype, device)

    def read(queries: Tensor, stored: Tensor) -> Tensor:
        k, v = stored[:, rows, :used].transpose(2, 3)
        return functional.scaled_dot_product_attention(queries, k, v, attn_mask=mask)

    return read


def gathered(places: Tensor, lengths: Sequence[int], dtype: torch.dtype, *, block: int = 1) -> Read:
    """Places in any order; their K/V are copied together first, up to the longest in multiples of `block` positions."""
    used = -(-max(lengths) // block) * block
    mask = _mask(lengths, used, dtype, places.device)

    def read(queries: Tensor, stored: Tensor) -> Tensor:
        # One by one: selecting from both at once takes a way through torch that is several times as slow.
        k, v = (pool[:, :used].index_select(0, places).transpose(1, 2) for pool in stored)
        return functional.scaled_dot_product_attention(queries, k, v, attn_mask=mask)

    return read


def row_by_row(places: Sequence[int], lengths: Sequence[int]) -> Read:
    """Places in any order; each is read as it lies and no further than its row sees, in a call of its own."""

    def read(queries: Tensor, stored: Tensor) -> Tensor:
        attended = torch.empty_like(queries)
        for row, (place, length) in enumerate(zip(places, lengths, strict=True)):
            k, v = stored[:, place : place + 1, :length].transpose(2, 3)
            attended[row] = functional.scaled_dot_product_attention(queries[row : row + 1], k, v)[0]
        return attended

    return read


def by_key_blocks(places: Tensor, lengths: Sequence[int], dtype: torch.dtype) -> Read:
    """As `gathered`, but each row takes whole blocks of `KEY_BLOCK` keys, so many as it sees: the same operations on
    the same numbers whatever the other rows are."""
    by_blocks: dict[int, list[int]] = defaultdict(list)
    for row, length in enumerate(lengths):
        by_blocks[-(-length // KEY_BLOCK)].append(row)
    batches = []
    for rows in by_blocks.values():
        picked = torch.tensor(rows, device=places.device)
        seen = [lengths[row] for row in rows]
        batches.append((picked, gathered(places[picked], seen, dtype, block=KEY_BLOCK)))

    def read(queries: Tensor, stored: Tensor) -> Tensor:
        attended = torch.empty_like(queries)
        for picked, attend in batches:
            attended[picked] = attend(queries[picked], stored)
        return attended

    return read


def _mask(lengths: Sequence[int], used: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """[n, 1, 1, used]: minus infinity at what a row does not see, to be added to its scores."""
    unseen = torch.arange(used, device=device) >= torch.tensor(lengths, device=device)[:, None]
    return torch.zeros(unseen.shape, dtype=dtype, device=device).masked_fill_(unseen, -torch.inf)[:, None, None, :]
