"""`optimizer=adamw`."""

from scalerlt.schema.fields import PositiveFloat, UnitInterval
from scalerlt.schema.optimizer import Optimizer
from scalerlt.schema.registry import config_group


@config_group("optimizer", "adamw")
class AdamW(Optimizer):
    """AdamW (arXiv 1711.05101)."""

    beta1: UnitInterval
    beta2: UnitInterval
    eps: PositiveFloat
