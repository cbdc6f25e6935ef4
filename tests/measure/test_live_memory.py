import os

import pytest
import torch
from measure.storage_counter import StorageCounter

from scalerlt.measure.live_memory import CpuAllocations, CudaAllocations

MIB = 2**20


def block(mib: int) -> torch.Tensor:
    return torch.empty(mib * MIB, dtype=torch.uint8)


def near(value: int, mib: int) -> bool:
    """Within the few bytes that marking a phase takes."""
    return abs(value - mib * MIB) < 256


def test_peaks_of_the_step_and_of_each_phase():
    trace = CpuAllocations()
    older = block(16)
    with trace.tracing():
        first = block(2)
        with trace.phase("forward"):
            block(4)  # dropped at once
            kept = block(1)
        between = block(8)
        del between, older
        with trace.phase("backward"):
            pass
        with trace.phase("forward"):
            more = block(3)
    peak, phases = trace.peaks()
    assert near(peak, 2 + 1 + 8)
    assert near(phases["forward"], 2 + 4)
    assert near(phases["backward"], 2 + 1)  # what is live counts, though nothing was allocated in it
    del first, kept, more


def test_freeing_what_an_earlier_trace_saw_changes_nothing():
    first = CpuAllocations()
    with first.tracing():
        tensor = block(4)
    second = CpuAllocations()
    with second.tracing():
        del tensor
        later = block(2)
    assert near(second.peaks()[0], 2)
    del later


def test_peaks_without_a_trace_are_an_error():
    with pytest.raises(RuntimeError, match="nothing was traced"):
        CpuAllocations().peaks()


def step(width: int) -> None:
    generator = torch.Generator().manual_seed(0)
    weight = torch.randn(width, width, generator=generator, requires_grad=True)
    x = torch.randn(3 * width, width, generator=generator)
    for _ in range(4):
        x = torch.nn.functional.silu(x @ weight).softmax(-1) * x
    x.square().mean().backward()
    optimizer = torch.optim.AdamW([weight])
    optimizer.step()


@pytest.mark.parametrize("width", [64, 200])
def test_agrees_with_an_independent_count_within_the_largest_tensor(width: int):
    trace, counter = CpuAllocations(), StorageCounter()
    with trace.tracing():
        step(width)
    with counter:
        step(width)
    assert counter.peak > 4 * counter.largest  # the agreement below means something
    assert abs(trace.peaks()[0] - counter.peak) <= counter.largest


def test_works_in_a_forked_child_of_a_process_that_imported_torch():
    read_end, write_end = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            torch.set_num_threads(1)
            trace = CpuAllocations()
            with trace.tracing(), trace.phase("forward"):
                block(5)
            peak, phases = trace.peaks()
            os.write(write_end, f"{peak} {phases['forward']}".encode())
        finally:
            os._exit(0)
    os.close(write_end)
    with os.fdopen(read_end) as pipe:
        values = [int(text) for text in pipe.read().split()]
    assert os.waitpid(child, 0)[1] == 0
    assert len(values) == 2
    assert all(near(value, 5) for value in values)


class FakeAllocator:
    """A caching allocator: what it reserved it keeps; peaks last until they are reset."""

    def __init__(self, allocated: int) -> None:
        self.allocated = self.peak = self.reserved = self.peak_reserved = allocated

    def use(self, amount: int) -> None:
        self.allocated += amount
        self.reserved = max(self.reserved, self.allocated)
        self.peak = max(self.peak, self.allocated)
        self.peak_reserved = max(self.peak_reserved, self.reserved)

    def memory_allocated(self) -> int:
        return self.allocated

    def max_memory_allocated(self) -> int:
        return self.peak

    def max_memory_reserved(self) -> int:
        return self.peak_reserved

    def reset_peak_memory_stats(self) -> None:
        self.peak, self.peak_reserved = self.allocated, self.reserved


def cuda_step(allocator: FakeAllocator, amount: int) -> CudaAllocations:
    trace = CudaAllocations(allocator)
    with trace.tracing():
        with trace.phase("forward"):
            allocator.use(amount)
        allocator.use(1)
        with trace.phase("backward"):
            allocator.use(-amount - 1)
    return trace


def test_cuda_peaks_are_those_of_the_step_not_of_the_process():
    allocator = FakeAllocator(allocated=100)
    allocator.use(40)  # loading, say
    allocator.use(-40)
    first, second = cuda_step(allocator, 10), cuda_step(allocator, 4)
    assert (first.base_bytes, first.peak_allocated) == (100, 111)
    assert (second.base_bytes, second.peak_allocated) == (100, 105)
    assert second.phases["forward"] == (104, 140)  # reserved memory stays with the caching allocator
    assert second.phases["backward"] == (105, 140)
    assert second.peak_allocated <= second.peak_reserved
