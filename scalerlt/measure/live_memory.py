"""Peak of the bytes that torch's allocators hold above a step's start, as a whole and in each phase."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple, Protocol

import torch
from torch.autograd.profiler import profile, record_function

_PHASE = "scalerlt.phase:"


class CpuAllocations:
    """The CPU allocator's events while it is entered, from torch's profiler.

    Only tensors allocated inside count, and they count until they are freed: the base is zero, and freeing a tensor
    that is older changes nothing. Bytes are those asked of the allocator, of this thread (backward passes on a CPU
    run in it). It slows the work down and takes host memory of its own, which is no tensor's.
    """

    def __init__(self) -> None:
        os.environ.setdefault("KINETO_LOG_LEVEL", "9")  # the profiler writes its progress to stderr otherwise
        self._profile = profile(profile_memory=True, acc_events=False)

    @contextmanager
    def tracing(self) -> Iterator[None]:
        """Trace what runs inside; once per object."""
        with self._profile:
            yield

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """What runs inside is (a part of) phase `name`."""
        with record_function(_PHASE + name):
            yield

    def peaks(self) -> tuple[int, dict[str, int]]:
        """The peak in bytes, and the peak within each phase (the largest, if it was entered several times)."""
        results = self._profile.kineto_results
        if results is None:
            raise RuntimeError("nothing was traced")
        moments: list[_Moment] = []
        for event in events_below(results.experimental_event_tree()):
            if (change := allocation_of(event)) is not None:
                moments.append((change.time, _CHANGE, change.address, change.size))
            elif event.name.startswith(_PHASE):
                name = event.name.removeprefix(_PHASE)
                moments += [(event.start_time_ns, _BEGIN, name, 0), (event.end_time_ns, _END, name, 0)]
        return _peaks(moments)


_BEGIN, _CHANGE, _END = range(3)  # in the order in which moments of the same nanosecond are taken
_Moment = tuple[int, int, Any, int]
"""Time, kind, the phase's name or the address, the bytes allocated (below zero: freed)."""


class Allocation(NamedTuple):
    """An event of the CPU's allocator: its time in ns, the address, the bytes allocated (below zero: freed)."""

    time: int
    address: int
    size: int


def allocation_of(event: Any) -> Allocation | None:
    """What an event of the profiler's tree says of the CPU's allocator; None: nothing."""
    if event.tag != torch._C._profiler._EventType.Allocation or event.extra_fields.device.type != "cpu":
        return None
    return Allocation(event.start_time_ns, event.extra_fields.ptr, event.extra_fields.alloc_size)


def events_below(events: list[Any]) -> Iterator[Any]:
    """The events of the profiler's tree, each before those that happened in it."""
    waiting = events[::-1]
    while waiting:
        event = waiting.pop()
        yield event
        waiting += event.children[::-1]


def _peaks(moments: list[_Moment]) -> tuple[int, dict[str, int]]:
    live: dict[int, int] = {}
    held = peak = 0
    phases: dict[str, int] = {}
    active: set[str] = set()
    for _, kind, subject, size in sorted(moments, key=lambda moment: moment[:2]):
        if kind == _BEGIN:
            active.add(subject)
        elif kind == _END:
            active.remove(subject)
        elif size > 0:
            live[subject] = size
            held += size
        else:
            held -= live.pop(subject, 0)  # older than the trace: not counted then, not subtracted now
        peak = max(peak, held)
        for name in active:
            phases[name] = max(phases.get(name, 0), held)
    return peak, phases


class CudaAllocator(Protocol):
    """The part of torch.cuda that keeps peaks."""

    def memory_allocated(self) -> int:
        """Bytes of tensors now."""

    def max_memory_allocated(self) -> int:
        """Largest memory_allocated since the last reset."""

    def max_memory_reserved(self) -> int:
        """Largest number of bytes taken from the device since the last reset."""

    def reset_peak_memory_stats(self) -> None:
        """Start both peaks from the present values."""


class CudaAllocations:
    """Peaks of a CUDA caching allocator while it is entered; every border of a phase starts a new peak.

    Attributes:
        base_bytes: allocated when it was entered.
        peak_allocated, peak_reserved: largest since then, in bytes.
        phases: the same two for each phase (the largest, if it was entered several times).
    """

    def __init__(self, allocator: CudaAllocator) -> None:
        self._allocator = allocator
        self.base_bytes = self.peak_allocated = self.peak_reserved = 0
        self.phases: dict[str, tuple[int, int]] = {}

    @contextmanager
    def tracing(self) -> Iterator[None]:
        """Follow what runs inside."""
        self._allocator.reset_peak_memory_stats()
        self.base_bytes = self._allocator.memory_allocated()
        yield
        self._close_interval()

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """What runs inside is (a part of) phase `name`."""
        self._close_interval()
        yield
        allocated, reserved = self._close_interval()
        before = self.phases.get(name, (0, 0))
        self.phases[name] = (max(before[0], allocated), max(before[1], reserved))

    def _close_interval(self) -> tuple[int, int]:
        allocated, reserved = self._allocator.max_memory_allocated(), self._allocator.max_memory_reserved()
        self.peak_allocated = max(self.peak_allocated, allocated)
        self.peak_reserved = max(self.peak_reserved, reserved)
        self._allocator.reset_peak_memory_stats()
        return allocated, reserved


class DeviceAllocator:
    """torch.cuda's allocator of one device."""

    def __init__(self, device: torch.device) -> None:
        self._device = device

    def memory_allocated(self) -> int:
        """Bytes of tensors now."""
        return torch.cuda.memory_allocated(self._device)

    def max_memory_allocated(self) -> int:
        """Largest memory_allocated since the last reset."""
        return torch.cuda.max_memory_allocated(self._device)

    def max_memory_reserved(self) -> int:
        """Largest number of bytes taken from the device since the last reset."""
        return torch.cuda.max_memory_reserved(self._device)

    def reset_peak_memory_stats(self) -> None:
        """Start both peaks from the present values."""
        torch.cuda.reset_peak_memory_stats(self._device)
