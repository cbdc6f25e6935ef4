"""Config group `rollout`: how responses are generated."""

from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import Field

from scalerlt.schema.fields import Flag, IdentityDefault, NonNegativeFloat, NonNegativeInt, PositiveInt, Target
from scalerlt.schema.registry import config, config_group

if TYPE_CHECKING:
    from scalerlt.schema.cell import Cell
    from scalerlt.schema.machine import Machine


@config
class Engine:
    """The program that generates: `rollout/engine=native`.

    Attributes:
        shared_prefill: run a prompt once for those of its responses that are admitted together.
    """

    name: str
    target: Target = Field(alias="_target_")
    shared_prefill: Annotated[Flag, IdentityDefault(False)] = False


@config
class Rollout:
    """What all rollout schedules share.

    Attributes:
        temperature: divides the logits; 0 is greedy.
        top_k: draw from so many most probable tokens; 0: from all.
        top_p: draw from the fewest most probable tokens whose probabilities sum to at least this; 1: from all.
        max_new_tokens: the longest response.
        ignore_eos: generate exactly `max_new_tokens` (fixed work) instead of stopping at the end of text.
    """

    name: str
    schedule: str
    engine: Engine
    temperature: NonNegativeFloat
    top_k: Annotated[NonNegativeInt, IdentityDefault(0)] = 0
    top_p: Annotated[float, Field(gt=0, le=1), IdentityDefault(1.0)] = 1.0
    max_new_tokens: PositiveInt
    ignore_eos: Flag

    def supports(self, cell: "Cell", machine: "Machine") -> str | None:
        """Why responses cannot be generated so in the cell, or None."""
        if (self.top_k or self.top_p < 1) and cell.experiment.name == "gsm8k_reward":
            return (
                f"rollout.top_k={self.top_k}, rollout.top_p={self.top_p:g}: the learner's log-probs are of the whole "
                "vocabulary; train with top_k=0 and top_p=1"
            )
        return None


@config_group("rollout")
class DenseRollout(Rollout):
    """Every token runs all K loops."""

    schedule: Literal["dense"]
