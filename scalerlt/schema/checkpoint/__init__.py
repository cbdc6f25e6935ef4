"""Config group `checkpoint`: what the learner keeps for the backward pass and what it computes again."""

from pydantic import Field

from scalerlt.schema.fields import Target
from scalerlt.schema.registry import config_group


@config_group("checkpoint")
class Checkpoint:
    """An activation checkpoint schedule."""

    name: str
    target: Target = Field(alias="_target_")
