import gc

import torch
from torch.utils.checkpoint import checkpoint

from scalerlt.measure.saved_tensors import SavedTensors

KIB = 1024


def leaf(kib: int) -> torch.Tensor:
    """A leaf of so many KiB in fp32."""
    return torch.ones(kib * KIB // 4, requires_grad=True)


def test_each_storage_counts_once_however_often_it_is_saved():
    x = leaf(4)
    with SavedTensors() as saved:
        y = x.exp()  # keeps y
        z = y * y[0]  # keeps y again, and a view of it
        w = z.sin()  # keeps z
    assert saved.peak_bytes == 8 * KIB
    del w


def test_parameters_and_their_views_do_not_count_but_copies_do():
    weight = torch.randn(32, 64, requires_grad=True)
    x = torch.randn(16, 64, requires_grad=True)
    with SavedTensors(exclude=[weight]) as saved:
        y = x @ weight.t()
    assert saved.peak_bytes == 16 * 64 * 4  # x alone: the transposed weight shares the weight's storage
    with SavedTensors(exclude=[weight]) as cast:
        z = x.double() @ weight.double().t()
    assert cast.peak_bytes == (16 * 64 + 32 * 64) * 8
    del y, z


def test_what_a_view_saves_is_its_whole_storage():
    x = leaf(8)
    with SavedTensors() as saved:
        y = (x * 1.0)[:4].exp().sin()
    # exp keeps its 16 bytes of output (4 floats), sin the same storage; multiplying by a number keeps nothing.
    assert saved.peak_bytes == 16
    with SavedTensors() as whole:
        z = (x * 1.0)[:4].sin()
    assert whole.peak_bytes == 8 * KIB
    del y, z


def test_released_storages_are_given_back_so_micro_batches_do_not_add_up():
    x = leaf(4)
    with SavedTensors() as saved:
        for _ in range(3):
            x.exp().sum().backward()
    assert saved.peak_bytes == 4 * KIB

    with SavedTensors() as together:
        graphs = [x.exp() for _ in range(3)]
    assert together.peak_bytes == 12 * KIB
    del graphs


def test_a_graph_that_is_dropped_without_backward_is_released():
    x = leaf(4)
    gc.disable()
    try:
        with SavedTensors() as saved:
            for _ in range(3):
                y = x.exp()  # a saved output: would be a reference cycle if it were kept as it is
                del y
    finally:
        gc.enable()
    assert saved.peak_bytes == 4 * KIB


def test_a_checkpointed_region_keeps_its_inputs_only():
    x = leaf(4)

    def region(h: torch.Tensor) -> torch.Tensor:
        return h.sin().exp().tanh()

    with SavedTensors() as plain:
        full = region(x.exp())
    with SavedTensors() as saved:
        cheap = checkpoint(region, x.exp(), use_reentrant=False)
    assert plain.peak_bytes == 3 * 4 * KIB
    assert saved.peak_bytes == 4 * KIB
    full.sum().backward()
    expected, x.grad = x.grad, None
    cheap.sum().backward()
    assert torch.equal(x.grad, expected)


def test_gradients_are_the_same_with_and_without_the_hooks():
    x = torch.randn(8, 8, dtype=torch.float64, requires_grad=True)
    (x @ x).softmax(-1).square().sum().backward()
    expected, x.grad = x.grad, None
    with SavedTensors():
        (x @ x).softmax(-1).square().sum().backward()
    assert torch.equal(x.grad, expected)
