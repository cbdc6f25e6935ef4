"""Bytes that autograd keeps for the backward pass."""

from collections.abc import Iterable
from types import TracebackType

import torch
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks

_StorageKey = tuple[torch.device, int]


class SavedTensors:
    """Counts, while it is entered, the storages that autograd holds for backward passes.

    Each storage counts once, with its whole size, however many tensors and views of it are saved; it counts until
    the last of them is released. What a checkpointed region keeps is its inputs, so they count and its inner tensors
    do not; tensors saved while such a region is computed again belong to that region and do not count either.

    Args:
        exclude: tensors whose storages do not count: the parameters. They are told apart by their storage's address,
            so views of a parameter (a transposed weight) are excluded with it, and a copy in another dtype is not.

    Attributes:
        peak_bytes: the largest number of bytes held at one time.
    """

    def __init__(self, exclude: Iterable[Tensor] = ()) -> None:
        self.peak_bytes = 0
        self._held_bytes = 0
        self._holders: dict[_StorageKey, int] = {}
        self._excluded = {_key(tensor) for tensor in exclude}
        self._hooks = saved_tensors_hooks(self._pack, lambda kept: kept.tensor)

    def __enter__(self) -> "SavedTensors":
        self._hooks.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._hooks.__exit__(kind, error, trace)

    def _pack(self, tensor: Tensor) -> "_Kept":
        # Detached: a saved output that led back to its own node would be a reference cycle, and never be released.
        kept = _Kept(tensor.detach())
        key, size = _key(tensor), tensor.untyped_storage().nbytes()
        if size and key not in self._excluded:
            self._hold(key, size)
            kept.watch(self, key, size)
        return kept

    def _hold(self, key: _StorageKey, size: int) -> None:
        holders = self._holders.get(key, 0)
        self._holders[key] = holders + 1
        if holders == 0:
            self._held_bytes += size
            self.peak_bytes = max(self.peak_bytes, self._held_bytes)

    def release(self, key: _StorageKey, size: int) -> None:
        """One saved tensor of this storage is gone."""
        self._holders[key] -= 1
        if self._holders[key] == 0:
            del self._holders[key]
            self._held_bytes -= size


class _Kept:
    """What autograd keeps in place of a tensor: it lives exactly as long as the saved tensor."""

    __slots__ = ("_counter", "_key", "_size", "tensor")

    def __init__(self, tensor: Tensor) -> None:
        self.tensor = tensor
        self._counter: SavedTensors | None = None

    def watch(self, counter: SavedTensors, key: _StorageKey, size: int) -> None:
        self._counter, self._key, self._size = counter, key, size

    def __del__(self) -> None:
        if self._counter is not None:
            self._counter.release(self._key, self._size)


def _key(tensor: Tensor) -> _StorageKey:
    return tensor.device, tensor.untyped_storage().data_ptr()
