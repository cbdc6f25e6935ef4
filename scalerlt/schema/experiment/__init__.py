"""Config group `experiment`: what is measured."""

from typing import Annotated

from pydantic import Field

from scalerlt.schema.fields import NonNegativeInt, NotIdentity, PositiveInt, Target
from scalerlt.schema.registry import config_group


@config_group("experiment")
class Experiment:
    """A kind of measurement.

    Attributes:
        target: the function `run(cell, recorder)`.
        check: a torch-free function that looks at what the cell needs before work starts and says what is wrong.
        warmup: repeats that are run and not counted.
        repeats: repeats that are measured, in one process (not a sample: cohorts are).
    """

    name: str
    target: Target = Field(alias="_target_")
    check: Annotated[Target | None, Field(alias="_check_"), NotIdentity()] = None
    warmup: NonNegativeInt
    repeats: PositiveInt
