"""Config group `experiment`: what is measured."""

from typing import Annotated, ClassVar

from pydantic import Field

from scalerlt.schema.fields import NonNegativeInt, NotIdentity, PositiveInt, Target
from scalerlt.schema.registry import config, config_group


@config
class Experiment:
    """What every kind of measurement has.

    Attributes:
        target: the function `run(cell, recorder)`.
        check: a torch-free function that looks at what the cell needs before work starts and says what is wrong.
        timed: whether its figures are times, which what runs beside it would change.
        distributed: whether it can run as several ranks.
    """

    timed: ClassVar[bool] = False
    distributed: ClassVar[bool] = False
    name: str
    target: Target = Field(alias="_target_")
    check: Annotated[Target | None, Field(alias="_check_"), NotIdentity()] = None


@config_group("experiment")
class RepeatedExperiment(Experiment):
    """A measurement that repeats one piece of work in one process.

    Attributes:
        warmup: repeats that are run and not counted.
        repeats: repeats that are measured (not a sample: cohorts are).
    """

    timed: ClassVar[bool] = True
    warmup: NonNegativeInt
    repeats: PositiveInt
