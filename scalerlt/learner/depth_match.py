"""Would the policy, as it is now, still stop where the rollout stopped?"""

from typing import Protocol

import torch
from torch import Tensor

from scalerlt.learner.batching import PackedBatch
from scalerlt.learner.logprobs import ReplayKV, run_and_read_depths
from scalerlt.learner.sequences import first_tokens, row_depths, sequence_states
from scalerlt.models.ouro import OuroForCausalLM


class StoppingRule(Protocol):
    """When a decode token stops (`rollout.exit_rule.ExitRule`)."""

    @property
    def delay(self) -> int:
        """Loops that still run after the one in which the gate says stop."""

    @property
    def max_loops(self) -> int | None:
        """Most loops of a decode token; None: K."""

    @property
    def asks_gate(self) -> bool:
        """Whether the exit gate decides anything."""

    def stops(self, loop: int, remaining: Tensor) -> Tensor:
        """Which tokens the gate stops after `loop`, from the probability that remains for deeper loops."""


@torch.no_grad()
def depth_matches(
    model: OuroForCausalLM, batch: PackedBatch, rule: StoppingRule, kv: ReplayKV = "last_exited"
) -> tuple[int, int]:
    """Replay recorded depths and ask the gate at every loop that ran.

    A decode token matches when the rule stops it at its recorded depth and nowhere before. First response tokens, which
    always have full depth, do not count.

    Args:
        model: the policy.
        batch: what was generated.
        rule: that stopped it.
        kv: of the rollout.

    Returns:
        The tokens that match, and all that count.
    """
    full_depth = model.config.total_ut_steps
    depths = row_depths(batch, full_depth)
    remaining = torch.ones(len(depths), dtype=torch.float64, device=depths.device)
    most = min(rule.max_loops or full_depth, full_depth)
    predicted = torch.full_like(depths, most)
    undecided = torch.ones_like(depths, dtype=torch.bool)
    run, _ = run_and_read_depths(kv, depths)
    for loop, states in enumerate(sequence_states(model, batch, run), start=1):
        rows = (depths >= loop).nonzero()[:, 0]
        remaining[rows] *= 1 - torch.sigmoid(model.exit_gate(states[rows])).double()
        if rule.asks_gate:
            stopped = rows[rule.stops(loop, remaining[rows]) & undecided[rows]]
            predicted[stopped] = min(loop + rule.delay, most)
            undecided[stopped] = False
    counted = torch.ones(len(batch.predictors), dtype=torch.bool, device=depths.device)
    counted[first_tokens(batch)] = False
    rows = batch.predictors[counted]
    # Where the gate did not stop a token by the depth at which it was recorded to stop, it would have gone deeper.
    deeper = undecided[rows] & (depths[rows] < predicted[rows])
    matches = (predicted[rows] == depths[rows]) & ~deeper
    return int(matches.sum()), len(rows)
