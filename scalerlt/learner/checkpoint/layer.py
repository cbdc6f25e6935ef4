"""`checkpoint=layer`: the input of each layer in each loop is kept, K x L regions."""

from collections.abc import Callable

from torch import Tensor
from torch.utils.checkpoint import checkpoint


class LayerCheckpoint:
    """A layer's inside is computed again when its backward pass comes; one layer's activations are live at a time."""

    def layer(self, fn: Callable[..., Tensor], *tensors: Tensor) -> Tensor:
        """`fn(*tensors)`, of which only `tensors` are kept."""
        return checkpoint(fn, *tensors, use_reentrant=False, preserve_rng_state=False)

    def loop(self, fn: Callable[..., Tensor], *tensors: Tensor) -> Tensor:
        """`fn(*tensors)`."""
        return fn(*tensors)
