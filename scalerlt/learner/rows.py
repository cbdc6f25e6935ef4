"""Packed rows: the tokens of several sequences one after the other, without padding, run through the loops together.

Norms, projections, MLPs and the readout see real tokens only; attention alone lays them out as sequences. With exit
depths a row takes part in as many loops as it has depth. Under `last_exited` a token of depth e leaves, at each
physical layer, one version of its K and V per loop up to e, and a query at loop d reads version min(d, e): the K and V
of a row that has exited stay as they were. That may be done for all positions at once, because a token's version d
depends on versions up to d of itself and the tokens before it, and on nothing else. (vllm-rlt's `last_exited` layout;
`execution_depths` of the Ouro provider in 0z5a/vime.)

Every write is out of place, so the result may be differentiated; and whatever a loop or a layer reads is among its
arguments, so every checkpoint schedule may run it again.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol, cast

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional

from scalerlt.learner.checkpoint.schedule import Schedule, Step
from scalerlt.models.ouro import Layer, OuroForCausalLM


class AttendRows(Protocol):
    """Attention of the rows that ask."""

    def __call__(self, loop: int, layer: int, rows: Tensor | None, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """The attention output of the asking rows, [Q, heads, head_dim].

        Args:
            loop, layer: from 0.
            rows: [Q] int64, which rows ask; None: all.
            q: [Q, heads, head_dim] of the asking rows, rotated, not scaled.
            k, v: [R, kv_heads, head_dim] of all rows, k rotated; those that have exited as they were at their exit.
        """


def run_loops(
    model: OuroForCausalLM,
    schedule: Schedule,
    inputs: Tensor,
    positions: Tensor,
    depths: Tensor | None,
    attend: AttendRows,
) -> list[Tensor]:
    """Packed rows after each of the K loops, [R, H] each; a row that has exited stays as it was at its exit.

    Args:
        model: the policy.
        schedule: how layers and loops are executed.
        inputs: [R] int64, the tokens of the rows; at least one.
        positions: [R] int64, where they stand in their sequences.
        depths: [R] int64, loops that each row runs, at least one; None: all rows run all loops.
        attend: attention among them.
    """
    steps: list[Step] = []
    for loop in range(model.config.total_ut_steps):
        rows = None if depths is None or loop == 0 else (depths > loop).nonzero()[:, 0]
        if rows is None or len(rows):
            steps.append(partial(_loop, model, schedule, partial(attend, loop), positions, rows, depths is not None))
    states = schedule.loops(steps, model.rotary(positions), model.embed(inputs))
    return states + states[-1:] * (model.config.total_ut_steps - len(steps))


def _loop(
    model: OuroForCausalLM,
    schedule: Schedule,
    attend: partial[Tensor],
    positions: Tensor,
    rows: Tensor | None,
    keeps_planes: bool,
    cos: Tensor,
    sin: Tensor,
    x: Tensor,
    *planes: Tensor,
) -> tuple[Tensor, ...]:
    """One loop of the running rows: L layers and the final norm."""
    running = [tensor if rows is None else tensor[rows] for tensor in (positions, cos, sin, x)]
    layers: list[Step] = [
        partial(
            _layer,
            cast(Layer, layer),
            schedule,
            partial(attend, index),
            running[0],
            rows,
            index if keeps_planes else None,
        )
        for index, layer in enumerate(model.model.layers)
    ]
    h, *planes_after = schedule.layers(layers, running[1:3], running[3], planes)
    h = model.model.norm(h)
    return h if rows is None else x.index_copy(0, rows, h), *planes_after


def _layer(
    layer: Layer,
    schedule: Schedule,
    attend: partial[Tensor],
    positions: Tensor,
    rows: Tensor | None,
    plane: int | None,
    cos: Tensor,
    sin: Tensor,
    x: Tensor,
    *planes: Tensor,
) -> tuple[Tensor, ...]:
    """One layer of the running rows; where `plane` is its number, its K and V stand there or are put there."""
    q, k, v = layer.project(x, cos, sin)
    if rows is not None and plane is not None:
        k = planes[2 * plane].index_copy(0, rows, k)
        v = planes[2 * plane + 1].index_copy(0, rows, v)
    if plane is not None:
        planes = (*planes[: 2 * plane], k, v, *planes[2 * plane + 2 :])
    return schedule.queries(partial(_finish, layer, attend), positions, rows, x, q, k, v), *planes


def _finish(
    layer: Layer, attend: partial[Tensor], rows: Tensor | None, x: Tensor, q: Tensor, k: Tensor, v: Tensor
) -> Tensor:
    return layer.finish(x, attend(rows, q, k, v))


@dataclass(frozen=True)
class Places:
    """Where packed rows stand in sequences that are padded on the right.

    Attributes:
        sequences, width: of the padded shape.
        rows: [R] int64, the place of every row in the flattened shape; None: the rows fill it in order.
    """

    sequences: int
    width: int
    rows: Tensor | None = None

    def of(self, rows: Tensor | None) -> Tensor | None:
        """The places of some rows, int64; None: of all, which fill the shape in order."""
        if rows is None:
            return self.rows
        return rows if self.rows is None else self.rows[rows]


def places_of(lengths: Sequence[int], device: torch.device) -> Places:
    """The places of the rows of sequences of these lengths, at least one of them above 0."""
    width = max(lengths)
    if min(lengths) == width:
        return Places(len(lengths), width)
    rows = [index * width + place for index, length in enumerate(lengths) for place in range(length)]
    return Places(len(lengths), width, torch.tensor(rows, device=device))


def padded(x: Tensor, places: Tensor | None, sequences: int, width: int) -> Tensor:
    """Packed rows [N, heads, D] as sequences [B, heads, T, D], zero where no row stands."""
    if places is not None:
        x = _Spread.apply(x, places, sequences * width)
    return x.unflatten(0, (sequences, width)).transpose(1, 2)


def packed(x: Tensor, places: Tensor | None) -> Tensor:
    """The inverse of `padded`."""
    flat = x.transpose(1, 2).flatten(0, 1)
    return flat if places is None else _Gather.apply(flat, places)


class _Spread(torch.autograd.Function):
    """Rows to distinct places of `size`, zeros elsewhere; torch's own `index_copy` would keep the rows, of which its
    backward pass wants the shape alone."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, places: Tensor, size: int) -> Tensor:
        ctx.save_for_backward(places)
        return x.new_zeros(size, *x.shape[1:]).index_copy_(0, places, x)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        (places,) = ctx.saved_tensors
        return gradient.index_select(0, places), None, None


class _Gather(torch.autograd.Function):
    """Rows from distinct places, the inverse of `_Spread`."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, places: Tensor) -> Tensor:
        ctx.save_for_backward(places)
        ctx.size = len(x)
        return x.index_select(0, places)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        (places,) = ctx.saved_tensors
        return gradient.new_zeros(ctx.size, *gradient.shape[1:]).index_copy_(0, places, gradient), None


def attend_within(
    places: Places, loop: int, layer: int, rows: Tensor | None, q: Tensor, k: Tensor, v: Tensor
) -> Tensor:
    """`AttendRows` of whole sequences: each asking row attends to itself and the rows before it in its sequence.

    Only the columns between the first and the last asking row are scored, with the keys up to that.
    """
    asking, start, stop = places.of(rows), 0, places.width
    if rows is not None and asking is not None:
        columns = asking % places.width
        start, stop = int(columns.min()), int(columns.max()) + 1
        asking = asking // places.width * (stop - start) + columns - start
    k, v = (padded(tensor, places.rows, places.sequences, places.width)[:, :, :stop] for tensor in (k, v))
    queries = padded(q, asking, places.sequences, stop - start)
    visible = None
    if start:
        visible = torch.ones(stop - start, stop, dtype=torch.bool, device=q.device).tril(start)
    attended = functional.scaled_dot_product_attention(
        queries, k, v, attn_mask=visible, is_causal=visible is None, enable_gqa=True
    )
    return packed(attended, asking)
