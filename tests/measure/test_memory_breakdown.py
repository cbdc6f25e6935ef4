"""Little programs whose bytes are known, part by part, at the moment at which most are live."""

import math

import pytest
import torch
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.checkpoint import checkpoint

from scalerlt.measure import storages
from scalerlt.measure.breakdown import PARTS, ByPart, Standing, break_down
from scalerlt.measure.live_memory import CpuAllocations

CPU = torch.device("cpu")
N, H, V = 24, 16, 200


def parameter(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape))).to(dtype).requires_grad_()


def nonzero(parts: dict[str, int]) -> dict[str, int]:
    return {part: size for part, size in parts.items() if size}


def floats(*counts: int) -> int:
    return 4 * sum(counts)


def allocated(step) -> tuple[int, dict[str, int]]:
    trace = CpuAllocations()
    with trace.tracing():
        step(trace.phase)
    return trace.peaks()


def test_softmax_readout():
    """h = x P, logits = h W^T, log-softmax; its backward pass makes a gradient of the size of the logits twice."""
    hidden, head = parameter(H, H), parameter(V, H)

    def step(on_phase) -> None:
        with on_phase("forward"):
            x = torch.ones(N, H)
            logits = (x @ hidden) @ head.t()
            logprobs = torch.log_softmax(logits, -1)
        with on_phase("backward"):
            logprobs.backward(torch.ones(N, V))
        hidden.grad = head.grad = None

    found = break_down(step, device=CPU, standing=Standing(weights=(hidden, head), heads=(head,)))
    weights = floats(H * H, V * H)
    kept = {"weights": weights, "activations": floats(2 * N * H)}
    assert nonzero(found.phases["forward"]) == {**kept, "logits": floats(2 * N * V)}
    # logits, log-probs, the gradient of the one, the gradient of the other: then the weights' gradients come
    assert found.phases["backward"]["logits"] == floats(4 * N * V)
    assert found.phases["backward"]["activations"] == floats(2 * N * H)
    assert sum(found.step.values()) == pytest.approx(weights + allocated(step)[0], rel=1e-3)


@pytest.mark.parametrize("transposed", [False, True])
def test_gradients_sums_of_them_and_the_optimizer(transposed: bool):
    """A weight that is used twice has two gradients, whose sum is its own; momentum stands.

    Autograd adds the second to the first in place, unless the first is a view, as that of a transposed weight is.
    """
    weight, momentum = parameter(64, 64), torch.zeros(64, 64)

    def step(on_phase) -> None:
        with on_phase("backward"):
            x = torch.ones(2, 64)
            run = functional.linear if transposed else torch.matmul
            run(run(x, weight), weight).sum().backward()
            del x
        with on_phase("optimizer"):
            with torch.no_grad():
                momentum.add_(weight.grad)
                weight.sub_(momentum * 0.1)
            weight.grad = None

    found = break_down(step, device=CPU, standing=Standing(weights=(weight,), optimizer=(momentum,)))
    square = floats(64 * 64)
    optimizer = nonzero(found.phases["optimizer"])
    assert 0 <= optimizer.pop("other") - square < 64  # momentum * 0.1, and the 0.1 that the kernel makes a tensor of
    assert optimizer == dict.fromkeys(("weights", "optimizer", "gradients"), square)
    backward = found.phases["backward"]
    assert backward["gradients"] == (3 if transposed else 2) * square
    assert backward["activations"] + backward["other"] <= floats(3 * 2 * 64, 2)
    assert sum(backward.values()) == pytest.approx(2 * square + allocated(step)[1]["backward"], rel=1e-2)


def test_gradients_that_a_master_weight_takes_over():
    """The bf16 gradient, its fp32 copy, and what is added to the sum of the passes before are all gradients."""
    weight = parameter(64, 64, dtype=torch.bfloat16)
    master = weight.detach().float().requires_grad_()

    def step(on_phase) -> None:
        for _ in range(2):
            with on_phase("backward"):
                (torch.ones(1, 64, dtype=torch.bfloat16) @ weight).sum().backward()
                gradient = weight.grad.float()
                master.grad = gradient if master.grad is None else master.grad.add_(gradient)
                del gradient
                weight.grad = None
        master.grad = None

    found = break_down(step, device=CPU, standing=Standing(weights=(weight,), optimizer=(master,)))
    assert found.step["weights"] == 2 * 64 * 64
    assert found.step["optimizer"] == 4 * 64 * 64
    assert found.step["gradients"] == (4 + 2 + 4) * 64 * 64
    assert found.step["other"] + found.step["activations"] < 1024


def test_gradients_that_are_gone_before_anybody_looks():
    weight = parameter(64, 64)

    def step(on_phase) -> None:
        (torch.ones(1, 64) @ weight).sum().backward()
        weight.grad = None

    found = break_down(step, device=CPU, standing=Standing(weights=(weight,)))
    assert found.step["gradients"] == floats(64 * 64)


def test_gradients_that_stood_before():
    weight = parameter(H, H)
    weight.grad = torch.ones(H, H)
    found = break_down(lambda on_phase: None, device=CPU, standing=Standing(weights=(weight,)))
    assert nonzero(found.step) == dict.fromkeys(("weights", "gradients"), floats(H * H))


@pytest.mark.parametrize("kernel", [SDPBackend.FLASH_ATTENTION, SDPBackend.MATH])
def test_keys_and_values_whichever_kernel_takes_them(kernel: SDPBackend):
    """K and V of two heads, and the padded copy of K that is made of rows of other lengths; queries are activations."""
    kv, rows = parameter(H, 2 * 8), torch.tensor([0, 1, 2, 5, 6])

    def step(on_phase) -> None:
        x = torch.ones(5, H)
        k, v = (x @ kv).view(5, 2, 8), (x @ kv).view(5, 2, 8)
        places = torch.zeros(8, 2, 8).index_copy(0, rows, k)
        padded = torch.zeros(8, 2, 8).index_copy(0, rows, v)
        q = torch.ones(1, 2, 8, 8)
        with sdpa_kernel(kernel), on_phase("attention"):
            heads = (tensor.view(1, 8, 2, 8).transpose(1, 2) for tensor in (places, padded))
            attended = functional.scaled_dot_product_attention(q, *heads)
        del k, v, places, padded
        attended.sum().backward()
        kv.grad = None

    found = break_down(step, device=CPU, standing=Standing(weights=(kv,)))
    assert found.phases["attention"]["kv"] == floats(2 * 5 * 16, 2 * 8 * 16)
    assert found.phases["attention"]["activations"] >= floats(5 * H, 8 * 16)


def test_what_a_checkpoint_computes_again_is_an_activation():
    weight = parameter(H, H)

    def region(x: torch.Tensor) -> torch.Tensor:
        for _ in range(4):
            x = torch.tanh(x @ weight)
        return x

    def step(on_phase) -> None:
        with on_phase("forward"):
            y = checkpoint(region, torch.ones(N, H), use_reentrant=False)
        with on_phase("between"):
            pass
        with on_phase("backward"):
            y.sum().backward()
        weight.grad = None

    found = break_down(step, device=CPU, standing=Standing(weights=(weight,)))
    assert found.phases["between"]["activations"] == floats(2 * N * H)  # its input, and its result as the last tanh's
    # its input, its result, and the four results of tanh: all but what early stopping spares
    assert found.phases["backward"]["activations"] in [floats(count * N * H) for count in (5, 6)]


class _Square(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x.clone())
        return x * x

    @staticmethod
    def backward(ctx, gradient):
        return 2 * gradient * ctx.saved_tensors[0]


def test_what_a_function_of_ones_own_saves_is_an_activation():
    leaf = torch.ones(N, H, requires_grad=True)

    def step(on_phase) -> None:
        with on_phase("forward"):
            kept = _Square.apply(leaf)
        del kept

    found = break_down(step, device=CPU, standing=Standing(weights=()))
    assert nonzero(found.phases["forward"]) == {"activations": floats(N * H), "other": floats(N * H)}


def test_nothing_is_left_behind():
    entered = torch.autograd.graph.saved_tensors_hooks.__enter__
    weight = parameter(H, H)

    def fails(on_phase) -> None:
        raise RuntimeError("in the step")

    with pytest.raises(RuntimeError, match="in the step"):
        break_down(fails, device=CPU, standing=Standing(weights=(weight,)))
    assert torch.autograd.graph.saved_tensors_hooks.__enter__ is entered
    assert not weight._post_accumulate_grad_hooks
    # hooks that are entered afterwards see what they saw before
    seen = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: seen.append(t.shape) or t.detach(), lambda t: t):
        torch.ones(N, H) @ weight
    assert seen == [(N, H)]


def test_a_matrix_that_is_not_followed_is_missing_from_the_sum(monkeypatch: pytest.MonkeyPatch):
    """The sum is no difference to the allocator's peak: what one part lacks no other makes up for."""
    head = parameter(V, H)

    def step(on_phase) -> None:
        torch.log_softmax(torch.ones(N, H) @ head.t(), -1).sum().backward()
        head.grad = None

    def share() -> float:
        found: ByPart = break_down(step, device=CPU, standing=Standing(weights=(head,), heads=(head,)))
        assert tuple(found.step) == PARTS
        peak = head.nbytes + allocated(step)[0]
        return (peak - sum(found.step.values())) / peak

    assert abs(share()) < 1e-3
    follow = storages.Storages.follow
    monkeypatch.setattr(
        storages.Storages, "follow", lambda self, tensor: None if tensor.shape == (N, V) else follow(self, tensor)
    )
    assert share() > 0.2


@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device")
def test_the_parts_add_up_to_the_caching_allocators_peak():
    """Which rounds each tensor up to a multiple of 512 bytes."""
    device = torch.device("cuda")
    head = torch.randn(4096, 256, device=device, requires_grad=True)

    def step(on_phase) -> None:
        torch.log_softmax(torch.ones(512, 256, device=device) @ head.t(), -1).sum().backward()
        head.grad = None

    step(None)  # what cuBLAS keeps for itself is there from here on
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    step(None)
    peak = torch.cuda.max_memory_allocated() - before + head.nbytes
    found = break_down(step, device=device, standing=Standing(weights=(head,), heads=(head,)))
    assert math.isclose(sum(found.step.values()), peak, rel_tol=0.02)
    assert found.step["logits"] >= 3 * 512 * 4096 * 4
