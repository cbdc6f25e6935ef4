"""A request while it is being answered."""

import math
from dataclasses import dataclass, field
from functools import cached_property

import torch

from scalerlt.rollout.request import FinishReason, Request
from scalerlt.rollout.sampling import uniforms


@dataclass
class ActiveSequence:
    """What has been generated for a request so far.

    Attributes:
        index: place of the request among those asked together.
        seed: effective seed.
        stops: token ids that end the response.
    """

    index: int
    request: Request
    seed: int
    stops: frozenset[int]
    tokens: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    raw_logprobs: list[float] = field(default_factory=list)
    depths: list[int] = field(default_factory=list)

    def append(self, token: int, logprob: float, raw_logprob: float, depth: int) -> None:
        """Takes the next token; FloatingPointError if its log-prob is not finite."""
        if not math.isfinite(logprob):
            position = len(self.request.prompt_tokens) + len(self.tokens)
            raise FloatingPointError(
                f"request {self.request.request_id!r}: the model's logits for position {position} are not finite"
            )
        self.tokens.append(token)
        self.logprobs.append(logprob)
        self.raw_logprobs.append(raw_logprob)
        self.depths.append(depth)

    @property
    def finish_reason(self) -> FinishReason | None:
        """Why the response is whole, or None while it is not."""
        forced = self.request.forced_tokens
        whole = len(self.tokens) == (self.request.max_new_tokens if forced is None else len(forced))
        if self.tokens[-1] in self.stops and (whole or forced is None):
            return "stop"
        return "length" if whole else None

    @property
    def length(self) -> int:
        """Positions that hold K/V: the newest token has not been fed back."""
        return len(self.request.prompt_tokens) + len(self.tokens) - 1

    @cached_property
    def _uniforms(self) -> list[float]:
        """The random numbers of all positions that the response may have."""
        first = len(self.request.prompt_tokens)
        positions = torch.arange(first, first + self.request.max_new_tokens)
        found: list[float] = uniforms(torch.tensor(self.seed), positions).tolist()
        return found

    @property
    def next_uniform(self) -> float:
        """The random number in [0, 1) that the next token is drawn with."""
        return self._uniforms[len(self.tokens)]

    @property
    def forced_token(self) -> int | None:
        """What the next token has to be."""
        forced = self.request.forced_tokens
        return None if forced is None else forced[len(self.tokens)]

    @property
    def forced_depth(self) -> int | None:
        """At which depth the next token has to be read out."""
        forced = self.request.forced_depths
        return None if forced is None else forced[len(self.tokens)]
