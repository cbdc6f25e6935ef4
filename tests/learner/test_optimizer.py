import math

import pytest
import torch
from models.small import small_model
from torch import nn

from scalerlt.learner.optimizer import ActorOptimizer, OptimizerSettings, freeze_exit_gate


class Scalar(nn.Module):
    """One weight."""

    def __init__(self, value: float, dtype: torch.dtype) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.tensor([value], dtype=dtype))


def push(optimizer: ActorOptimizer, parameter: nn.Parameter, *gradients: float) -> float:
    """One step with the given gradients, one per micro-batch."""
    for gradient in gradients:
        fresh = torch.full_like(parameter, gradient)
        parameter.grad = fresh if parameter.grad is None else parameter.grad + fresh  # as autograd does
        optimizer.accumulate()
    return optimizer.step()


SGD = OptimizerSettings(name="sgd", learning_rate=1.0)


def adamw_by_hand(w: float, gradients: list[float], s: OptimizerSettings) -> tuple[float, float, float]:
    """Algorithm 2 of arXiv 1711.05101."""
    m = v = 0.0
    for t, g in enumerate(gradients, start=1):
        w -= s.learning_rate * s.weight_decay * w
        m = s.betas[0] * m + (1 - s.betas[0]) * g
        v = s.betas[1] * v + (1 - s.betas[1]) * g * g
        w -= s.learning_rate * (m / (1 - s.betas[0] ** t)) / (math.sqrt(v / (1 - s.betas[1] ** t)) + s.eps)
    return w, m, v


def test_adamw_by_hand():
    settings = OptimizerSettings(name="adamw", learning_rate=0.1, weight_decay=0.1, eps=1e-5, betas=(0.8, 0.95))
    model = Scalar(2.0, torch.float64)
    optimizer = ActorOptimizer(model, settings)
    for gradient in (0.3, -1.0, 0.5):
        push(optimizer, model.w, gradient)
    weight, m, v = adamw_by_hand(2.0, [0.3, -1.0, 0.5], settings)
    assert model.w.item() == pytest.approx(weight, abs=1e-14)
    assert optimizer.moments()["exp_avg"]["w"].item() == pytest.approx(m, abs=1e-14)
    assert optimizer.moments()["exp_avg_sq"]["w"].item() == pytest.approx(v, abs=1e-14)


def test_sgd_with_momentum_by_hand():
    model = Scalar(1.0, torch.float64)
    optimizer = ActorOptimizer(model, OptimizerSettings(name="sgd", learning_rate=0.1, momentum=0.5, weight_decay=0.2))
    push(optimizer, model.w, 1.0)
    push(optimizer, model.w, 1.0)
    first = 1.0 + 0.2 * 1.0
    second = 0.5 * first + 1.0 + 0.2 * (1.0 - 0.1 * first)
    assert model.w.item() == pytest.approx(1.0 - 0.1 * first - 0.1 * second)
    assert set(optimizer.moments()) == {"momentum_buffer"}


def test_an_unknown_optimizer_is_refused():
    with pytest.raises(ValueError, match="'lion'"):
        ActorOptimizer(Scalar(1.0, torch.float32), OptimizerSettings(name="lion", learning_rate=1.0))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_updates_below_the_formats_resolution_add_up(dtype: torch.dtype):
    ulp = torch.finfo(dtype).eps
    model = Scalar(1.0, dtype)
    optimizer = ActorOptimizer(model, SGD)
    seen = []
    for _ in range(4):
        push(optimizer, model.w, -ulp / 4)
        seen.append(model.w.item())
    assert seen == [1.0, 1.0, 1.0 + ulp, 1.0 + ulp]
    assert optimizer.masters["w"].dtype == torch.float32
    assert optimizer.masters["w"].item() == 1.0 + ulp
    naive = torch.tensor([1.0], dtype=dtype)
    for _ in range(4):
        naive += ulp / 4
    assert naive.item() == 1.0  # what would be lost


def test_gradients_of_micro_batches_add_up_in_fp32():
    model = Scalar(1.0, torch.bfloat16)
    optimizer = ActorOptimizer(model, SGD)
    for gradient in (1.0, 2.0**-9, 2.0**-9):  # in bf16 each of the two is lost beside 1
        model.w.grad = torch.tensor([gradient], dtype=torch.bfloat16)
        optimizer.accumulate()
    assert optimizer.gradients()["w"].item() == 1.0 + 2.0**-8
    assert model.w.grad is None


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_wide_parameters_are_their_own_masters(dtype: torch.dtype):
    model = Scalar(1.0, dtype)
    optimizer = ActorOptimizer(model, SGD)
    assert optimizer.masters["w"] is model.w
    model.w.grad = torch.ones_like(model.w)
    optimizer.accumulate()
    assert optimizer.gradients()["w"] is model.w.grad


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_clipping_scales_the_step_and_the_norm_is_from_before(dtype: torch.dtype):
    model = Scalar(0.0, dtype)
    optimizer = ActorOptimizer(model, OptimizerSettings(name="sgd", learning_rate=1.0, max_grad_norm=0.5))
    assert push(optimizer, model.w, 1.0, 1.0) == 2.0
    assert model.w.item() == pytest.approx(-0.5, rel=1e-5)


@pytest.mark.parametrize("bad", [math.nan, math.inf])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_gradient_that_is_not_finite_moves_nothing(bad: float, dtype: torch.dtype):
    model = Scalar(1.0, dtype)
    optimizer = ActorOptimizer(model, OptimizerSettings(name="adamw", learning_rate=1.0, weight_decay=0.1))
    assert not math.isfinite(push(optimizer, model.w, bad))
    assert model.w.item() == 1.0
    assert optimizer.moments() == {}
    push(optimizer, model.w, 1.0)
    assert model.w.item() == pytest.approx(-0.1, abs=1e-2)  # and is gone from the next step


def test_without_gradients_nothing_moves():
    model = Scalar(1.0, torch.float32)
    optimizer = ActorOptimizer(model, OptimizerSettings(name="adamw", learning_rate=1.0, weight_decay=0.1))
    assert optimizer.step() == 0.0
    assert model.w.item() == 1.0


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_exit_gate_is_frozen(dtype: torch.dtype):
    model = small_model(dtype)
    freeze_exit_gate(model)
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    optimizer = ActorOptimizer(model, OptimizerSettings(name="adamw", learning_rate=0.1, weight_decay=0.1))
    model.logits(model(torch.tensor([[1, 2, 3]]))[-1]).float().logsumexp(-1).sum().backward()
    optimizer.accumulate()
    optimizer.step()
    gate = {name for name in before if "early_exit_gate" in name}
    assert len(gate) == 2
    assert not gate & optimizer.masters.keys()
    for kind in optimizer.moments().values():
        assert kind.keys() == before.keys() - gate
    for name, parameter in model.named_parameters():
        assert parameter.grad is None
        assert torch.equal(parameter, before[name]) == (name in gate), name


def test_state_bytes():
    elements = sum(p.numel() for name, p in small_model().named_parameters() if "early_exit_gate" not in name)
    for dtype, per_element in ((torch.float64, 2 * 8), (torch.float32, 2 * 4), (torch.bfloat16, 3 * 4)):
        model = small_model(dtype)
        freeze_exit_gate(model)
        optimizer = ActorOptimizer(model, OptimizerSettings(name="adamw", learning_rate=0.1))
        model.logits(model(torch.tensor([[1, 2, 3]]))[-1]).float().sum().backward()
        optimizer.accumulate()
        optimizer.step()
        assert optimizer.state_bytes() == elements * per_element
