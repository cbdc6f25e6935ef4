"""What a training step of reinforcement learning did, and its row of the series."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from scalerlt.experiments.answers import Answer
from scalerlt.experiments.evaluation import evaluate
from scalerlt.learner.advantages import Advantages
from scalerlt.learner.step import StepResult
from scalerlt.rollout.stats import RolloutStats


@dataclass(frozen=True)
class StepDone:
    """One rollout batch and the updates on it.

    Attributes:
        answers: the batch.
        rewards: what was learnt from, the graded ones or others.
        advantages: made of them.
        stats: of the rollout.
        results: of each optimizer step.
        chosen: optimizer steps by what `checkpoint=auto` chose for them.
        bias: `grad_bias` and `grad_sd`, where they were measured.
        matched: the share of decode tokens that the updated policy would stop where the rollout did.
    """

    answers: list[Answer]
    rewards: list[float]
    advantages: Advantages
    stats: RolloutStats
    results: list[StepResult]
    chosen: Counter[str]
    bias: dict[str, float]
    matched: float | None


def step_row(step: int, done: StepDone, moved: dict[str, int]) -> dict[str, Any]:
    """The row, but for its place and its times; `moved` are bytes by phase."""
    graded = evaluate(done.answers)
    mean = sum(done.rewards) / len(done.rewards)
    lengths = [len(one.response.tokens) for one in done.answers]
    logprobs = [value for one in done.answers for value in one.response.logprobs]
    version = min(one.response.weight_version for one in done.answers)
    row: dict[str, Any] = {
        "reward": mean,
        "reward_std": (sum((reward - mean) ** 2 for reward in done.rewards) / len(done.rewards)) ** 0.5,
        "frac_reward_zero_std": done.advantages.frac_reward_zero_std,
        "weight_version": version,
        "weight_lag": step - 1 - version,
        "train/accuracy": graded.accuracy,
        "train/format_rate": graded.format_rate,
        "completions/mean_length": graded.mean_length,
        "completions/min_length": min(lengths),
        "completions/max_length": max(lengths),
        "completions/clipped_ratio": graded.clipped_ratio,
        "entropy": -sum(logprobs) / len(logprobs),
        "loop/exit_depth_mean": graded.mean_depth,
        **{f"loop/exit_depth_hist_{depth}": count for depth, count in sorted(done.stats.decode_depths.items())},
        "loss": sum(result.loss for result in done.results) / len(done.results),
        "grad_norm": sum(result.grad_norm for result in done.results) / len(done.results),
        "updates": sum(result.updated for result in done.results),
        **over_updates([result.statistics for result in done.results]),
        **{f"first_update/{name}": value for name, value in done.results[0].statistics.items()},
        **done.bias,
        "io_bytes_per_generated_token": moved["generate"] / done.stats.generated_tokens,
        "publication_bytes": moved["publish"],
    }
    if trained := sum(result.trained_tokens for result in done.results):
        row["io_bytes_per_trained_token"] = moved["update_actor"] / trained
    row |= {f"auto_optimizer_steps/{name}": count for name, count in done.chosen.items()}
    if done.matched is not None:
        row["loop/depth_match_fraction"] = done.matched
    return row


def over_updates(statistics: Sequence[dict[str, float]]) -> dict[str, float]:
    """Each figure over the optimizer steps of a rollout batch; of maxima the largest."""
    names = dict.fromkeys(name for one in statistics for name in one)
    values = {name: [one[name] for one in statistics if name in one] for name in names}
    return {name: max(of) if name.endswith("_max") else sum(of) / len(of) for name, of in values.items()}
