"""`experiment=actor_update`: one learner step: its time, its memory, and the error of its gradient."""

from typing import Annotated

from scalerlt.schema.experiment import RepeatedExperiment
from scalerlt.schema.fields import IdentityDefault, PositiveInt
from scalerlt.schema.registry import config_group


@config_group("experiment", "actor_update")
class ActorUpdate(RepeatedExperiment):
    """Measures a learner step.

    Attributes:
        reference_responses: how many responses of each prompt group the errors are taken over; None: all. Where a step
            takes seconds, the comparison with fp64 and without checkpoints takes most of a cell's time.
    """

    reference_responses: Annotated[PositiveInt | None, IdentityDefault(None)] = None
