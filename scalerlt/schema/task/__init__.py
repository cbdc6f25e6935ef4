"""Config group `task`: the problems, and the recorded rollouts that a learner step is measured on."""

from typing import Annotated

from scalerlt.schema.fields import FileInput
from scalerlt.schema.registry import config_group


@config_group("task")
class Task:
    """What every task has.

    Attributes:
        rollouts: a file of recorded rollouts for `actor_update`.
    """

    name: str
    rollouts: Annotated[str, FileInput()]
