"""Whether tensors are still what they were: what is computed again from changed ones is not what was differentiated."""

from collections.abc import Mapping

from torch import Tensor


class Unchanged:
    """A record of tensors, by name, as they stand: which they are, and torch's count of changes in place.

    A change that torch does not count (through `.data` or another framework's view) is not seen.
    """

    def __init__(self, tensors: Mapping[str, Tensor]) -> None:
        self._found = [(name, tensor, _facts(tensor)) for name, tensor in tensors.items()]

    def check(self) -> None:
        """Nothing.

        Raises:
            RuntimeError: a tensor has been written to, moved, converted, frozen or thawed since.
        """
        changed = [name for name, tensor, facts in self._found if _facts(tensor) != facts]
        if changed:
            raise RuntimeError(f"changed between the forward and the backward pass: {', '.join(changed)}")


def _facts(tensor: Tensor) -> tuple[object, ...]:
    return tensor._version, tensor.data_ptr(), tensor.dtype, tensor.device, tensor.requires_grad
