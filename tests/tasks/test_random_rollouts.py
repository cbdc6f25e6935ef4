"""Random rollouts: the lengths asked for, numbers in their ranges, and each a function of its place alone."""

import math
from typing import Any

import pytest
from pydantic import ValidationError

from scalerlt.records.samples import Sample
from scalerlt.schema.task.random_rollouts import RandomRollouts
from scalerlt.tasks.random_rollouts import random_rollouts

BATCH: dict[str, Any] = {"prompts": 3, "group_size": 8, "vocab_size": 13, "full_depth": 4, "temperature": 0.7}


def task(**more: Any) -> RandomRollouts:
    values = {"prompt_length": 5, "response_length": 40, "response_length_min": None, "exit_depths": "full"}
    return RandomRollouts(name="random_rollouts", **values | {"problem_seed": 0} | more)


def drawn(batch: dict[str, Any] | None = None, **more: Any) -> list[Sample]:
    return random_rollouts(task(**more), **BATCH | (batch or {}))


def test_shapes_are_those_asked_for() -> None:
    samples = drawn()
    assert [sample.prompt_group for sample in samples] == [group for group in range(3) for _ in range(8)]
    for group in range(3):
        members = samples[8 * group : 8 * group + 8]
        assert all(one.prompt_tokens == members[0].prompt_tokens for one in members)
        assert len({tuple(one.response_tokens) for one in members}) == 8
    assert len({tuple(sample.prompt_tokens) for sample in samples}) == 3
    assert {(len(s.prompt_tokens), len(s.response_tokens)) for s in samples} == {(5, 40)}
    assert {token for s in samples for token in (*s.prompt_tokens, *s.response_tokens)} == set(range(13))
    assert {s.temperature for s in samples} == {0.7}


def test_ragged_lengths_are_uniform_from_the_least_to_the_most() -> None:
    ragged = task(response_length=6, response_length_min=3)
    lengths = [ragged.length(group, member) for group in range(100) for member in range(10)]
    counts = [lengths.count(length) for length in range(3, 7)]
    assert sum(counts) == 1000 and all(abs(count - 250) < 5 * math.sqrt(1000 * 0.25 * 0.75) for count in counts)
    samples = random_rollouts(ragged, **BATCH)
    assert [len(s.response_tokens) for s in samples] == [ragged.length(g, m) for g in range(3) for m in range(8)]


def test_advantages_are_not_zero_and_rewards_go_with_them() -> None:
    samples = drawn({"group_size": 64})
    advantages = [sample.advantage or 0.0 for sample in samples]
    assert all(0.5 <= abs(advantage) < 1.5 for advantage in advantages)
    assert len(set(advantages)) == len(advantages)
    for group in range(3):
        assert abs(sum(advantages[64 * group : 64 * group + 64])) / 64 < 0.2
    assert all(sample.reward == ((sample.advantage or 0) > 0) for sample in samples)


def test_logprobs_are_near_a_uniform_policy() -> None:
    off = [value + math.log(13) for sample in drawn() for value in sample.logprobs]
    assert -0.25 <= min(off) < -0.2 and 0.2 < max(off) < 0.25


def test_exit_depths() -> None:
    assert all(sample.exit_depths is None for sample in drawn())
    depths = [sample.exit_depths or [] for sample in drawn(exit_depths="random")]
    assert all(one[0] == 4 for one in depths)
    assert {depth for one in depths for depth in one[1:]} == {1, 2, 3, 4}


def test_a_place_has_its_numbers_whatever_stands_beside_it() -> None:
    samples = drawn(exit_depths="random")
    fewer = drawn({"prompts": 2, "group_size": 3}, exit_depths="random", prompt_length=2, response_length=7)
    for group in range(2):
        for member in range(3):
            whole, part = samples[8 * group + member], fewer[3 * group + member]
            for name in ("response_tokens", "logprobs", "exit_depths"):
                assert getattr(part, name) == getattr(whole, name)[:7]
            assert part.prompt_tokens == whole.prompt_tokens[:2]
            assert part.advantage == whole.advantage
    assert drawn() == drawn()
    other = drawn(problem_seed=1)
    assert all(a.response_tokens != b.response_tokens for a, b in zip(samples, other, strict=True))


def test_the_draw_is_fixed_for_all_time() -> None:
    """A change makes measured cells hold other rollouts than their identity says."""
    [sample] = drawn({"prompts": 1, "group_size": 1}, response_length=6, response_length_min=2, exit_depths="random")
    assert sample.prompt_tokens == [3, 9, 10, 3, 2]
    assert sample.response_tokens == [4, 2, 5, 7, 9]
    assert sample.exit_depths == [4, 1, 2, 3, 3]


def test_the_least_is_not_above_the_most() -> None:
    with pytest.raises(ValidationError, match="response_length_min=41 is above response_length=40"):
        task(response_length_min=41)
