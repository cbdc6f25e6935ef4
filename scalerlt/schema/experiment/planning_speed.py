"""`experiment=planning_speed`: how long a user waits for a plan."""

from typing import ClassVar

from scalerlt.schema.experiment import Experiment
from scalerlt.schema.fields import PositiveInt
from scalerlt.schema.registry import config_group


@config_group("experiment", "planning_speed")
class PlanningSpeed(Experiment):
    """Runs `scalerlt plan` on a request, and Hydra's own composition on some of its cells.

    Attributes:
        kind: a word for the request, such as values or combinations.
        request: the overrides that are planned, separated by spaces.
        repeats: how often the plan is made, each time by a fresh interpreter.
        hydra_cells: how many of the cells plain Hydra composes, spread evenly over the request.
    """

    timed: ClassVar[bool] = True
    kind: str
    request: str
    repeats: PositiveInt
    hydra_cells: PositiveInt
