"""What an activation checkpoint schedule decides: how loops, layers and queries of packed rows are executed."""

from collections.abc import Callable, Sequence
from typing import Protocol

from torch import Tensor

Step = Callable[..., tuple[Tensor, ...]]
"""A loop or a layer: (cos, sin, x, *planes) to (x, *planes), x [R, H]; planes are the K and V of layers that deeper
loops read, where rows exit early.

It depends on its arguments and on the model's parameters, on no other tensor that autograd knows, so it may be run
again on the same arguments.
"""

Finish = Callable[..., Tensor]
"""The part of a layer behind its projections: (rows, x, q, k, v) to x, of the rows that ask. `k` and `v` are those of
all rows of the batch; `rows` says which of these ask, None: all. As free of other tensors as a step."""


class Schedule(Protocol):
    """How loops and layers are executed."""

    def loops(self, steps: Sequence[Step], tables: Sequence[Tensor], x: Tensor) -> list[Tensor]:
        """The states after each loop, one step being run on the result of the one before.

        Args:
            steps: the loops.
            tables: cos and sin.
            x: the input of the first loop.
        """

    def layers(
        self, steps: Sequence[Step], tables: Sequence[Tensor], x: Tensor, planes: Sequence[Tensor]
    ) -> tuple[Tensor, ...]:
        """The same for the layers of a loop: x after the last of them, and the planes."""

    def queries(
        self, finish: Finish, positions: Tensor, rows: Tensor | None, x: Tensor, q: Tensor, k: Tensor, v: Tensor
    ) -> Tensor:
        """`finish(rows, x, q, k, v)`.

        Args:
            finish: whose result for a row does not depend on which others ask.
            positions: of the asking rows in their sequences.
            rows, x, q, k, v: as it takes them.
        """


def run(steps: Sequence[Step], *arguments: Tensor) -> tuple[Tensor, ...]:
    """One step after the other on (cos, sin, x, *planes): x after each of them, then the last planes."""
    cos, sin, x, *planes = arguments
    states = []
    for step in steps:
        x, *planes = step(cos, sin, x, *planes)
        states.append(x)
    return *states, *planes


def run_to_last(steps: Sequence[Step], *arguments: Tensor) -> tuple[Tensor, ...]:
    """As `run`, x after the last step alone."""
    return run(steps, *arguments)[len(steps) - 1 :]


class NoCheckpoint:
    """`checkpoint=none`: everything is computed once, and autograd keeps the whole graph."""

    def loops(self, steps: Sequence[Step], tables: Sequence[Tensor], x: Tensor) -> list[Tensor]:
        """As in `Schedule`."""
        return list(run(steps, *tables, x)[: len(steps)])

    def layers(
        self, steps: Sequence[Step], tables: Sequence[Tensor], x: Tensor, planes: Sequence[Tensor]
    ) -> tuple[Tensor, ...]:
        """As in `Schedule`."""
        return run_to_last(steps, *tables, x, *planes)

    def queries(
        self, finish: Finish, positions: Tensor, rows: Tensor | None, x: Tensor, q: Tensor, k: Tensor, v: Tensor
    ) -> Tensor:
        """As in `Schedule`."""
        return finish(rows, x, q, k, v)


DIRECT = NoCheckpoint()
