"""Bytes that a rollout moves, by what they are: weights, K/V read and written, readout."""

from collections.abc import Iterable
from dataclasses import dataclass

from torch import Tensor

from scalerlt.models.ouro import OuroForCausalLM
from scalerlt.rollout.stats import RolloutStats


@dataclass(frozen=True, kw_only=True)
class RolloutTraffic:
    """Algorithmic traffic of a rollout in bytes: each operand once for each product that it is an operand of.

    What no implementation has to move is left out: activations, padding, gathered copies of K/V, and an operand that a
    kernel reads again. A rollout therefore moves at least so much.

    Attributes:
        weights: each batched run of a loop reads the weights of the layers and of the final norm once, however many
            rows the batch has. With them the embedding's row of each token that was fed in, and the exit gate in each
            loop after which it was asked.
        kv_read: the attention of one sequence in one loop and layer reads the K and V of each position that it attends
            to once: n for a prompt of n tokens, p + 1 for a decode token at position p. With them what is copied.
        kv_written: K and V of each token in each loop and layer that it ran; of a token that stopped at depth d a copy
            for each of the K - d deeper loops; and those of a sequence that was moved to another slot, or of a prompt
            that was copied to the slots of further requests.
        readout: each batch of drawn tokens reads the output head once; logits are written once and read once.
    """

    weights: int
    kv_read: int
    kv_written: int
    readout: int

    @property
    def total(self) -> int:
        """All of it."""
        return self.weights + self.kv_read + self.kv_written + self.readout


def rollout_traffic(model: OuroForCausalLM, stats: RolloutStats) -> RolloutTraffic:
    """What the rollout of these stats moved, with the shapes and dtypes of the model that it ran."""
    config, size = model.config, model.dtype.itemsize
    loop = _nbytes(model.model.layers.parameters()) + _nbytes(model.model.norm.parameters())
    gate = model.model.early_exit_gate
    embedded = stats.prompt_tokens + stats.decode_depths.total()
    kv_row = 2 * config.num_hidden_layers * config.num_key_value_heads * config.head_dim * size
    return RolloutTraffic(
        weights=stats.loop_runs * loop
        + stats.gate_runs * (0 if gate is None else _nbytes(gate.parameters()))
        + embedded * config.hidden_size * size,
        kv_read=stats.kv_rows_read * kv_row,
        kv_written=stats.kv_rows_written * kv_row,
        readout=stats.readouts * _nbytes(model.lm_head.parameters())
        + 2 * stats.generated_tokens * config.vocab_size * size,
    )


def _nbytes(tensors: Iterable[Tensor]) -> int:
    return sum(tensor.nbytes for tensor in tensors)
