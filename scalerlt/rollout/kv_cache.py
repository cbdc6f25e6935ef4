"""Keys and values of every (loop, layer) for a fixed number of slots."""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from scalerlt.models.config import OuroConfig
from scalerlt.models.ouro import Attend, causal_attention
from scalerlt.rollout.decode_attention import KEY_BLOCK, Read, by_key_blocks, evenly_spaced, gathered, in_place

CALL_BYTES = 64 * 1024
"""On a CPU: so many bytes of keys take as long to read and to copy as a call of attention takes beside its work."""


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
        # Where the keys and the values of each layer begin, in positions: [2 * layers, 1].
        begins = torch.arange(2 * self.planes * self._layers, device=device) * (slots * self._capacity)
        self._of_layers = begins.view(2, self.planes, -1)[:, 0].reshape(-1, 1)
        self.nbytes = self._pool.nbytes
        self._position_bytes = heads[0] * heads[1] * dtype.itemsize

    def copy(self, source: int, targets: list[int], length: int) -> None:
        """Copies the first `length` positions of slot `source` to other slots, in all planes."""
        self._pool[:, :, :, targets, :length] = self._pool[:, :, :, source : source + 1, :length]

    def reads_in_place(self, length: int) -> bool:
        """Whether the K/V of sequences of so many positions are read where they lie, whichever slots that are.

        Shorter ones, and all on a GPU, are copied together for each attention unless their places are evenly spaced.
        """
        return self._pool.device.type == "cpu" and length * self._position_bytes > CALL_BYTES

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

    def place(self, row: Row) -> int:
        """Where the K/V lie that a row reads; rows in the order of their places are read in few calls."""
        # Of the pool of one layer, where planes lie `layers * slots` sequences apart.
        return (row.loop * self._layers * self._slots if self.planes > 1 else 0) + row.slot

    def decode(self, rows: Sequence[Row]) -> Attend:
        """Attention for one new token in each row; it stores its K/V, then attends in its loop up to itself.

        The queries, keys and values that it takes are [n, heads, head_dim]; which loop is which row's own is known
        here, so the loop that `Attend` is told has no meaning.
        """
        device = self._pool.device
        lengths = [row.position + 1 for row in rows]
        first = [self.place(row) for row in rows]
        places = torch.tensor(first, device=device)
        targets = places * self._capacity + torch.tensor([length - 1 for length in lengths], device=device)
        stored = self._pool.flatten(1, 3)
        flat_keys, flat_values = stored.flatten(1, 2).flatten(2)
        read = self._reading(first, places, lengths)

        def attend(loop: int, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            offset = layer * self._slots
            flat_keys.index_copy_(0, targets + offset * self._capacity, k.flatten(1))
            flat_values.index_copy_(0, targets + offset * self._capacity, v.flatten(1))
            # The query heads that share a K/V head become the rows of one product.
            return read(q.unflatten(1, (k.shape[1], -1)), stored[:, offset:]).reshape(q.shape)

        return attend

    def _reading(self, first: Sequence[int], places: Tensor, lengths: Sequence[int]) -> Read:
        """How rows of these places and lengths are read."""
        dtype, device = self._pool.dtype, self._pool.device
        if self._key_blocks:
            return by_key_blocks(places, lengths, dtype)
        in_several_calls = self.reads_in_place(max(lengths))
        unseen = CALL_BYTES // self._position_bytes if in_several_calls else None
        sizes = evenly_spaced(first, lengths, unseen=unseen)
        if len(sizes) == 1 or in_several_calls:
            return in_place(sizes, first, lengths, dtype, device)
        return gathered(places, lengths, dtype)

    def copy_to_deeper(self, rows: Sequence[Row]) -> None:
        """Makes the K/V of each row, in all layers, those of every loop that is deeper than its own too."""
        deeper = [(row.loop, loop, *row[:2]) for row in rows for loop in range(row.loop + 1, self.planes)]
        if not deeper:
            return
        source, target, slot, position = torch.tensor(deeper, device=self._pool.device).T
        # As positions of all planes in one line: indices in five dimensions take a way that is twice as slow.
        line = self._pool.flatten(0, 4).flatten(1)
        at = slot * self._capacity + position + self._of_layers
        plane = self._layers * self._slots * self._capacity
        line.index_copy_(0, (target * plane + at).flatten(), line.index_select(0, (source * plane + at).flatten()))
