"""Config group `batch`: five sizes that must not be confused."""

from typing import TYPE_CHECKING

from pydantic import model_validator

from scalerlt.schema.fields import PositiveInt
from scalerlt.schema.registry import config_group

if TYPE_CHECKING:
    from typing import Self

MAX_RESPONSES = 1_000_000
"""Of one step: a plan looks at each of them."""


@config_group("batch")
class Batch:
    """The sizes of one step.

    Attributes:
        prompts_per_step: prompts per rollout batch.
        group_size: responses per prompt (G).
        minibatch_responses: responses per optimizer step.
        microbatch_tokens: tokens per forward and backward pass; memory only, never changes a gradient.
        rollout_concurrency: requests decoded at once (KV capacity); never changes what is generated.
    """

    name: str
    prompts_per_step: PositiveInt
    group_size: PositiveInt
    minibatch_responses: PositiveInt
    microbatch_tokens: PositiveInt
    rollout_concurrency: PositiveInt

    @property
    def responses_per_step(self) -> int:
        """prompts_per_step x group_size."""
        return self.prompts_per_step * self.group_size

    @model_validator(mode="after")
    def _check(self) -> "Self":
        if self.responses_per_step > MAX_RESPONSES:
            raise ValueError(
                f"prompts_per_step={self.prompts_per_step} x group_size={self.group_size} = "
                f"{self.responses_per_step} responses; {MAX_RESPONSES} is the most of a step"
            )
        if self.responses_per_step % self.minibatch_responses:
            raise ValueError(
                f"minibatch_responses={self.minibatch_responses} does not divide the step's "
                f"{self.prompts_per_step} x {self.group_size} = {self.responses_per_step} responses"
            )
        return self
