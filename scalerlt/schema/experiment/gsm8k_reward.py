"""`experiment=gsm8k_reward`: reinforcement learning to a reward curve."""

from typing import Annotated, Literal

from scalerlt.schema.experiment import Experiment
from scalerlt.schema.fields import Bytes, IdentityDefault, NonNegativeInt, NotIdentity, PositiveInt, parse_bytes
from scalerlt.schema.registry import config_group


@config_group("experiment", "gsm8k_reward")
class Gsm8kReward(Experiment):
    """Rollout, grade, advantages, update, publish, again.

    Attributes:
        steps: rollout batches.
        lag: how many steps older than need be the policy is that generates: that of step s is the policy after step
            s - 1 - lag, of the first steps the initial one. Evaluations are of the newest policy all the same.
        rewards: `graded`; `shuffled` deals the graded rewards out at random, the control that must not gain.
        evaluate_every: steps between evaluations; one stands before the first step and one after the last.
        eval_split, eval_problems: the held-out problems.
        grad_bias_every: steps between measurements of grad_bias and grad_sd, the first at the first step; 0: none.
        save_every: steps between sample files; 0 writes none but those of evaluations.
        samples_max_bytes: all sample files of an attempt together; what is beyond is left out and noted.
        checkpoint_every: steps between saved policies; 0 saves none.
        keep_last, keep_best: how many of the newest, and of the best by held-out accuracy, are kept.
    """

    steps: PositiveInt
    lag: Annotated[NonNegativeInt, IdentityDefault(0)] = 0
    rewards: Literal["graded", "shuffled"]
    evaluate_every: PositiveInt
    eval_split: Literal["train", "validation", "test"]
    eval_problems: PositiveInt
    grad_bias_every: Annotated[NonNegativeInt, IdentityDefault(0)] = 0
    save_every: Annotated[NonNegativeInt, NotIdentity()]
    samples_max_bytes: Annotated[Bytes, NotIdentity()]
    checkpoint_every: Annotated[NonNegativeInt, NotIdentity()]
    keep_last: Annotated[NonNegativeInt, NotIdentity()]
    keep_best: Annotated[NonNegativeInt, NotIdentity()]

    @property
    def samples_limit(self) -> int:
        """`samples_max_bytes` in bytes."""
        return parse_bytes(self.samples_max_bytes)
