"""`algorithm=rltt`: credit for the predictions after every loop."""

from typing import TYPE_CHECKING, Literal

from scalerlt.schema.algorithm import Algorithm
from scalerlt.schema.algorithm.grpo import lone_responses
from scalerlt.schema.fields import NonNegativeFloat
from scalerlt.schema.registry import config_group

if TYPE_CHECKING:
    from scalerlt.schema.cell import Cell
    from scalerlt.schema.machine import Machine


@config_group("algorithm", "rltt")
class Rltt(Algorithm):
    """RLTT (arXiv 2602.10520), progressive weights; advantages are computed from the rewards.

    Attributes:
        advantage, ddof: as of `algorithm=grpo`.
        alpha: loop r has credit in proportion to r^alpha; 0 is uniform.
        kl_coef: of the last loop's KL divergence to the frozen initial policy (k3); 0: none.
    """

    advantage: Literal["group_std", "leave_one_out"]
    ddof: Literal[0, 1]
    alpha: NonNegativeFloat
    kl_coef: NonNegativeFloat

    def supports(self, cell: "Cell", machine: "Machine") -> str | None:
        """Why this algorithm cannot run in the cell, or None."""
        if cell.logprob.name != "dense":
            return f"algorithm=rltt reads out after every loop, which logprob={cell.logprob.name} has not; use dense"
        return lone_responses(cell)
