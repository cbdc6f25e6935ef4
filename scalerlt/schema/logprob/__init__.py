"""Config group `logprob`: how the learner evaluates the sampled tokens."""

from typing import TYPE_CHECKING, Annotated, Literal

from scalerlt.schema.fields import IdentityDefault
from scalerlt.schema.registry import config_group

if TYPE_CHECKING:
    from scalerlt.schema.cell import Cell
    from scalerlt.schema.machine import Machine


@config_group("logprob")
class Logprob:
    """`dense`: every token at full depth, teacher-forced in one causal pass. `replay`: the rollout's own schedule, from
    recorded tokens and exit depths. `hybrid`: the value of replay with the gradient of dense.

    Attributes:
        old: where the log-probs come from that ratios are taken against: the rollout's record, or evaluated again
            before the first update on them.
    """

    name: str
    old: Annotated[Literal["rollout", "dense", "replay"], IdentityDefault("rollout")] = "rollout"

    def supports(self, cell: "Cell", machine: "Machine") -> str | None:
        """Why the objective of the cell cannot use these log-probs, or None."""
        if self.old != "rollout" and cell.algorithm.name != "grpo":
            return (
                f"logprob.old={self.old}: algorithm={cell.algorithm.name} takes no ratio to old log-probs; use rollout"
            )
        return None
