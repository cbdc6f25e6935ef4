"""Attention of one new token per row over stored K/V: three ways to the same result, up to rounding.

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


def evenly_spaced(places: Sequence[int], lengths: Sequence[int], *, unseen: int | None) -> list[int]:
    """Sizes of groups of successive rows whose places lie the same step apart, so that a strided view holds them.

    Rows of a group are read up to the longest of them. One is left to the next group where it would add more than
    `unseen` positions that nobody sees; None: it never is.
    """
    sizes: list[int] = []
    step, longest = 0, 0  # of the last group; it has no step yet while it has one row
    for row, length in enumerate(lengths):
        if sizes:
            apart = places[row] - places[row - 1]
            added = longest - length if length <= longest else sizes[-1] * (length - longest)
            if apart == (step or apart) > 0 and (unseen is None or added <= unseen):
                sizes[-1] += 1
                step, longest = apart, max(longest, length)
                continue
        sizes.append(1)
        step, longest = 0, length
    return sizes


def in_place(
    sizes: Sequence[int], places: Sequence[int], lengths: Sequence[int], dtype: torch.dtype, device: torch.device
) -> Read:
    """Groups of so many rows, whose places are evenly spaced; each group is read as it lies, in one call."""
    masks = _mask(lengths, max(lengths), dtype, device).split(list(sizes))
    spans, end = [], 0
    for size, mask in zip(sizes, masks, strict=True):
        start, end = end, end + size
        first, last, seen = places[start], places[end - 1], lengths[start:end]
        rows = slice(first, last + 1, (last - first) // (size - 1) if size > 1 else 1)
        spans.append((rows, max(seen), None if min(seen) == max(seen) else mask[..., : max(seen)]))

    def read(queries: Tensor, stored: Tensor) -> Tensor:
        attended = []
        for of_group, (rows, used, mask) in zip(queries.split(list(sizes)), spans, strict=True):
            k, v = stored[:, rows, :used].transpose(2, 3)
            attended.append(functional.scaled_dot_product_attention(of_group, k, v, attn_mask=mask))
        return torch.cat(attended) if len(attended) > 1 else attended[0]

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
