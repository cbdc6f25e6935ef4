"""`task=random_rollouts`: rollouts that were never generated, so that a learner step runs on any shape."""

import hashlib
from typing import TYPE_CHECKING, Literal

from pydantic import model_validator

from scalerlt.schema.fields import NonNegativeInt, PositiveInt
from scalerlt.schema.registry import config_group
from scalerlt.schema.task import Task

if TYPE_CHECKING:
    from typing import Self


@config_group("task", "random_rollouts")
class RandomRollouts(Task):
    """Random prompts and responses of these lengths, of a number that the batch says.

    Attributes:
        prompt_length: tokens of every prompt (P).
        response_length: tokens of a response (D), the most of any.
        response_length_min: lengths are uniform from this to `response_length`; null: all are that long.
        exit_depths: `full`: every token ran all loops. `random`: from 1 to all of them, the first token of a response
            all, as a rollout that stops early leaves them.
        problem_seed: names the draw.
    """

    prompt_length: PositiveInt
    response_length: PositiveInt
    response_length_min: PositiveInt | None
    exit_depths: Literal["full", "random"]
    problem_seed: NonNegativeInt

    @model_validator(mode="after")
    def _check(self) -> "Self":
        if self.response_length_min is not None and self.response_length_min > self.response_length:
            raise ValueError(
                f"response_length_min={self.response_length_min} is above response_length={self.response_length}"
            )
        return self

    def length(self, group: int, member: int) -> int:
        """Tokens of response `member` of prompt group `group`: a function of these and of `problem_seed` alone."""
        shortest = self.response_length if self.response_length_min is None else self.response_length_min
        if shortest == self.response_length:
            return shortest
        name = f"random_rollouts length {self.problem_seed} {group} {member}"
        word = int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], "big")
        return shortest + (word * (self.response_length - shortest + 1) >> 64)
