"""Config group `algorithm`: the objective of the learner."""

from typing import Literal

from scalerlt.schema.registry import config_group


@config_group("algorithm")
class Algorithm:
    """A policy-gradient loss over recorded advantages.

    Attributes:
        reduction: `token_mean` weighs every token of the optimizer step alike; `response_mean` every response.
    """

    name: str
    reduction: Literal["token_mean", "response_mean"]
