"""`rollout=last_exited`: decode tokens stop early, their deeper K/V are copies."""

from typing import Annotated, Literal

from pydantic import Field

from scalerlt.schema.fields import NotIdentity, PositiveFloat, PositiveInt, Target
from scalerlt.schema.registry import config_group
from scalerlt.schema.rollout import Rollout


@config_group("rollout", "last_exited")
class LastExited(Rollout):
    """A decode token stops once its exit gate has put enough probability on the loops so far.

    Attributes:
        check: a torch-free function that says whether the model has the loops asked for.
        exit_threshold: that probability; 1 or more: the gate is not asked, and every token runs `max_loops`.
        min_loops: fewest loops of a decode token.
        max_loops: most loops of a decode token; null: K.
    """

    schedule: Literal["last_exited"]
    check: Annotated[Target, Field(alias="_check_"), NotIdentity()]
    exit_threshold: PositiveFloat
    min_loops: PositiveInt
    max_loops: PositiveInt | None
