"""When a decode token stops: after which loop its hidden state is read out and the deeper loops are left out."""

import math
from dataclasses import dataclass

from torch import Tensor

from scalerlt.errors import UserError
from scalerlt.models.config import OuroConfig


@dataclass(frozen=True)
class ExitRule:
    """Stops a token once its exit gate has put enough probability on the loops so far (Q-exit of Ouro, 2510.25741).

    With lambda_s the gate's probability of stopping at loop s, a token stops after the first loop r >= `min_loops` with
    1 - prod_{s<=r} (1 - lambda_s) >= `threshold`, else after `max_loops`. All loops contribute, those below `min_loops`
    too. Prompts, and with them the first response token, always run all K loops.

    Attributes:
        threshold: above 0; from 1 on the gate is not asked, so that no rounding can stop a token.
        min_loops: fewest loops before the gate may stop a decode token, from 1.
        max_loops: most loops of a decode token; None: K.
        delay: loops that still run after the one in which the gate says stop, 0 or 1. With 1 the next loop may be begun
            before the gate has been read (`ouro_delayed` of vllm-rlt).

    Raises:
        UserError: a value is impossible.
    """

    threshold: float
    min_loops: int
    max_loops: int | None = None
    delay: int = 0

    def __post_init__(self) -> None:
        if not 0 < self.threshold <= math.inf:
            raise UserError(f"exit threshold is {self.threshold}, it has to be above 0 (1 or more: never stop early)")
        if self.min_loops < 1 or (self.max_loops is not None and self.max_loops < self.min_loops):
            raise UserError(f"{self._loops()}: 1 <= min_loops <= max_loops has to hold")

    def check(self, config: OuroConfig) -> None:
        """UserError if the rule asks for more loops than a model of this shape has."""
        if max(self.min_loops, self.max_loops or 1) > config.total_ut_steps:
            raise UserError(f"{self._loops()}: the model has {config.total_ut_steps} loops")

    @property
    def asks_gate(self) -> bool:
        """Whether the exit gate decides anything."""
        return self.threshold < 1

    def stops(self, loop: int | Tensor, remaining: Tensor) -> Tensor:
        """Which tokens the gate stops after `loop`, from 1, or with a delay so many loops later.

        Args:
            loop: the loop that has just run, of all tokens or [N] of each.
            remaining: [N] prod (1 - lambda) of the loops so far, in the internal dtype.

        Returns:
            [N] bool.
        """
        return (1 - remaining >= self.threshold) & (loop >= self.min_loops)

    def _loops(self) -> str:
        return f"min_loops is {self.min_loops} and max_loops is {self.max_loops}"
