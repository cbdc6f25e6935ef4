import math
import statistics

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from scalerlt.learner.advantages import group_advantages

REWARDS = [1.0, 0.0, 0.0, 1.0, 1.0, 1.0, 0.25, 0.0]
GROUPS = [7, 7, 7, 7, 3, 3, 5, 5]


def test_groups_by_hand():
    """Group 7: mean 1/2, squares 4 * 1/4. Group 5: mean 1/8, squares 2 * 1/64. Group 3 is flat."""
    std7, std5 = math.sqrt(1 / 3), math.sqrt(1 / 32)
    found = group_advantages(REWARDS, GROUPS, estimator="group_std", ddof=1)
    a, b = 0.5 / (std7 + 1e-6), 0.125 / (std5 + 1e-6)
    assert found.values == pytest.approx([a, -a, -a, a, 0.0, 0.0, b, -b], rel=1e-14)
    assert found.values[4:6] == [0.0, 0.0]
    assert found.frac_reward_zero_std == pytest.approx(1 / 3)
    population = group_advantages(REWARDS, GROUPS, estimator="group_std", ddof=0).values
    assert population[0] == pytest.approx(0.5 / (0.5 + 1e-6), rel=1e-14)
    assert population[6] == pytest.approx(0.125 / (0.125 + 1e-6), rel=1e-14)
    others = group_advantages(REWARDS, GROUPS, estimator="leave_one_out").values
    assert others == pytest.approx([2 / 3, -2 / 3, -2 / 3, 2 / 3, 0.0, 0.0, 0.25, -0.25])


def test_the_default_is_torchs_standard_deviation():
    rewards = [0.3, 1.7, -2.0, 0.9, 0.4]
    found = group_advantages(rewards, [0] * 5, estimator="group_std").values
    tensor = torch.tensor(rewards, dtype=torch.float64)
    assert found == pytest.approx(((tensor - tensor.mean()) / (tensor.std() + 1e-6)).tolist(), rel=1e-12)
    assert group_advantages(rewards, [0] * 5, estimator="group_std", ddof=0).values != pytest.approx(found, rel=1e-3)


@given(
    st.lists(st.tuples(st.integers(0, 3), st.floats(-5, 5)), min_size=1, max_size=20),
    st.sampled_from(["group_std", "leave_one_out"]),
    st.randoms(use_true_random=False),
)
def test_order_has_no_influence_and_groups_sum_to_zero(pairs, estimator, random):
    groups, rewards = zip(*pairs, strict=True)
    found = group_advantages(rewards, groups, estimator=estimator)
    order = list(range(len(pairs)))
    random.shuffle(order)
    shuffled = group_advantages([rewards[i] for i in order], [groups[i] for i in order], estimator=estimator)
    assert shuffled.values == [found.values[i] for i in order]
    assert shuffled.frac_reward_zero_std == found.frac_reward_zero_std
    for group in set(groups):
        members = [value for value, other in zip(found.values, groups, strict=True) if other == group]
        assert math.fsum(members) == pytest.approx(0, abs=1e-9)


@pytest.mark.parametrize("reward", [0.1, 1 / 3, 0.0])
@pytest.mark.parametrize("estimator", ["group_std", "leave_one_out"])
@pytest.mark.parametrize("size", [1, 3, 7])
def test_equal_rewards_have_exactly_no_advantage(reward: float, estimator: str, size: int):
    """0.1 + 0.1 + 0.1 is not 3 * 0.1: rounding must not become a signal."""
    found = group_advantages([reward] * size, ["p"] * size, estimator=estimator)
    assert found.values == [0.0] * size
    assert found.frac_reward_zero_std == 1.0


def test_no_responses_and_unknown_estimators():
    assert group_advantages([], [], estimator="group_std").frac_reward_zero_std == 0.0
    with pytest.raises(ValueError, match="'gae'"):
        group_advantages([0.0, 1.0], [0, 0], estimator="gae")


def test_standard_deviation_is_that_of_the_group_alone():
    rewards = [0.0, 4.0, 100.0, 101.0]
    found = group_advantages(rewards, [0, 0, 1, 1], estimator="group_std").values
    assert found[2] == pytest.approx(-0.5 / (statistics.stdev([100.0, 101.0]) + 1e-6))
