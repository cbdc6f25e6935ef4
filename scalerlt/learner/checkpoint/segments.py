"""`checkpoint=segments`, and `layer` and `loop`, which are segments of one layer and of one loop."""

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import TypeVar

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from scalerlt.learner.checkpoint.schedule import Finish, NoCheckpoint, Step, run, run_to_last

Result = TypeVar("Result")


class Segments(NoCheckpoint):
    """A segment's inside is computed again when its backward pass comes; of the rest of the graph only the inputs of
    segments are kept. Segments of layers lie within those of loops, chunks of queries within those of layers.

    Args:
        loop_interval: consecutive loops of a segment; 0: loops make no segments.
        layer_interval: consecutive layers of a segment, within a loop; 0: layers make none.
        query_chunk: positions whose queries go through attention, output projection and MLP of a layer together, with
            all K and V up to the last of them; 0: all positions.
    """

    def __init__(self, loop_interval: int, layer_interval: int, query_chunk: int) -> None:
        self._loop_interval = loop_interval
        self._layer_interval = layer_interval
        self._query_chunk = query_chunk

    def loops(self, steps: Sequence[Step], tables: Sequence[Tensor], x: Tensor) -> list[Tensor]:
        """As in `Schedule`."""
        if not self._loop_interval:
            return super().loops(steps, tables, x)
        states: list[Tensor] = []
        planes: Sequence[Tensor] = ()
        for segment in cut(steps, self._loop_interval):
            found = region(partial(run, segment), *tables, x, *planes)
            states += found[: len(segment)]
            x, planes = states[-1], found[len(segment) :]
        return states

    def layers(
        self, steps: Sequence[Step], tables: Sequence[Tensor], x: Tensor, planes: Sequence[Tensor]
    ) -> tuple[Tensor, ...]:
        """As in `Schedule`."""
        if not self._layer_interval:
            return super().layers(steps, tables, x, planes)
        for segment in cut(steps, self._layer_interval):
            x, *planes = region(partial(run_to_last, segment), *tables, x, *planes)
        return x, *planes

    def queries(
        self, finish: Finish, positions: Tensor, rows: Tensor | None, x: Tensor, q: Tensor, k: Tensor, v: Tensor
    ) -> Tensor:
        """As in `Schedule`."""
        if not self._query_chunk:
            return finish(rows, x, q, k, v)
        chunks = positions // self._query_chunk
        asking = [(chunks == chunk).nonzero()[:, 0] for chunk in chunks.unique().tolist()]
        parts = [region(partial(finish, one if rows is None else rows[one]), x[one], q[one], k, v) for one in asking]
        return torch.cat(parts).index_select(0, torch.cat(asking).argsort())


class LayerCheckpoint(Segments):
    """`checkpoint=layer`: the input of each layer in each loop is kept; one layer's activations are live at a time."""

    def __init__(self) -> None:
        super().__init__(loop_interval=0, layer_interval=1, query_chunk=0)


class LoopCheckpoint(Segments):
    """`checkpoint=loop`: the input of each loop is kept; one loop's activations are live at a time."""

    def __init__(self) -> None:
        super().__init__(loop_interval=1, layer_interval=0, query_chunk=0)


def region(fn: Callable[..., Result], *arguments: object) -> Result:
    """`fn(*arguments)`, of which autograd keeps only `arguments`; it is run again in its backward pass.

    The model has no dropout and draws no random numbers, so no random state is kept for the second run.
    """
    result: Result = checkpoint(fn, *arguments, use_reentrant=False, preserve_rng_state=False)
    return result


def cut(steps: Sequence[Step], interval: int) -> Iterator[Sequence[Step]]:
    """Consecutive parts of `interval` steps, the last maybe of fewer."""
    for start in range(0, len(steps), interval):
        yield steps[start : start + interval]
