"""Optimizers of the policy, with fp32 master weights for parameters that are stored below fp32."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn.utils import clip_grads_with_norm_, get_total_norm


@dataclass(frozen=True, kw_only=True)
class OptimizerSettings:
    """What an optimizer is made of; names are torch.optim's where they differ from none.

    Attributes:
        name: "adamw" (arXiv 1711.05101) or "sgd".
        learning_rate: constant.
        weight_decay: on every parameter, norms included.
        max_grad_norm: clip the global gradient norm to this; None: never.
        betas, eps: AdamW's.
        momentum: SGD's.
    """

    name: Literal["adamw", "sgd"]
    learning_rate: float
    weight_decay: float = 0.0
    max_grad_norm: float | None = None
    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8
    momentum: float = 0.0


def freeze_exit_gate(model: nn.Module) -> None:
    """The exit gate is not trained by reinforcement learning: no gradient reaches it, no optimizer state is kept."""
    for name, parameter in model.named_parameters():
        if "early_exit_gate" in name:
            parameter.requires_grad_(False)


class ActorOptimizer:
    """Steps the trainable parameters of a model.

    Parameters in bf16 and fp16 get an fp32 master copy: their gradients are accumulated over the micro-batches and
    applied in fp32, and the result is rounded back, so that an update below the format's resolution adds up instead
    of being lost. Parameters in fp32 and fp64 are their own masters.

    Attributes:
        masters: the weights that are stepped, by parameter name.
    """

    def __init__(self, model: nn.Module, settings: OptimizerSettings) -> None:
        self._parameters = {name: p for name, p in model.named_parameters() if p.requires_grad}
        self.masters = {name: _master(parameter) for name, parameter in self._parameters.items()}
        self._max_grad_norm = settings.max_grad_norm
        self._optimizer = _make(list(self.masters.values()), settings)

    def accumulate(self) -> None:
        """Take over the gradients of one backward pass; to be called after each."""
        for name, parameter in self._parameters.items():
            master = self.masters[name]
            if master is not parameter and parameter.grad is not None:
                gradient = parameter.grad.to(master.dtype)
                master.grad = gradient if master.grad is None else master.grad.add_(gradient)
                parameter.grad = None

    def gradients(self) -> dict[str, Tensor | None]:
        """The accumulated gradients, in their masters' precision; valid until the next step."""
        return {name: master.grad for name, master in self.masters.items()}

    def step(self) -> float:
        """Clip, step, round back, clear.

        Returns:
            The global gradient norm before clipping, 0 without gradients. Where it is not finite the weights stay as
            they are.
        """
        norm = get_total_norm([master.grad for master in self.masters.values() if master.grad is not None])
        if torch.isfinite(norm):
            if self._max_grad_norm is not None:
                clip_grads_with_norm_(self.masters.values(), self._max_grad_norm, norm)
            self._optimizer.step()
            self._round_back()
        self.clear()
        return float(norm)

    def clear(self) -> None:
        """Drop the accumulated gradients."""
        self._optimizer.zero_grad(set_to_none=True)
        for parameter in self._parameters.values():
            parameter.grad = None

    def moments(self) -> dict[str, dict[str, Tensor]]:
        """The state of the optimizer by kind (exp_avg, exp_avg_sq, momentum_buffer) and parameter name."""
        moments: dict[str, dict[str, Tensor]] = {}
        for name, master in self.masters.items():
            for kind, value in self._optimizer.state[master].items():
                if isinstance(value, Tensor) and value.shape == master.shape and kind != "step":
                    moments.setdefault(kind, {})[name] = value
        return moments

    def state(self) -> dict[str, Any]:
        """All that a step depends on beside the gradients: master weights by name, and torch's optimizer state."""
        masters = {name: master.detach().clone() for name, master in self.masters.items()}
        return {"masters": masters, "torch": self._optimizer.state_dict()}

    @torch.no_grad()
    def restore(self, state: Mapping[str, Any]) -> None:
        """Take over what `state` gave, and round the parameters back from the masters."""
        for name, master in self.masters.items():
            master.copy_(state["masters"][name])
        self._optimizer.load_state_dict(state["torch"])
        self._round_back()

    def state_bytes(self) -> int:
        """Bytes of moments and of master weights that are not the parameters themselves."""
        return self.master_bytes + self._moment_bytes()

    @property
    def master_bytes(self) -> int:
        """Bytes of the master weights that are not the parameters themselves."""
        return _nbytes(master for name, master in self.masters.items() if master is not self._parameters[name])

    def step_traffic(self, *, updated: bool) -> int:
        """Bytes that one `step` moves, from the state as it is after it; what makes the state first is not counted.

        The norm reads each gradient once and clipping reads and writes it. The update reads each gradient, weight and
        moment once and writes each weight and moment once. Rounding back reads masters and writes parameters.

        Args:
            updated: whether the gradient was finite; else only the norm is taken.
        """
        weights = gradients = _nbytes(self.masters.values())
        if not updated:
            return gradients
        clipping = 0 if self._max_grad_norm is None else 2 * gradients
        rounding = self.master_bytes + _nbytes(self._parameters.values()) if self.master_bytes else 0
        return gradients + clipping + gradients + 2 * (weights + self._moment_bytes()) + rounding

    def _moment_bytes(self) -> int:
        return sum(_nbytes(moments.values()) for moments in self.moments().values())

    @torch.no_grad()
    def _round_back(self) -> None:
        for name, parameter in self._parameters.items():
            if self.masters[name] is not parameter:
                parameter.copy_(self.masters[name])


def _nbytes(tensors: Iterable[Tensor]) -> int:
    return sum(tensor.nbytes for tensor in tensors)


def _master(parameter: nn.Parameter) -> Tensor:
    if parameter.dtype in (torch.float32, torch.float64):
        return parameter
    return parameter.detach().float().requires_grad_()


def _make(masters: list[Tensor], settings: OptimizerSettings) -> torch.optim.Optimizer:
    if settings.name == "adamw":
        return torch.optim.AdamW(
            masters,
            lr=settings.learning_rate,
            betas=settings.betas,
            eps=settings.eps,
            weight_decay=settings.weight_decay,
        )
    if settings.name == "sgd":
        return torch.optim.SGD(
            masters, lr=settings.learning_rate, momentum=settings.momentum, weight_decay=settings.weight_decay
        )
    raise ValueError(f"optimizer {settings.name!r} is neither adamw nor sgd")
