"""One decode step of a looped model: each token runs its loops and leaves the batch where it stops."""

from collections.abc import Sequence

import torch
from torch import Tensor

from scalerlt.models.ouro import OuroForCausalLM
from scalerlt.numerics.precision import internal_dtype
from scalerlt.rollout.exit_rule import ExitRule
from scalerlt.rollout.kv_cache import KVCache


def run_loops(
    model: OuroForCausalLM,
    cache: KVCache,
    tokens: Tensor,
    positions: Tensor,
    *,
    used: int,
    rule: ExitRule | None,
    forced_depths: Sequence[int | None],
) -> tuple[Tensor, list[int]]:
    """Runs one token of each of the slots 0 .. n-1.

    A token that stops at depth d leaves its K/V of loop d as those of all deeper loops (`last_exited`), and its row is
    computed no further. At loop r it has read of every earlier token the K/V of loop min(r, that token's depth).

    Args:
        tokens: [n] int64, the newest token of each slot.
        positions: [n] int64, where it stands.
        used: 1 + the largest position.
        rule: when a token stops; None: at full depth.
        forced_depths: for each slot the depth at which its token stops whatever the rule and the gate say, or None.

    Returns:
        The hidden states [n, H] that the next tokens are read out from, and the n depths, from 1.
    """
    device, full_depth = model.device, model.config.total_ut_steps
    rule = rule or ExitRule(threshold=1.0, min_loops=full_depth)
    limits = [depth or rule.max_loops or full_depth for depth in forced_depths]
    asks = [rule.asks_gate and depth is None for depth in forced_depths]
    # Before this loop no token can stop, and there is nothing to ask the device.
    earliest = min(rule.min_loops if ask else limit for ask, limit in zip(asks, limits, strict=True))

    slots = torch.arange(len(tokens), device=device)
    last_loop = torch.tensor(limits, device=device)
    asked = torch.tensor(asks, device=device)
    remaining = torch.ones(len(tokens), dtype=internal_dtype(model.dtype), device=device)
    due = torch.zeros_like(asked)  # stopped by the gate in the loop before, where the rule has a delay
    x = model.embed(tokens[:, None])
    cos, sin = model.rotary(positions[:, None])
    attend = cache.decode(positions, used)
    hidden, depths = torch.empty_like(x[:, 0]), torch.empty_like(tokens)
    for loop in range(1, full_depth + 1):
        x = model.loop(loop - 1, x, cos, sin, attend=attend)
        if any(asks):
            remaining = remaining * torch.sigmoid(-model.exit_gate(x[:, 0]))
        if loop < earliest:
            continue
        stopped = asked & rule.stops(loop, remaining)
        stopping = (last_loop == loop) | (due if rule.delay else stopped)
        due = stopped
        leaving, staying = stopping.nonzero()[:, 0], (~stopping).nonzero()[:, 0]
        hidden[slots[leaving]] = x[leaving, 0]
        depths[slots[leaving]] = loop
        if loop < full_depth:
            cache.copy_to_deeper(slots[leaving], positions[leaving], loop)
        if not len(staying):
            break
        if len(leaving):
            x, cos, sin, slots, positions, last_loop, asked, remaining, due = (
                state[staying] for state in (x, cos, sin, slots, positions, last_loop, asked, remaining, due)
            )
            attend = cache.decode(positions, used, slots)
    return hidden, depths.tolist()
