"""`checkpoint=layer`: the input of each layer in each loop is kept, K x L regions."""

from collections.abc import Callable

from torch import Tensor
from torch.utils.checkpoint import checkpoint

from scalerlt.models.ouro import Result


class LayerCheckpoint:
    """A layer's inside is computed again when its backward pass comes; one layer's activations are live at a time."""

    def layer(self, fn: Callable[..., Result], *tensors: Tensor) -> Result:
        """`fn(*tensors)`, of which only `tensors` are kept."""
        result: Result = checkpoint(fn, *tensors, use_reentrant=False, preserve_rng_state=False)
        return result

    def loop(self, fn: Callable[..., Result], *tensors: Tensor) -> Result:
        """`fn(*tensors)`."""
        return fn(*tensors)
