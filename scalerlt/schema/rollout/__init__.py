"""Config group `rollout`: how responses are generated."""

from typing import Annotated, Literal

from pydantic import Field

from scalerlt.schema.fields import Flag, IdentityDefault, NonNegativeFloat, PositiveInt, Target
from scalerlt.schema.registry import config, config_group


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
        max_new_tokens: the longest response.
        ignore_eos: generate exactly `max_new_tokens` (fixed work) instead of stopping at the end of text.
    """

    name: str
    schedule: str
    engine: Engine
    temperature: NonNegativeFloat
    max_new_tokens: PositiveInt
    ignore_eos: Flag


@config_group("rollout")
class DenseRollout(Rollout):
    """Every token runs all K loops."""

    schedule: Literal["dense"]
