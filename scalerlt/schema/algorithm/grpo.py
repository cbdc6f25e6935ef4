"""`algorithm=grpo`: clipped ratios with advantages of prompt groups."""

from typing import TYPE_CHECKING, Literal

from scalerlt.schema.algorithm import Algorithm
from scalerlt.schema.fields import NonNegativeFloat, UnitInterval
from scalerlt.schema.registry import config_group

if TYPE_CHECKING:
    from scalerlt.schema.cell import Cell
    from scalerlt.schema.machine import Machine


@config_group("algorithm", "grpo")
class Grpo(Algorithm):
    """GRPO (arXiv 2402.03300); advantages are computed from the rewards, whatever the record holds.

    Attributes:
        advantage: `group_std`, (R - mean) / (std + 1e-6) within the prompt group; `leave_one_out`, R less the mean of
            the others.
        ddof: of the standard deviation, which divides by group_size - ddof.
        clip_low, clip_high: the ratio to the old policy is clipped to [1 - clip_low, 1 + clip_high].
        kl_coef: of the KL divergence to the frozen initial policy (k3); 0: none.
    """

    advantage: Literal["group_std", "leave_one_out"]
    ddof: Literal[0, 1]
    clip_low: UnitInterval
    clip_high: NonNegativeFloat
    kl_coef: NonNegativeFloat

    def supports(self, cell: "Cell", machine: "Machine") -> str | None:
        """Why this algorithm cannot run in the cell, or None."""
        return lone_responses(cell)


def lone_responses(cell: "Cell") -> str | None:
    """The reason, where prompt groups of one response leave nothing to compare."""
    if cell.batch.group_size > 1:
        return None
    return f"algorithm={cell.algorithm.name}: batch.group_size=1 makes every advantage zero; use at least 2"
