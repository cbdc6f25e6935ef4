"""What every rollout engine is to those who use one."""

import secrets
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Literal, Protocol

from scalerlt.models.ouro import OuroForCausalLM
from scalerlt.rollout.request import Request
from scalerlt.rollout.stats import RolloutResult

Phase = Literal["prefill", "decode"]
OnPhase = Callable[[Phase], AbstractContextManager[object]]


class RolloutEngine(Protocol):
    """Generates with a model's weights as they are at the time; nothing is kept between two calls of `generate`.

    Attributes:
        model: the policy that it generates with.
        weight_version: version of the model's weights, reported with every token.
        blocked: why the weights may not be used, or None. Like the version it is set by whoever changes the weights.
        generating: whether `generate` is running, so that the weights may not change.
    """

    model: OuroForCausalLM
    weight_version: int
    blocked: str | None
    generating: bool

    def generate(self, requests: Sequence[Request]) -> RolloutResult:
        """Answers all requests; `UserError` names all that is wrong with them."""
        ...

    def take_weights(self) -> int:
        """Takes the model's weights where the engine has copies of its own; called once they have changed. Returns the
        bytes read and written."""
        ...


def random_seed() -> int:
    """A seed that nobody can know beforehand, in 0 .. 2^63 - 1."""
    return secrets.randbits(63)
