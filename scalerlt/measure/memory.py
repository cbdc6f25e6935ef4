"""The memory of one step, each kind of figure by its own method; they are never added or compared across kinds."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor

from scalerlt.measure.live_memory import CpuAllocations, CudaAllocations, DeviceAllocator
from scalerlt.measure.resident import ResidentPeak
from scalerlt.measure.saved_tensors import SavedTensors

OnPhase = Callable[[str], AbstractContextManager[None]]
"""Makes the context in which the phase of this name runs."""

SAVED_METHOD = "unique storages that autograd holds (saved tensor hooks), parameters excluded; largest at one time"
LIVE_CPU_METHOD = "allocator events of torch's profiler; peak of tensors allocated since the step's start"
LIVE_CUDA_METHOD = "torch.cuda.max_memory_allocated less memory_allocated at the step's start"
RSS_METHOD = "VmHWM, reset through /proc/self/clear_refs before the step, freed heap given back (malloc_trim)"


@dataclass(frozen=True, kw_only=True)
class Peaks:
    """Peaks in bytes of a step or of one of its phases. None: there is no such figure here, which is not zero.

    Attributes:
        live: allocator bytes above the step's start.
        cuda_allocated: bytes of all tensors on the device, parameters and optimizer state included.
        cuda_reserved: bytes that the caching allocator took from the device.
        rss: resident set size of the process.
    """

    live: int
    cuda_allocated: int | None
    cuda_reserved: int | None
    rss: int | None


@dataclass(frozen=True, kw_only=True)
class MemoryReport:
    """The memory of one step.

    Attributes:
        saved_bytes: what autograd kept at most, parameters excluded.
        step: peaks over the whole step.
        phases: peaks within each phase.
        live_method: how `live` was obtained; it differs between a CPU and CUDA.
        rss_baseline: resident set size when the step began.
        rss_reason: why there is no resident peak, or None.
        cuda_reason: why there are no CUDA figures, or None.
    """

    saved_bytes: int
    step: Peaks
    phases: dict[str, Peaks]
    live_method: str
    rss_baseline: int | None
    rss_reason: str | None
    cuda_reason: str | None


def measure_memory(
    step: Callable[[OnPhase], object], *, device: torch.device, parameters: Iterable[Tensor]
) -> MemoryReport:
    """Run `step` twice and report its memory.

    The first run has no hook inside it and gives the resident and the CUDA peaks, which the tracer's own buffers
    would raise; the second gives saved bytes and, on a CPU, live bytes.

    Args:
        step: one whole step, given the factory of its phases. It must have run before, so that what it makes once
            (optimizer state) is there and does not count as live.
        device: where it runs.
        parameters: tensors that do not count as saved.
    """
    resident = ResidentPeak()
    cuda = CudaAllocations(DeviceAllocator(device)) if device.type == "cuda" else None
    with resident.tracing(), ExitStack() as stack:
        if cuda is not None:
            stack.enter_context(cuda.tracing())
        step(_together(resident.phase, *([cuda.phase] if cuda is not None else [])))

    saved = SavedTensors(exclude=parameters)
    if cuda is not None:
        with saved:
            step(_no_phase)
        base = cuda.base_bytes
        live, live_phases = cuda.peak_allocated - base, {name: peak[0] - base for name, peak in cuda.phases.items()}
    else:
        allocations = CpuAllocations()
        with allocations.tracing(), saved:
            step(allocations.phase)
        live, live_phases = allocations.peaks()
    return MemoryReport(
        saved_bytes=saved.peak_bytes,
        step=Peaks(
            live=live,
            cuda_allocated=cuda.peak_allocated if cuda is not None else None,
            cuda_reserved=cuda.peak_reserved if cuda is not None else None,
            rss=resident.peak_bytes,
        ),
        phases={
            name: Peaks(
                live=live_bytes,
                cuda_allocated=cuda.phases[name][0] if cuda is not None else None,
                cuda_reserved=cuda.phases[name][1] if cuda is not None else None,
                rss=resident.phases.get(name),
            )
            for name, live_bytes in live_phases.items()
        },
        live_method=LIVE_CUDA_METHOD if cuda is not None else LIVE_CPU_METHOD,
        rss_baseline=resident.baseline_bytes,
        rss_reason=resident.reason,
        cuda_reason=None if cuda is not None else f"the cell runs on {device.type}, which has no CUDA allocator",
    )


def live_bytes(step: Callable[[], object], device: torch.device) -> int:
    """The peak of allocator bytes above the start of `step`, which runs once: `Peaks.live` by itself."""
    if device.type == "cuda":
        cuda = CudaAllocations(DeviceAllocator(device))
        with cuda.tracing():
            step()
        return cuda.peak_allocated - cuda.base_bytes
    allocations = CpuAllocations()
    with allocations.tracing():
        step()
    return allocations.peaks()[0]


def _together(*factories: OnPhase) -> OnPhase:
    """One factory that enters the phase in each of several."""

    @contextmanager
    def phase(name: str) -> Iterator[None]:
        with ExitStack() as stack:
            for factory in factories:
                stack.enter_context(factory(name))
            yield

    return phase


@contextmanager
def _no_phase(name: str) -> Iterator[None]:
    yield
