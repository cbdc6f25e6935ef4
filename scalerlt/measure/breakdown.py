"""What the bytes are that a learner step holds at its peak: weights, gradients, optimizer, activations, logits, K/V.

Every storage belongs to one part for its whole life, and may show only later to which: a matrix is a gradient once it
is somebody's `.grad`. So the step runs first, and the bytes are added up afterwards.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any, Literal, get_args

import torch
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from scalerlt.measure.live_memory import DeviceAllocator
from scalerlt.measure.memory import OnPhase
from scalerlt.measure.storages import Operation, Storages
from scalerlt.measure.workspace import CpuWorkspace, CudaWorkspace, Workspace

Part = Literal["weights", "gradients", "optimizer", "activations", "logits", "kv", "other"]
PARTS: tuple[Part, ...] = get_args(Part)
_PRECEDENCE: tuple[Part, ...] = ("weights", "optimizer", "gradients", "kv", "logits", "activations")

_PRODUCTS = ("mm", "addmm", "addmm_", "bmm", "baddbmm", "baddbmm_", "mv", "addmv", "linear", "matmul")
_MOVES = (
    *("clone", "copy_", "_to_copy", "cat", "stack", "repeat", "constant_pad_nd", "gather"),
    *("index", "index_select", "index_copy", "index_copy_", "index_put", "index_put_", "masked_scatter"),
)
_SUMS = ("add", "add_", "clone", "copy_", "_to_copy")


@dataclass(frozen=True, kw_only=True)
class Standing:
    """What stands before a step and after it, and what gives away what the rest is.

    Attributes:
        weights: parameters.
        optimizer: moments and master weights; a parameter that is its own master counts as a weight.
        heads: weights whose product with hidden states is logits.
    """

    weights: tuple[Tensor, ...]
    optimizer: tuple[Tensor, ...] = ()
    heads: tuple[Tensor, ...] = ()


@dataclass(frozen=True, kw_only=True)
class ByPart:
    """Bytes of each part at the moment at which most bytes were live, of the whole step and of each phase."""

    step: dict[Part, int]
    phases: dict[str, dict[Part, int]]


def break_down(step: Callable[[OnPhase], object], *, device: torch.device, standing: Standing) -> ByPart:
    """Run `step` once, given the factory of its phases, and tell what its bytes are; slow, for it follows everything.

    Args:
        step: one whole step. It must have run before, so that what it makes once (optimizer state) stands.
        device: where it runs.
        standing: what is there before it.
    """
    breakdown = Breakdown(device, standing)
    with breakdown.tracing():
        step(breakdown.phase)
    return breakdown.peaks()


class Breakdown:
    """Counts, while a step is traced, the bytes of each part.

    - weights, optimizer: storages of `Standing`.
    - gradients: storages that become `.grad` of one of those, and what is added to or copied into them.
    - kv: storages given to attention as keys or values, and what is copied into them.
    - logits: products with a head, and what is computed from them, or with them, element by element: softmax, their
      gradients.
    - activations: any other storage that a forward pass saves for its backward pass. What a checkpoint would save, and
      drops, is one too, for as long as it lives.
    - other: all else: temporaries, gradients of activations, adjoints of a boundary, the workspace of kernels.

    A storage that is several of them is the first in the order weights, optimizer, gradients, kv, logits, activations;
    it counts once, with its whole size, however many tensors share it.

    Args:
        device: where the step runs.
        standing: what is there before it.
    """

    def __init__(self, device: torch.device, standing: Standing) -> None:
        self._standing = standing
        self._workspace: Workspace = CudaWorkspace(DeviceAllocator(device)) if device.type == "cuda" else CpuWorkspace()
        self._storages = Storages(device, self._workspace, self._observe)
        self._parts: dict[Part, set[int]] = {part: set() for part in PARTS}
        self._heads: set[int] = set()
        self._moved: defaultdict[int, set[int]] = defaultdict(set)
        self._summed: defaultdict[int, set[int]] = defaultdict(set)

    @contextmanager
    def tracing(self) -> Iterator[None]:
        """Follow what runs inside; once per object."""
        self._stand("weights", self._standing.weights)
        self._stand("optimizer", self._standing.optimizer)
        self._heads = self._storages.numbers(self._standing.heads)
        with ExitStack() as stack:
            stack.callback(self._storages.stop)
            for weight in self._standing.weights:
                if weight.requires_grad:
                    stack.callback(weight.register_post_accumulate_grad_hook(self._mark_gradient).remove)
            for leaf in (*self._standing.weights, *self._standing.optimizer):
                if leaf.grad is not None:
                    self._storages.follow(leaf.grad)
            stack.enter_context(self._workspace.tracing())
            stack.enter_context(_noting_saved(lambda tensor: self._mark("activations", [tensor])))
            stack.enter_context(_AttentionCalls(lambda tensors: self._mark("kv", tensors)))
            stack.enter_context(self._storages)
            self._mark_gradients()
            yield
            self._mark_gradients()

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """What runs inside is (a part of) phase `name`."""
        with self._storages.phase(name):
            yield
        self._mark_gradients()

    def peaks(self) -> ByPart:
        """What was traced."""
        members = {
            **self._parts,
            "gradients": _with_sources(self._parts["gradients"], self._summed),
            "kv": _with_sources(self._parts["kv"], self._moved),
        }
        known: dict[int, Part] = {}
        for part in reversed(_PRECEDENCE):
            known |= dict.fromkeys(members[part], part)
        step, phases = self._storages.peaks(lambda number: known.get(number, "other"))

        def whole(live: dict[str, int]) -> dict[Part, int]:
            return {part: live.get(part, 0) for part in PARTS}

        return ByPart(step=whole(step), phases={name: whole(live) for name, live in phases.items()})

    def _stand(self, part: Part, tensors: Iterable[Tensor]) -> None:
        for tensor in tensors:
            self._storages.follow(tensor)
            self._mark(part, [tensor])

    def _mark(self, part: Part, tensors: Iterable[Tensor]) -> None:
        self._parts[part] |= self._storages.numbers(tensors)

    def _mark_gradient(self, leaf: Tensor) -> None:
        if leaf.grad is not None:
            self._mark("gradients", [leaf.grad])

    def _mark_gradients(self) -> None:
        for leaf in (*self._standing.weights, *self._standing.optimizer):
            self._mark_gradient(leaf)

    def _observe(self, operation: Operation) -> None:
        if "scaled_dot_product" in operation.name:
            self._mark("kv", [operation.arguments["key"], operation.arguments["value"]])
        elif operation.name in _PRODUCTS:
            self._observe_product(operation)
        else:
            self._observe_logits(operation)
        if operation.name in _MOVES:
            self._link(operation, self._moved)
        if operation.name == "add" and torch._C._current_graph_task_id() != -1 and not torch.is_grad_enabled():
            # Where no dispatch mode is entered, autograd adds two gradients of one tensor in place of one that has a
            # storage of its own.
            self._storages.repurposes(operation.results[0], [t for t in operation.operands if not t._is_view()])
        if operation.name in _SUMS:
            self._link(operation, self._summed)

    def _observe_product(self, operation: Operation) -> None:
        """Hidden states times a head are logits; the gradient of logits times a head is none."""
        operands = self._storages.numbers(operation.operands)
        if operands & self._heads and not operands & self._parts["logits"]:
            self._mark("logits", operation.results)

    def _observe_logits(self, operation: Operation) -> None:
        """What goes together with logits, element by element, is one of them: their softmax, their gradient."""
        logits, tensors = self._parts["logits"], [*operation.operands, *operation.results]
        shapes = {tensor.shape for tensor in tensors if tensor.dim() > 1 and self._storages.number(tensor) in logits}
        if shapes:
            self._mark("logits", [tensor for tensor in tensors if tensor.shape in shapes])

    def _link(self, operation: Operation, sources: dict[int, set[int]]) -> None:
        """The operands, indices excepted, are sources of the results."""
        operands = self._storages.numbers(tensor for tensor in operation.operands if tensor.is_floating_point())
        for number in self._storages.numbers(operation.results):
            sources[number] |= operands - {number}


def _with_sources(numbers: set[int], sources: dict[int, set[int]]) -> set[int]:
    """The numbers, their sources, the sources of those, and so on."""
    found, waiting = set(numbers), list(numbers)
    while waiting:
        new = sources.get(waiting.pop(), set()) - found
        found |= new
        waiting += new
    return found


class _AttentionCalls(TorchFunctionMode):
    """Tells of the keys and values of attention, whichever kernel it then takes or is written out as."""

    def __init__(self, note: Callable[[list[Tensor]], None]) -> None:
        super().__init__()
        self._note = note

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is functional.scaled_dot_product_attention:
            given = dict(zip(("query", "key", "value"), args, strict=False)) | kwargs
            self._note([given["key"], given["value"]])
        return func(*args, **kwargs)


@contextmanager
def _noting_saved(note: Callable[[Tensor], None]) -> Iterator[None]:
    """Tells of every tensor that autograd saves inside.

    Only the innermost saved-tensor hooks see a tensor, and a checkpoint enters its own: so each that is entered is made
    to tell.
    """
    entered = saved_tensors_hooks.__enter__

    def enter(hooks: saved_tensors_hooks) -> None:
        pack = hooks.pack_hook

        def telling(tensor: Tensor) -> Any:
            note(tensor)
            return pack(tensor)

        hooks.pack_hook = telling
        entered(hooks)
        hooks.pack_hook = pack

    saved_tensors_hooks.__enter__ = enter  # type: ignore[method-assign]
    try:
        # Detached: a saved output that led back to its own node would be a reference cycle, and never be released.
        with saved_tensors_hooks(lambda tensor: tensor.detach(), lambda tensor: tensor):
            yield
    finally:
        saved_tensors_hooks.__enter__ = entered  # type: ignore[method-assign]
