"""Would the policy, as it is now, still stop where the rollout stopped?"""

from collections.abc import Callable
from typing import Protocol, TypeVar

import torch
from torch import Tensor

from scalerlt.learner.batching import PaddedBatch
from scalerlt.learner.replay import input_depths, replay_states
from scalerlt.models.ouro import OuroForCausalLM

Result = TypeVar("Result")


class StoppingRule(Protocol):
    """When a decode token stops (`rollout.exit_rule.ExitRule`)."""

    @property
    def max_loops(self) -> int | None:
        """Most loops of a decode token; None: K."""

    @property
    def asks_gate(self) -> bool:
        """Whether the exit gate decides anything."""

    def stops(self, loop: int, remaining: Tensor) -> Tensor:
        """Which tokens the gate stops after `loop`, from the probability that remains for deeper loops."""


@torch.no_grad()
def depth_matches(model: OuroForCausalLM, batch: PaddedBatch, rule: StoppingRule) -> tuple[int, int]:
    """Replay recorded depths and ask the gate at every loop that ran.

    A decode token matches when the rule stops it at its recorded depth and nowhere before. First response tokens, which
    always have full depth, do not count.

    Returns:
        The tokens that match, and all that count.
    """
    full_depth = model.config.total_ut_steps
    depths = input_depths(batch, full_depth)
    tap = _Tap()
    replay_states(model, batch, tap)
    remaining = torch.ones(len(depths), dtype=torch.float64, device=depths.device)
    predicted = torch.full_like(depths, min(rule.max_loops or full_depth, full_depth))
    undecided = torch.ones_like(depths, dtype=torch.bool)
    for loop, states in enumerate(tap.states, start=1):
        rows = (depths >= loop).nonzero()[:, 0]
        remaining[rows] *= 1 - torch.sigmoid(model.exit_gate(states)).double()
        if rule.asks_gate:
            stopped = rows[rule.stops(loop, remaining[rows]) & undecided[rows]]
            predicted[stopped] = loop
            undecided[stopped] = False
    lengths = batch.response_mask.sum(1)
    first = (lengths.cumsum(0) - lengths)[lengths > 0]
    counted = torch.ones(len(batch.predictors), dtype=torch.bool, device=depths.device)
    counted[first] = False
    rows = batch.predictors[counted]
    # Where the gate did not stop a token by the depth at which it was recorded to stop, it would have gone deeper.
    deeper = undecided[rows] & (depths[rows] < predicted[rows])
    matches = (predicted[rows] == depths[rows]) & ~deeper
    return int(matches.sum()), len(rows)


class _Tap:
    """A schedule that runs everything directly and keeps the states of every loop."""

    def __init__(self) -> None:
        self.states: list[Tensor] = []

    def layer(self, fn: Callable[..., Result], *tensors: Tensor) -> Result:
        """`fn(*tensors)`."""
        return fn(*tensors)

    def loop(self, fn: Callable[..., Result], *tensors: Tensor) -> Result:
        """`fn(*tensors)`, whose first result, the hidden states, is kept."""
        result = fn(*tensors)
        assert isinstance(result, tuple)  # replay's loops give their planes too
        self.states.append(result[0])
        return result
