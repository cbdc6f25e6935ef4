"""Config group `correction`: what is done about a rollout whose policy is not quite the learner's."""

from typing import TYPE_CHECKING

from pydantic import Field, model_validator

from scalerlt.schema.fields import PositiveFloat, Target
from scalerlt.schema.registry import config, config_group

if TYPE_CHECKING:
    from typing import Self

    from scalerlt.schema.cell import Cell
    from scalerlt.schema.machine import Machine


@config_group("correction", "none")
class NoCorrection:
    """`none`: sampled tokens count as if the learner's policy had sampled them."""

    name: str


@config_group("correction")
class Correction:
    """Multiplies the surrogate of each token by a factor from the ratio p_old / p_rollout of it or of its response."""

    name: str
    target: Target = Field(alias="_target_")

    def supports(self, cell: "Cell", machine: "Machine") -> str | None:
        """Why there is nothing to correct in the cell, or None."""
        if cell.algorithm.name != "grpo":
            return (
                f"correction={self.name}: algorithm={cell.algorithm.name} takes no ratio to old log-probs; "
                "use algorithm=grpo or correction=none"
            )
        if cell.logprob.old == "rollout":
            return (
                f"correction={self.name}: with logprob.old=rollout the ratio of old to rollout log-probs is 1; "
                "use logprob.old=dense or logprob.old=replay"
            )
        return None


@config
class Bounds(Correction):
    """A correction with bounds of a ratio.

    Attributes:
        low, high: what is outside of them is left out.
    """

    low: PositiveFloat
    high: PositiveFloat

    @model_validator(mode="after")
    def _check_bounds(self) -> "Self":
        if self.low > self.high:
            raise ValueError(f"low={self.low:g} is above high={self.high:g}")
        return self
