"""What a cell cannot have of `rollout/engine=vllm` and `rollout/engine=hf`."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from scalerlt.schema.cell import Cell

PRECISIONS = ("fp32", "bf16", "fp16")
LEAST_TEMPERATURE = 0.01
"""vLLM draws at this temperature where a lower one above 0 is asked for."""
CPU_HEADS = (32, 64, 80, 96, 112, 128, 160, 192, 224, 256, 512)
"""Head dimensions of vLLM's attention on a CPU (0.32, `CPUAttentionBackend`)."""

CPU_BLOCK = 32
"""Positions of a block of vLLM's K/V on a CPU, the smallest for which its attention there is made; its default is 128,
and the prefix cache serves whole blocks."""
DEFAULT_POOL = 2**30
"""Bytes of vLLM's K/V pool on a CPU, at most, where none is asked for; it then runs again what does not fit."""


def vllm_fault(cell: "Cell") -> str | None:
    """The first reason why vLLM cannot generate as the cell asks, or None."""
    rollout, asks = cell.rollout, "rollout/engine=vllm"
    if rollout.schedule != "dense":
        return (
            f"{asks} runs every token through all loops: vLLM's model runner has one depth for a whole batch and reads "
            f"no exit gate, so rollout={rollout.name} cannot stop earlier; use rollout=dense or greedy, or "
            "rollout/engine=native"
        )
    if rollout.deterministic:
        return f"rollout.deterministic=true: {asks} forms batches as it likes; use rollout/engine=native"
    if (precision := rollout.precision or cell.precision.name) not in PRECISIONS:
        return f"{asks} has no {precision}; use one of {', '.join(PRECISIONS)}"
    if 0 < rollout.temperature < LEAST_TEMPERATURE:
        return (
            f"rollout.temperature={rollout.temperature:g}: vLLM draws at no lower temperature than {LEAST_TEMPERATURE} "
            "above 0; use 0 (greedy) or more"
        )
    return _device_fault(cell) or _experiment_fault(cell)


def pool_bytes(slots: int, length: int, kv_cache_tokens: int | None, position_bytes: int) -> int:
    """The K/V pool that vLLM is started with: as asked, else enough for every slot within `DEFAULT_POOL`.

    Args:
        length: most positions of a sequence.
        position_bytes: of the K and V of one position.
    """
    if kv_cache_tokens is not None:  # one block is never given to a request
        return (kv_cache_tokens + 2 * CPU_BLOCK) * position_bytes
    whole = slots * (length + CPU_BLOCK) * position_bytes
    return max(min(whole, DEFAULT_POOL), (length + 2 * CPU_BLOCK) * position_bytes)


def hf_fault(cell: "Cell") -> str | None:
    """The first reason why transformers' `generate` cannot serve the cell, or None."""
    rollout, asks = cell.rollout, "rollout/engine=hf"
    if cell.model.sandwich_norms:
        return f"{asks}: transformers has no looped models, and model={cell.model.name} is one; use model=hf"
    if rollout.deterministic or rollout.engine.shared_prefill:
        return (
            f"{asks} runs padded batches and keeps no prompts: use rollout.deterministic=false and "
            "rollout.engine.shared_prefill=false"
        )
    return _experiment_fault(cell)


def _device_fault(cell: "Cell") -> str | None:
    if cell.device.type != "cpu":
        return None
    if cell.model.head_dim not in CPU_HEADS:
        return (
            f"rollout/engine=vllm on a CPU has attention for head dimensions {', '.join(map(str, CPU_HEADS))}, and "
            f"model={cell.model.name} has {cell.model.head_dim}; use model=small_ouro, or rollout/engine=native"
        )
    if cell.rollout.engine.sleep:
        return "rollout.engine.sleep=true: vLLM gives back a GPU's memory, not a CPU's; use false"
    return None


def _experiment_fault(cell: "Cell") -> str | None:
    asks = f"rollout/engine={cell.rollout.engine.name}"
    if lag := getattr(cell.experiment, "lag", 0):
        return f"experiment.lag={lag}: {asks} serves one policy at a time; use 0"
    if getattr(cell.experiment, "replay", False):
        return f"experiment.replay=true: {asks} takes no tokens to be forced to; use false"
    return None
