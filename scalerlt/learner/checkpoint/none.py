"""`checkpoint=none`: the whole graph is kept."""

from collections.abc import Callable

from torch import Tensor


class NoCheckpoint:
    """Everything is computed once."""

    def layer(self, fn: Callable[..., Tensor], *tensors: Tensor) -> Tensor:
        """`fn(*tensors)`."""
        return fn(*tensors)

    def loop(self, fn: Callable[..., Tensor], *tensors: Tensor) -> Tensor:
        """`fn(*tensors)`."""
        return fn(*tensors)
