"""Keys and values of every (loop, layer) for a fixed number of slots."""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from scalerlt.models.config import OuroConfig
from scalerlt.models.ouro import Attend, causal_attention
from scalerlt.rollout.decode_attention import KEY_BLOCK, by_key_blocks, gathered, in_place, row_by_row

GATHERED_BYTES = 64 * 1024
"""On a CPU: from so many bytes of keys on, K/V of another row's loop or slot are read where they are, by a call for
each row; below, such a call costs more than a copy that brings the rows together."""


class Row(NamedTuple):
    """A token that runs one loop: its slot, its position, and the loop, from 0."""

    slot: int
    position: int
    loop: int


class KVCache:
    """A preallocated pool: one plane per (loop, layer), each with `slots` sequences of up to `capacity` positions.

    Keys are stored after RoPE. Attention masks what a slot does not hold yet, so a slot may be reused as it stands;
    the pool starts with zeros because even a masked value must be finite.

    Args:
        config: shapes of the model.
        slots: sequences.
        capacity: positions of each.
        dtype: of keys and values.
        device: where they are.
        shared: one plane per layer that all loops write and read (`shared_kv`); of prompts it takes those of the last
            loop.
        key_blocks: attend to whole blocks of `KEY_BLOCK` keys and to no more of them than a row's own position needs,
            so that the outcome of a row does not depend on the others.

    Attributes:
        planes: planes per layer: K, or 1.
        nbytes: size of the pool.
    """

    def __init__(
        self,
        config: OuroConfig,
        *,
        slots: int,
        capacity: int,
        dtype: torch.dtype,
        device: torch.device | str,
        shared: bool = False,
        key_blocks: bool = False,
    ) -> None:
        self.planes = 1 if shared else config.total_ut_steps
        self._last_loop = config.total_ut_steps - 1
        self._layers = config.num_hidden_layers
        self._slots = slots
        self._key_blocks = key_blocks
        self._capacity = -(-capacity // KEY_BLOCK) * KEY_BLOCK if key_blocks else capacity
        heads = (config.num_key_value_heads, config.head_dim)
        shape = (2, self.planes, self._layers, slots, self._capacity, *heads)
        self._pool = torch.zeros(shape, dtype=dtype, device=device)
        self._keys, self._values = self._pool
        self.nbytes = self._pool.nbytes
        self._position_bytes = heads[0] * heads[1] * dtype.itemsize

    def copy(self, source: int, targets: list[int], length: int) -> None:
        """Copies the first `length` positions of slot `source` to other slots, in all planes."""
        self._pool[:, :, :, targets, :length] = self._pool[:, :, :, source : source + 1, :length]

    def prefill(self, slots: list[int], lengths: list[int]) -> Attend:
        """Attention for whole prompts, padded on the right, whose K/V it stores from position 0 on.

        Args:
            slots: where each row of the batch is stored.
            lengths: prompt length of each row; what is behind it is padding and not stored.
        """
        device = self._pool.device
        times = torch.arange(max(lengths), device=device)
        valid = times < torch.tensor(lengths, device=device)[:, None]
        source = valid.flatten().nonzero()[:, 0]
        target = (torch.tensor(slots, device=device)[:, None] * self._capacity + times)[valid]

        def attend(loop: int, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            if self.planes > 1 or loop == self._last_loop:
                plane = loop if self.planes > 1 else 0
                for pool, new in ((self._keys, k), (self._values, v)):
                    stored = pool[plane, layer].flatten(0, 1).flatten(1)
                    stored.index_copy_(0, target, new.flatten(2).flatten(0, 1)[source])
            return causal_attention(loop, layer, q, k, v)

        return attend

    def decode(self, rows: Sequence[Row]) -> Attend:
        """Attention for one new token in each row; it stores its K/V, then attends in its loop up to itself.

        The queries, keys and values that it takes are [n, heads, head_dim]; which loop is which row's own is known
        here, so the loop that `Attend` is told has no meaning.
        """
        device = self._pool.device
        slots = [row.slot for row in rows]
        planes = [row.loop if self.planes > 1 else 0 for row in rows]
        lengths = [row.position + 1 for row in rows]
        # A row of the pool of one layer, where planes lie `layers * slots` rows apart.
        first = [plane * self._layers * self._slots + slot for plane, slot in zip(planes, slots, strict=True)]
        places = torch.tensor(first, device=device)
        targets = places * self._capacity + torch.tensor([length - 1 for length in lengths], device=device)
        stored = self._pool.flatten(1, 3)
        flat_keys, flat_values = stored.flatten(1, 2).flatten(2)
        dtype = stored.dtype
        if self._key_blocks:
            read = by_key_blocks(places, lengths, dtype)
        elif first == list(range(first[0], first[0] + len(first))):
            read = in_place(first[0], lengths, dtype, device)
        elif device.type == "cpu" and max(lengths) * self._position_bytes > GATHERED_BYTES:
            read = row_by_row(first, lengths)
        else:
            read = gathered(places, lengths, dtype)

        def attend(loop: int, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            offset = layer * self._slots
            flat_keys.index_copy_(0, targets + offset * self._capacity, k.flatten(1))
            flat_values.index_copy_(0, targets + offset * self._capacity, v.flatten(1))
            # The query heads that share a K/V head become the rows of one product.
            return read(q.unflatten(1, (k.shape[1], -1)), stored[:, offset:]).reshape(q.shape)

        return attend

    def copy_to_deeper(self, rows: Sequence[Row]) -> None:
        """Makes the K/V of each row, in all layers, those of every loop that is deeper than its own too."""
        deeper = [(index, loop) for index, row in enumerate(rows) for loop in range(row.loop + 1, self.planes)]
        if not deeper:
            return
        device = self._pool.device
        loop, slot, position = torch.tensor([(r.loop, r.slot, r.position) for r in rows], device=device).T
        source, target = torch.tensor(deeper, device=device).T
        last = self._pool[:, loop, :, slot, position]
        self._pool[:, target, :, slot[source], position[source]] = last[source]
