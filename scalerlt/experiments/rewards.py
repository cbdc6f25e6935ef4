"""Rewards as the learner gets them: graded, or dealt out at random for the control."""

from scalerlt.schema import Cell
from scalerlt.schema.experiment.gsm8k_reward import Gsm8kReward
from scalerlt.tasks.counter_random import RandomPermutation, stream_key


def dealt_rewards(cell: Cell, step: int, graded: list[float]) -> list[float]:
    """The graded rewards; with `experiment.rewards=shuffled` the same ones on other responses of the batch.

    The control keeps how many rewards there are and takes away what they are for: it must not gain.
    """
    assert isinstance(cell.experiment, Gsm8kReward)
    if cell.experiment.rewards == "graded":
        return graded
    order = RandomPermutation(stream_key("shuffled_rewards", cell.seed, step), len(graded))
    return [graded[order(index)] for index in range(len(graded))]
