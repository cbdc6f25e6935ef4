import itertools
from contextlib import nullcontext

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from measure.test_live_memory import FakeAllocator

from scalerlt.measure.storages import Operation, Storages
from scalerlt.measure.workspace import CpuWorkspace, CudaWorkspace

CPU = torch.device("cpu")
KIB = 1024


class NoWorkspace:
    """Kernels that allocate nothing but their results."""

    def __init__(self) -> None:
        self.operations = 0

    def tracing(self):
        return nullcontext()

    def operation(self):
        self.operations += 1
        return nullcontext()

    def sizes(self) -> list[int]:
        return [0] * self.operations


def storages(observe=lambda operation: None, workspace=None) -> Storages:
    return Storages(CPU, workspace or NoWorkspace(), observe)


def whole(found: Storages) -> tuple[int, dict[str, int]]:
    step, phases = found.peaks(lambda number: "all")
    return sum(step.values()), {name: sum(live.values()) for name, live in phases.items()}


def block(kib: int) -> torch.Tensor:
    return torch.empty(kib * KIB, dtype=torch.uint8)


def test_peaks_of_the_whole_and_of_each_phase():
    older = block(64)
    with storages() as found:
        first = block(2)
        with found.phase("forward"):
            block(4)  # dropped at once
            kept = block(1)
        between = block(8)
        older.fill_(0)
        del between, older
        with found.phase("backward"):
            pass
        with found.phase("forward"):
            more = block(3)
    assert whole(found) == (11 * KIB, {"forward": 6 * KIB, "backward": 3 * KIB})
    del first, kept, more


def test_what_stood_before_counts_once_it_is_followed():
    older = block(5)
    found = storages()
    found.follow(older)
    found.follow(older[:100])
    with found:
        newer = block(2)
        del older
        last = block(4)
    assert whole(found)[0] == 7 * KIB
    del newer, last


def test_views_and_results_in_place_are_no_storages_and_lists_are():
    with storages() as found:
        x = torch.ones(KIB // 4)
        y = x.view(16, 16).t()[2:]
        y.add_(1)
        torch.mul(x, 2, out=x)
        parts = torch._foreach_add([x, x], 1.0)
        listed = torch.tensor([1.0] * 256)
    assert whole(found)[0] == 4 * KIB
    del y, parts, listed


def test_a_storage_that_grows():
    with storages() as found:
        x = torch.empty(0)
        torch.add(torch.ones(256), 1, out=x)
        y = torch.ones(512)
        assert whole(found)[0] == 3 * KIB  # the ones are gone when y comes
        y.resize_(1024)
    assert whole(found)[0] == 5 * KIB
    del x, y


def test_another_device_is_left_out():
    with Storages(torch.device("cuda"), NoWorkspace(), lambda operation: None) as found:
        x = torch.ones(100)
    assert whole(found)[0] == 0
    del x


def test_parts_at_the_peak():
    with storages() as found:
        first, second = block(1), block(2)
    numbers = found.numbers([first, second])
    assert found.peaks(lambda number: f"storage {number}")[0] == {"storage 0": KIB, "storage 1": 2 * KIB}
    assert numbers == {0, 1}


def test_operations_are_told_with_their_arguments():
    seen: list[Operation] = []
    x, out = torch.ones(2, 3), torch.empty(2, 2)
    with storages(seen.append):
        torch.mm(x, x.t(), out=out)
        torch.cat([x, x])
    assert [operation.name for operation in seen] == ["t", "mm", "cat"]
    assert list(seen[1].arguments) == ["self", "mat2"]
    assert seen[1].operands[0] is x
    assert seen[1].results[0] is out
    assert len(seen[2].operands) == 2


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.sampled_from(("new", "drop", "view")), st.integers(1, 40)), max_size=40))
def test_any_order_of_allocating_and_freeing(actions: list[tuple[str, int]]):
    alive: list[tuple[torch.Tensor, int]] = []
    live = peak = 0
    with storages() as found:
        for action, number in actions:
            if action == "new":
                alive.append((block(number), number))
                live += number
            elif alive and action == "drop":
                live -= alive.pop(number % len(alive))[1]
            elif alive:
                alive[number % len(alive)][0][1:].add_(1)
            peak = max(peak, live)
    assert whole(found)[0] == peak * KIB


def test_workspace_counts_at_its_operation_alone():
    class Given(NoWorkspace):
        def sizes(self) -> list[int]:
            return [0, 7 * KIB, 0]

    with storages(workspace=Given()) as found:
        with found.phase("forward"):
            first, second = block(1), block(1)
        with found.phase("backward"):
            del first
            third = block(1)
    assert whole(found) == (9 * KIB, {"forward": 9 * KIB, "backward": 2 * KIB})
    del second, third


def test_workspace_of_the_cpu_is_what_an_operation_frees_again():
    workspace = CpuWorkspace()
    with workspace.tracing():
        outside = block(512)
        with workspace.operation():
            inside = block(256)
            del inside
            result = block(64)
        with workspace.operation():
            other = block(128)
    first, second = workspace.sizes()
    assert 192 * KIB <= first < 193 * KIB
    assert second < KIB
    del outside, result, other


def test_workspace_without_a_trace_is_an_error():
    with pytest.raises(RuntimeError, match="nothing was traced"):
        CpuWorkspace().sizes()


def test_workspace_of_a_cuda_device_is_its_peak_beyond_what_stays():
    allocator = FakeAllocator(allocated=100)
    workspace = CudaWorkspace(allocator)
    with workspace.tracing():
        for used, kept in itertools.product((50, 10), (10, 0)):
            with workspace.operation():
                allocator.use(used)
                allocator.use(kept - used)
    assert workspace.sizes() == [40, 50, 0, 10]
