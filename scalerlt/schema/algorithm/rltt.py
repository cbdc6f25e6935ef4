"""`algorithm=rltt`: credit for the predictions after every loop."""

from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import model_validator

from scalerlt.schema.algorithm import Algorithm
from scalerlt.schema.algorithm.grpo import lone_responses
from scalerlt.schema.fields import IdentityDefault, NonNegativeFloat
from scalerlt.schema.registry import config_group

if TYPE_CHECKING:
    from typing import Self

    from scalerlt.schema.cell import Cell
    from scalerlt.schema.machine import Machine


@config_group("algorithm", "rltt")
class Rltt(Algorithm):
    """RLTT (arXiv 2602.10520); advantages are computed from the rewards.

    Attributes:
        advantage, ddof: as of `algorithm=grpo`.
        credit: `progressive`: loop r has credit in proportion to r^alpha. `exit_distribution`: it has the probability
            that the exit gate, which is frozen, gives to depth r at the position that predicts the token.
        alpha: of progressive credit; 0 is uniform. The exit distribution has none: leave it 0.
        kl_coef: of the last loop's KL divergence to the frozen initial policy (k3); 0: none.
    """

    advantage: Literal["group_std", "leave_one_out"]
    ddof: Literal[0, 1]
    credit: Annotated[Literal["progressive", "exit_distribution"], IdentityDefault("progressive")] = "progressive"
    alpha: NonNegativeFloat
    kl_coef: NonNegativeFloat

    @model_validator(mode="after")
    def _check_alpha(self) -> "Self":
        if self.credit == "exit_distribution" and self.alpha:
            raise ValueError(f"alpha={self.alpha:g} is of credit=progressive; credit=exit_distribution has none")
        return self

    def supports(self, cell: "Cell", machine: "Machine") -> str | None:
        """Why this algorithm cannot run in the cell, or None."""
        if cell.logprob.name != "dense":
            return f"algorithm=rltt reads out after every loop, which logprob={cell.logprob.name} has not; use dense"
        return lone_responses(cell)
