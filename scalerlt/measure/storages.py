"""Every storage that is allocated while something runs: when, by which operation, and until when it lives."""

import weakref
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from itertools import accumulate
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from scalerlt.measure.workspace import Workspace

WORKSPACE = -1
"""The number under which the workspace of an operation counts."""


class Operation(NamedTuple):
    """An operation of torch that has run.

    Attributes:
        name: without its overload: `mm`, `add_`.
        arguments: by their names in the operation's schema, those that were left out missing; `out` is not among them.
        operands: the tensors among the arguments.
        results: the tensors that it returned, `out` among them.
    """

    name: str
    arguments: dict[str, Any]
    operands: list[Tensor]
    results: list[Tensor]


class Storages(TorchDispatchMode):
    """Follows the storages of a device while it is entered; knows nothing of the allocator.

    Its count of tensors knows nothing of the allocator: they are what operations return. Only what a kernel allocates
    for itself comes from there. Storages have numbers from 0, none of which is used twice.

    Args:
        device: whose storages; only its kind counts.
        workspace: measures what kernels allocate for themselves.
        observe: is told of every operation, once its results are followed.
    """

    def __init__(self, device: torch.device, workspace: Workspace, observe: Callable[[Operation], None]) -> None:
        super().__init__()
        self._device, self._workspace, self._observe = device.type, workspace, observe
        self._numbers: dict[int, int] = {}
        self._references: dict[int, weakref.ref[torch.UntypedStorage]] = {}
        self._sizes: list[int] = []
        self._changes: list[tuple[int, int]] = []
        self._spans: dict[str, list[tuple[int, int]]] = {}
        self._operations: list[int] = []  # how many changes there were at the end of each
        self._sums: dict[int, set[int]] = {}  # by the change that allocates it, what is added up

    def follow(self, tensor: Tensor) -> None:
        """Count the storage of `tensor` from now on."""
        if tensor.device.type != self._device or tensor.layout != torch.strided:
            return
        storage = tensor.untyped_storage()
        number, size = self._numbers.get(id(storage)), storage.nbytes()
        if number is None and size:
            number = len(self._sizes)
            self._sizes.append(0)
            self._numbers[id(storage)] = number
            self._references[number] = weakref.ref(storage, self._forgetting(id(storage), number))
        if number is not None and size != self._sizes[number]:
            self._resize(number, size)

    def number(self, tensor: Tensor) -> int | None:
        """Of the storage of `tensor`; None where it is not followed."""
        return self._numbers.get(id(tensor.untyped_storage())) if tensor.layout == torch.strided else None

    def numbers(self, tensors: Iterable[Tensor]) -> set[int]:
        """Of the storages of `tensors` that are followed."""
        return {number for tensor in tensors if (number := self.number(tensor)) is not None}

    def repurposes(self, result: Tensor, operands: Iterable[Tensor]) -> None:
        """If nobody followed it, the operation that has just run would put its result in place of that of the operands
        which is freed at once, if there is one: count it as freed before."""
        if self._changes and self._changes[-1][0] == self.number(result):
            self._sums[len(self._changes) - 1] = self.numbers(operands)

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """What runs inside is (a part of) phase `name`."""
        self._changes.append((WORKSPACE, 0))  # so that no operation before it ends where it begins
        begin = len(self._changes)
        yield
        self._spans.setdefault(name, []).append((begin, len(self._changes)))

    def stop(self) -> None:
        """Follow nothing any longer; what lives on counts as living."""
        self._references.clear()

    def peaks(self, part: Callable[[int], str]) -> tuple[dict[str, int], dict[str, dict[str, int]]]:
        """Bytes at the moment at which most are live, by part; the same for each phase.

        Args:
            part: what the storage of a number, or `WORKSPACE`, belongs to.
        """
        workspace: dict[int, int] = {}
        for position, size in zip(self._operations, self._workspace.sizes(), strict=True):
            workspace[position] = max(workspace.get(position, 0), size)
        changes = self._repurposed()
        tensors = list(accumulate((change for _, change in changes), initial=0))
        totals = [size + workspace.get(position, 0) for position, size in enumerate(tensors)]

        def largest(spans: list[tuple[int, int]]) -> dict[str, int]:
            moments = (max(range(first, last + 1), key=totals.__getitem__) for first, last in spans)
            moment = max(moments, key=totals.__getitem__)
            live: dict[str, int] = {}
            for number, change in [*changes[:moment], (WORKSPACE, workspace.get(moment, 0))]:
                name = part(number)
                live[name] = live.get(name, 0) + change
            return {name: size for name, size in live.items() if size}

        return largest([(0, len(changes))]), {name: largest(spans) for name, spans in self._spans.items()}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        with self._workspace.operation():
            result = func(*args, **kwargs)
        names = [argument.name for argument in func._schema.arguments]
        arguments = dict(zip(names, args, strict=False)) | {name: kwargs[name] for name in kwargs if name != "out"}
        operation = Operation(
            func.overloadpacket.__name__, arguments, _tensors(arguments.values()), _tensors((result,))
        )
        # An unknown operand is older than the run; `torch.tensor` alone lifts one that it has just made.
        older = set() if operation.name == "lift_fresh" else {id(t.untyped_storage()) for t in operation.operands}
        for tensor in operation.results:
            if self.number(tensor) is not None or id(tensor.untyped_storage()) not in older:
                self.follow(tensor)
        self._operations.append(len(self._changes))
        self._observe(operation)
        return result

    def _repurposed(self) -> list[tuple[int, int]]:
        changes = list(self._changes)
        for index, operands in self._sums.items():
            (_, size), *following = changes[index : index + 2]
            if following and following[0][0] in operands and following[0][1] == -size:
                changes[index : index + 2] = reversed(changes[index : index + 2])
        return changes

    def _resize(self, number: int, size: int) -> None:
        self._changes.append((number, size - self._sizes[number]))
        self._sizes[number] = size

    def _forgetting(self, identity: int, number: int) -> Callable[[object], None]:
        def forget(_: object) -> None:
            del self._numbers[identity], self._references[number]
            self._resize(number, 0)

        return forget


def _tensors(values: Iterable[Any]) -> list[Tensor]:
    """Those among the values, and in the lists among them."""
    found: list[Tensor] = []
    for value in values:
        if isinstance(value, Tensor):
            found.append(value)
        elif isinstance(value, list | tuple):
            found += _tensors(value)
    return found
