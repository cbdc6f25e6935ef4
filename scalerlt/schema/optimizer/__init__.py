"""Config group `optimizer`."""

from scalerlt.schema.fields import NonNegativeFloat, PositiveFloat
from scalerlt.schema.registry import config_group


@config_group("optimizer")
class Optimizer:
    """What every optimizer has.

    Attributes:
        max_grad_norm: clip the global gradient norm to this, or null.
    """

    name: str
    learning_rate: PositiveFloat
    weight_decay: NonNegativeFloat
    max_grad_norm: PositiveFloat | None
