"""`checkpoint=loop`: the input of each loop is kept, K regions."""

from collections.abc import Callable

from torch import Tensor
from torch.utils.checkpoint import checkpoint

from scalerlt.models.ouro import Result


class LoopCheckpoint:
    """A loop's inside is computed again when its backward pass comes; one loop's activations are live at a time."""

    def layer(self, fn: Callable[..., Result], *tensors: Tensor) -> Result:
        """`fn(*tensors)`."""
        return fn(*tensors)

    def loop(self, fn: Callable[..., Result], *tensors: Tensor) -> Result:
        """`fn(*tensors)`, of which only `tensors` are kept."""
        result: Result = checkpoint(fn, *tensors, use_reentrant=False, preserve_rng_state=False)
        return result
