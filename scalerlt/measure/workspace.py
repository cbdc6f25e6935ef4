"""What a kernel allocates for itself and frees before it returns: a contiguous copy of an operand, partial sums."""

import os
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, Protocol

import torch
from torch.autograd.profiler import profile

from scalerlt.measure.live_memory import CudaAllocator, allocation_of, events_below

_OPERATION = "scalerlt.operation"


class Workspace(Protocol):
    """Measures the workspace of operations that run one after the other."""

    def tracing(self) -> AbstractContextManager[None]:
        """Operations run inside; once per object."""

    def operation(self) -> AbstractContextManager[None]:
        """One operation runs inside."""

    def sizes(self) -> list[int]:
        """Of each operation, in their order: the most bytes it held beyond those that it left allocated."""


class CpuWorkspace:
    """By the events of the CPU's allocator, from torch's profiler."""

    def __init__(self) -> None:
        os.environ.setdefault("KINETO_LOG_LEVEL", "9")  # the profiler writes its progress to stderr otherwise
        self._profile = profile(profile_memory=True, acc_events=False)

    @contextmanager
    def tracing(self) -> Iterator[None]:
        """As in `Workspace`."""
        with self._profile:
            yield

    def operation(self) -> AbstractContextManager[None]:
        """As in `Workspace`."""
        operation: AbstractContextManager[None] = torch._C._profiler._RecordFunctionFast(_OPERATION)
        return operation

    def sizes(self) -> list[int]:
        """As in `Workspace`."""
        results = self._profile.kineto_results
        if results is None:
            raise RuntimeError("nothing was traced")
        operations = [event for event in events_below(results.experimental_event_tree()) if event.name == _OPERATION]
        return [_beyond(operation) for operation in sorted(operations, key=lambda event: event.start_time_ns)]


class CudaWorkspace:
    """By the peaks of a CUDA caching allocator, which are reset before each operation."""

    def __init__(self, allocator: CudaAllocator) -> None:
        self._allocator = allocator
        self._sizes: list[int] = []

    def tracing(self) -> AbstractContextManager[None]:
        """As in `Workspace`."""
        return nullcontext()

    @contextmanager
    def operation(self) -> Iterator[None]:
        """As in `Workspace`."""
        self._allocator.reset_peak_memory_stats()
        yield
        self._sizes.append(self._allocator.max_memory_allocated() - self._allocator.memory_allocated())

    def sizes(self) -> list[int]:
        """As in `Workspace`."""
        return self._sizes


def _beyond(operation: Any) -> int:
    held = peak = 0
    changes = [found for event in events_below(operation.children) if (found := allocation_of(event)) is not None]
    for change in sorted(changes, key=lambda change: change.time):
        held += change.size
        peak = max(peak, held)
    return peak - held
