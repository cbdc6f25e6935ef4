"""Packed replay: the rollout's own schedule over recorded tokens and depths, all positions in parallel.

Under `last_exited` a token with exit depth e leaves, at each physical layer, one version of its K and V per loop up to
e, and a query at loop d reads version min(d, e). Loop d is therefore run on the rows with depth >= d alone; the K and
V of all other rows stay as they were at their exit. Parallel over positions it may be, because a token's version d
depends on versions up to d of itself and the tokens before it, and on nothing else. (vllm-rlt's `last_exited` layout;
`execution_depths` of the Ouro provider in 0z5a/vime.)

Every write is out of place, so the result may be differentiated; and whatever a layer or a loop reads is among its
arguments, so every checkpoint schedule may run it again.
"""

from collections.abc import Sequence
from functools import partial

import torch
from torch import Tensor, nn

from scalerlt.learner.batching import PaddedBatch
from scalerlt.models.ouro import DIRECT, OuroForCausalLM, Schedule, causal_attention


def replay_states(model: OuroForCausalLM, batch: PaddedBatch, schedule: Schedule | None = None) -> Tensor:
    """The hidden state that each response token was read out from: h of its exit depth, under the rollout's schedule.

    Rows of one loop are packed for everything but attention, which runs over the padded batch.

    Args:
        model: the policy.
        batch: tokens and exit depths; without exit depths every token runs all K loops.
        schedule: activation checkpointing; None: none. Whatever it drops, the K and V of every loop and layer are
            kept, since the next loop reads them.

    Returns:
        [N, H], in the order of `batch.targets`.

    Raises:
        ValueError: exit depths that no rollout of this model leaves.
    """
    schedule = schedule or DIRECT
    depths = input_depths(batch, model.config.total_ut_steps)
    count, width = batch.input_ids.shape
    hidden = model.embed(batch.input_ids.flatten())
    cos, sin = model.rotary(torch.arange(width, device=hidden.device).repeat(count))
    plane = hidden.new_zeros(count * width, model.config.num_key_value_heads, model.config.head_dim)
    planes: Sequence[Tensor] = (plane,) * (2 * model.config.num_hidden_layers)
    for loop in range(model.config.total_ut_steps):
        rows = (depths > loop).nonzero()[:, 0]
        run = partial(_loop, model, schedule, batch.input_ids.shape, rows)
        states, *planes = schedule.loop(run, hidden[rows], cos[rows], sin[rows], *planes)
        hidden = hidden.index_copy(0, rows, states)
    return hidden[batch.predictors]


def input_depths(batch: PaddedBatch, full_depth: int) -> Tensor:
    """Loops that each row of the flattened batch runs: [B * S] int64, 0 at padding.

    Raises:
        ValueError: an exit depth outside 1 .. K, or a response whose first token was not produced at depth K, as the
            prompt always runs all loops.
    """
    places = torch.arange(batch.input_ids.shape[1], device=batch.input_ids.device)
    depths = (places < batch.lengths[:, None]).flatten() * full_depth
    if batch.exit_depths is None:
        return depths
    if bool(((batch.exit_depths < 1) | (batch.exit_depths > full_depth)).any()):
        raise ValueError(f"exit_depths holds a depth outside 1 .. {full_depth}")
    lengths = batch.response_mask.sum(1)
    first = (lengths.cumsum(0) - lengths)[lengths > 0]
    if bool((batch.exit_depths[first] != full_depth).any()):
        raise ValueError(f"exit_depths of a response does not start with {full_depth}: prompts run all loops")
    return depths.index_copy(0, batch.predictors, batch.exit_depths)


def _loop(
    model: OuroForCausalLM,
    schedule: Schedule,
    shape: torch.Size,
    rows: Tensor,
    x: Tensor,
    cos: Tensor,
    sin: Tensor,
    *planes: Tensor,
) -> tuple[Tensor, ...]:
    """One loop over the packed rows x [R, H]: their h, and K and V of every layer with the rows' own replaced."""
    updated: list[Tensor] = []
    for layer, keys, values in zip(model.model.layers, planes[::2], planes[1::2], strict=True):
        x, *pair = schedule.layer(partial(_layer, layer, shape, rows), x, cos, sin, keys, values)
        updated += pair
    return model.model.norm(x), *updated


def _layer(
    layer: nn.Module, shape: torch.Size, rows: Tensor, x: Tensor, cos: Tensor, sin: Tensor, keys: Tensor, values: Tensor
) -> tuple[Tensor, ...]:
    """One layer over the packed rows; keys and values are [B * S, kv_heads, head_dim]."""
    planes: tuple[Tensor, Tensor] = (keys, values)

    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        nonlocal planes
        planes = (keys.index_copy(0, rows, k), values.index_copy(0, rows, v))
        queries = q.new_zeros(len(keys), *q.shape[1:]).index_copy(0, rows, q)
        attended = causal_attention(0, 0, *(tensor.unflatten(0, shape) for tensor in (queries, *planes)))
        return attended.flatten(0, 1)[rows]

    return layer(x, cos, sin, attend), *planes
