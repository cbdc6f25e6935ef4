"""Advantages of whole responses from the rewards of their prompt group."""

import math
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Literal

AdvantageEstimator = Literal["group_std", "leave_one_out"]

STD_EPSILON = 1e-6
"""Added to the standard deviation."""


@dataclass(frozen=True)
class Advantages:
    """What `group_advantages` finds.

    Attributes:
        values: one advantage per response.
        frac_reward_zero_std: share of the prompt groups whose rewards are all equal, which teach nothing.
    """

    values: list[float]
    frac_reward_zero_std: float


def group_advantages(
    rewards: Sequence[float], prompt_groups: Sequence[Hashable], *, estimator: AdvantageEstimator, ddof: int = 1
) -> Advantages:
    """Compare each response with the others to its prompt.

    group_std: (R - mean) / (std + 1e-6) (GRPO, arXiv 2402.03300), where std divides by n - ddof. 1 is the default of
    torch and verl, 0 the formula of the paper.
    leave_one_out: R - the mean of the other rewards (RLOO, arXiv 2402.14740).

    A prompt group whose rewards are all equal, as those of a single response are, has advantages of exactly zero.
    The order of the responses has no influence.

    Args:
        rewards: one per response.
        prompt_groups: of each response, what names its prompt group.
        estimator: which of the two.
        ddof: of `group_std`, 0 or 1.
    """
    members: dict[Hashable, list[int]] = {}
    for index, group in enumerate(prompt_groups):
        members.setdefault(group, []).append(index)
    values = [0.0] * len(rewards)
    flat = 0
    for indices in members.values():
        group_rewards = [rewards[index] for index in indices]
        if min(group_rewards) == max(group_rewards):
            flat += 1
            continue
        for index, value in zip(indices, _of_group(group_rewards, estimator, ddof), strict=True):
            values[index] = value
    return Advantages(values, flat / len(members) if members else 0.0)


def _of_group(rewards: list[float], estimator: AdvantageEstimator, ddof: int) -> list[float]:
    count, total = len(rewards), math.fsum(rewards)
    if estimator == "leave_one_out":
        return [reward - (total - reward) / (count - 1) for reward in rewards]
    if estimator == "group_std":
        mean = total / count
        std = math.sqrt(math.fsum((reward - mean) ** 2 for reward in rewards) / (count - ddof))
        return [(reward - mean) / (std + STD_EPSILON) for reward in rewards]
    raise ValueError(f"advantage estimator {estimator!r} is neither group_std nor leave_one_out")
