"""What a cell cannot have of `rollout/engine=vllm`."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from scalerlt.schema.cell import Cell

PRECISIONS = ("fp32", "bf16", "fp16")
LEAST_TEMPERATURE = 0.01
"""vLLM draws at this temperature where a lower one above 0 is asked for."""
CPU_HEADS = (32, 64, 80, 96, 112, 128, 160, 192, 224, 256, 512)
"""Head dimensions of vLLM's attention on a CPU (0.32, `CPUAttentionBackend`)."""


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
    if lag := getattr(cell.experiment, "lag", 0):
        return f"experiment.lag={lag}: rollout/engine=vllm serves one policy at a time; use 0"
    if getattr(cell.experiment, "replay", False):
        return "experiment.replay=true: rollout/engine=vllm takes no tokens to be forced to; use false"
    return None
