"""Config group `checkpoint`: what the learner keeps for the backward pass and what it computes again."""

from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import Field, model_validator

from scalerlt.schema.fields import IdentityDefault, PositiveInt, Target
from scalerlt.schema.registry import config_group

if TYPE_CHECKING:
    from typing import Self

TILE = 2048


@config_group("checkpoint")
class Checkpoint:
    """An activation checkpoint schedule, and how hidden states become log-probs.

    Attributes:
        readout: `full`: all logits of a micro-batch at once, kept for the backward pass. `tiled`: a part of the
            vocabulary at a time, and again in the backward pass; no logits are kept.
        readout_tile: tokens of the vocabulary in a part; of the tiled readout alone.
    """

    name: str
    target: Target = Field(alias="_target_")
    readout: Annotated[Literal["full", "tiled"], IdentityDefault("full")] = "full"
    readout_tile: Annotated[PositiveInt, IdentityDefault(TILE)] = TILE

    @model_validator(mode="after")
    def _check_readout(self) -> "Self":
        if self.readout == "full" and self.readout_tile != TILE:
            raise ValueError(f"readout_tile={self.readout_tile} is of readout=tiled; readout=full has no tiles")
        return self
