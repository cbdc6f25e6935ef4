"""`checkpoint=loop`: the input of each loop is kept, K regions."""

from collections.abc import Callable

from torch import Tensor
from torch.utils.checkpoint import checkpoint


class LoopCheckpoint:
    """A loop's inside is computed again when its backward pass comes; one loop's activations are live at a time."""

    def layer(self, fn: Callable[..., Tensor], *tensors: Tensor) -> Tensor:
        """`fn(*tensors)`."""
        return fn(*tensors)

    def loop(self, fn: Callable[..., Tensor], *tensors: Tensor) -> Tensor:
        """`fn(*tensors)`, of which only `tensors` are kept."""
        return checkpoint(fn, *tensors, use_reentrant=False, preserve_rng_state=False)
