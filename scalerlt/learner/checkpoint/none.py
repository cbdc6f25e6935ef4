"""`checkpoint=none`: the whole graph is kept."""

from collections.abc import Callable

from torch import Tensor

from scalerlt.models.ouro import Result


class NoCheckpoint:
    """Everything is computed once."""

    def layer(self, fn: Callable[..., Result], *tensors: Tensor) -> Result:
        """`fn(*tensors)`."""
        return fn(*tensors)

    def loop(self, fn: Callable[..., Result], *tensors: Tensor) -> Result:
        """`fn(*tensors)`."""
        return fn(*tensors)
