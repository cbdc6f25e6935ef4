"""Keys and values of every (loop, layer) for a fixed number of slots."""

import torch
from torch import Tensor
from torch.nn import functional

from scalerlt.models.config import OuroConfig
from scalerlt.models.ouro import Attend, causal_attention


class KVCache:
    """A preallocated pool: one plane per (loop, layer), each with `slots` sequences of up to `capacity` positions.

    Keys are stored after RoPE. Attention masks what a slot does not hold yet, so a slot may be reused as it stands;
    the pool starts with zeros because even a masked value must be finite.

    Attributes:
        nbytes: size of the pool.
    """

    def __init__(
        self, config: OuroConfig, *, slots: int, capacity: int, dtype: torch.dtype, device: torch.device | str
    ) -> None:
        planes = config.total_ut_steps * config.num_hidden_layers
        shape = (planes, slots, capacity, config.num_key_value_heads, config.head_dim)
        self._loops = config.total_ut_steps
        self._layers = config.num_hidden_layers
        self._capacity = capacity
        self._keys = torch.zeros(shape, dtype=dtype, device=device)
        self._values = torch.zeros(shape, dtype=dtype, device=device)
        # The same planes with all positions of all slots in one row, for writing.
        self._flat_keys = self._keys.flatten(3).flatten(1, 2)
        self._flat_values = self._values.flatten(3).flatten(1, 2)
        self.nbytes = 2 * self._keys.numel() * self._keys.element_size()

    def copy(self, source: int, targets: list[int], length: int) -> None:
        """Copies the first `length` positions of slot `source` to other slots, in all planes."""
        for pool in (self._keys, self._values):
            pool[:, targets, :length] = pool[:, source : source + 1, :length]

    def prefill(self, slots: list[int], lengths: list[int]) -> Attend:
        """Attention for whole prompts, padded on the right, whose K/V it stores from position 0 on.

        Args:
            slots: where each row of the batch is stored.
            lengths: prompt length of each row; what is behind it is padding and not stored.
        """
        device = self._keys.device
        times = torch.arange(max(lengths), device=device)
        valid = times < torch.tensor(lengths, device=device)[:, None]
        source = valid.flatten().nonzero()[:, 0]
        target = (torch.tensor(slots, device=device)[:, None] * self._capacity + times)[valid]

        def attend(loop: int, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            plane = loop * self._layers + layer
            self._flat_keys[plane].index_copy_(0, target, k.flatten(2).flatten(0, 1)[source])
            self._flat_values[plane].index_copy_(0, target, v.flatten(2).flatten(0, 1)[source])
            return causal_attention(loop, layer, q, k, v)

        return attend

    def decode(self, positions: Tensor, used: int, slots: Tensor | None = None) -> Attend:
        """Attention for one new token in each of n slots; stores its K/V, then attends up to itself.

        Args:
            positions: [n] int64, where the new tokens stand in their sequences.
            used: 1 + the largest of them; no more than this is read.
            slots: [n] int64, whose tokens they are; None: slots 0 .. n-1, which are read in place.
        """
        count = len(positions)
        device = positions.device
        target = (torch.arange(count, device=device) if slots is None else slots) * self._capacity + positions
        unseen = torch.arange(used, device=device) > positions[:, None]
        mask = torch.zeros(unseen.shape, dtype=self._keys.dtype, device=device).masked_fill_(unseen, -torch.inf)
        mask = mask[:, None, None, :]

        def read(pool: Tensor, plane: int) -> Tensor:
            stored = pool[plane, :, :used]
            return (stored[:count] if slots is None else stored.index_select(0, slots)).transpose(1, 2)

        def attend(loop: int, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            plane = loop * self._layers + layer
            self._flat_keys[plane].index_copy_(0, target, k.flatten(1))
            self._flat_values[plane].index_copy_(0, target, v.flatten(1))
            # The query heads that share a K/V head become the rows of one product.
            queries = q.view(count, k.shape[2], -1, q.shape[-1])
            attended = functional.scaled_dot_product_attention(
                queries, read(self._keys, plane), read(self._values, plane), attn_mask=mask
            )
            return attended.reshape(q.shape)

        return attend

    def copy_to_deeper(self, slots: Tensor, positions: Tensor, depth: int) -> None:
        """Makes the K/V of loop `depth`, from 1, those of every deeper loop too, in all layers.

        Args:
            slots: [n] int64.
            positions: [n] int64, the one position of each slot that is meant.
            depth: the loop, from 1, after which these tokens stopped.
        """
        rows = slots * self._capacity + positions
        for pool in (self._flat_keys, self._flat_values):
            loops = pool.unflatten(0, (self._loops, self._layers))
            loops[depth:, :, rows] = loops[depth - 1, :, rows]
