"""Rollouts drawn at random: what a learner step learns from where its shape alone matters."""

import math

from scalerlt.records.samples import Sample
from scalerlt.schema.task.random_rollouts import RandomRollouts
from scalerlt.tasks.counter_random import random_below, stream_key


def random_rollouts(
    task: RandomRollouts, *, prompts: int, group_size: int, vocab_size: int, full_depth: int, temperature: float
) -> list[Sample]:
    """Prompt group after prompt group, each of one prompt. They serve measurements, never a claim about learning.

    Each number depends on `task.problem_seed`, on its prompt group, response and token, and on what it is drawn from:
    fewer prompts, smaller groups and shorter texts are a part of more, larger and longer ones.

    Tokens are uniform over the vocabulary. Advantages are between 0.5 and 1.5 in size, and their signs alternate
    within a prompt group: none is zero, and their mean is about 0 (where a group has several). The reward is 1 where
    the advantage is positive, else 0. Log-probs are those of a uniform policy, off by up to 0.25.

    Args:
        prompts: prompt groups.
        group_size: responses of each.
        vocab_size: of the model that learns from them.
        full_depth: loops of a token that does not stop early.
        temperature: that the responses are said to be sampled at.
    """
    return [
        _sample(task, group, member, _prompt(task, group, vocab_size), vocab_size, full_depth, temperature)
        for group in range(prompts)
        for member in range(group_size)
    ]


def _prompt(task: RandomRollouts, group: int, vocab_size: int) -> list[int]:
    key = stream_key("random_rollouts", task.problem_seed, group, "prompt")
    return [random_below(key, place, vocab_size) for place in range(task.prompt_length)]


def _sample(
    task: RandomRollouts,
    group: int,
    member: int,
    prompt: list[int],
    vocab_size: int,
    full_depth: int,
    temperature: float,
) -> Sample:
    def key(what: str) -> int:
        return stream_key("random_rollouts", task.problem_seed, group, member, what)

    tokens, logprobs, depths = key("token"), key("logprob"), key("depth")
    places = range(task.length(group, member))
    advantage = (1 if member % 2 == 0 else -1) * (0.5 + _fraction(key("advantage"), 0))
    stopped = [random_below(depths, place, full_depth) + 1 if place else full_depth for place in places]
    return Sample(
        problem_id=f"random_rollouts-{group}",
        prompt_group=group,
        prompt_tokens=prompt,
        response_tokens=[random_below(tokens, place, vocab_size) for place in places],
        logprobs=[-math.log(vocab_size) + 0.5 * _fraction(logprobs, place) - 0.25 for place in places],
        temperature=temperature,
        finish_reason="length",
        seed=0,
        weight_version=0,
        reward=float(advantage > 0),
        advantage=advantage,
        exit_depths=stopped if task.exit_depths == "random" else None,
    )


def _fraction(key: int, place: int) -> float:
    """A number in [0, 1)."""
    return random_below(key, place, 2**53) / 2**53
