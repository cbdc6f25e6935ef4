"""`optimizer=sgd`."""

from scalerlt.schema.fields import UnitInterval
from scalerlt.schema.optimizer import Optimizer
from scalerlt.schema.registry import config_group


@config_group("optimizer", "sgd")
class Sgd(Optimizer):
    """Stochastic gradient descent with momentum."""

    momentum: UnitInterval
