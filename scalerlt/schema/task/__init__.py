"""Config group `task`: the problems, and the rollouts that a learner step is measured on."""

from typing import Annotated

from scalerlt.schema.fields import FileInput
from scalerlt.schema.registry import config, config_group


@config
class Task:
    """What every task has."""

    name: str


@config_group("task")
class RecordedTask(Task):
    """A task with recorded rollouts.

    Attributes:
        rollouts: a file of recorded rollouts for `actor_update`.
    """

    rollouts: Annotated[str, FileInput()]
