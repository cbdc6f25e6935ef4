"""Rewards over seeds and tasks: interquartile mean and stratified percentile bootstrap, as rliable defines them.

R. Agarwal, M. Schwarzer, P. S. Castro, A. Courville, M. G. Bellemare: Deep Reinforcement Learning at the Edge of the
Statistical Precipice, NeurIPS 2021.
"""

import math
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from scalerlt.analysis.intervals import CONFIDENCE, SEEDS_FOR_AN_INTERVAL, all_finite

Statistic = Literal["mean", "interquartile_mean"]
Array = NDArray[np.float64]

RESAMPLES = 10_000
VALUES_AT_ONCE = 4_000_000
"""So many drawn scores are held in memory at a time."""
LARGEST_EXPONENT = sys.float_info.max_exp - 64
"""Of two, of scores that are summed as they are: more than 2^60 of them stay below the largest float."""


@dataclass(frozen=True)
class BootstrapEstimate:
    """A statistic over seeds and tasks, with its percentile interval.

    Attributes:
        estimate: None where there is none; `note` says why.
        low: lower end of the two-sided interval; None where there is none.
        high: upper end. The estimate may lie outside of a percentile interval.
        n: seeds of the task that has fewest.
        statistic: what was estimated.
        note: why something is missing, or what else has to be said; None if nothing.
    """

    estimate: float | None
    low: float | None
    high: float | None
    n: int
    statistic: Statistic
    note: str | None = None


def interquartile_mean(values: Sequence[float]) -> float | None:
    """Mean of the middle half: a quarter of the values, rounded down, is left out at each end.

    Returns:
        None without values, and where one of them is not finite.
    """
    return _estimate([values], "interquartile_mean")


def bootstrap_interval(
    scores: Sequence[Sequence[float]],
    *,
    statistic: Statistic = "interquartile_mean",
    confidence: float = CONFIDENCE,
    resamples: int = RESAMPLES,
    seed: int = 0,
) -> BootstrapEstimate:
    """The statistic of all scores, and its percentile interval: the seeds of each task are drawn with replacement.

    The same scores give the same interval, in whatever order seeds and tasks come.

    Args:
        scores: for each task (there may be one) the scores of its seeds.
        statistic: over all scores of all tasks.
        confidence: of the two-sided interval.
        resamples: how often the seeds are drawn.
        seed: of the draws.

    Returns:
        No estimate without a score, where a task has none, and where one is not finite. No interval where a task has
        fewer than `SEEDS_FOR_AN_INTERVAL` seeds. Scores that do not differ within their tasks have an interval of no
        width and a note.
    """
    n = min(map(len, scores), default=0)
    estimate = _estimate(scores, statistic) if n else None
    if estimate is None:
        note = "a score is not finite" if n else "no task has a score" if not any(scores) else "a task has no score"
        return BootstrapEstimate(None, None, None, n, statistic, note)
    if n < SEEDS_FOR_AN_INTERVAL:
        note = f"an interval over seeds takes {SEEDS_FOR_AN_INTERVAL} of them, and there are {n}"
        return BootstrapEstimate(estimate, None, None, n, statistic, note)
    if all(min(task) == max(task) for task in scores):
        note = "the seeds do not differ: the interval has no width"
        return BootstrapEstimate(estimate, estimate, estimate, n, statistic, note)
    shift = _shift([score for task in scores for score in task])
    tasks = sorted(sorted(math.ldexp(score, -shift) for score in task) for task in scores)
    drawn = _resampled(tasks, statistic, resamples, seed)
    low, high = np.quantile(drawn, [(1 - confidence) / 2, (1 + confidence) / 2])
    return BootstrapEstimate(estimate, _shifted_back(low, shift), _shifted_back(high, shift), n, statistic)


def _estimate(scores: Sequence[Sequence[float]], statistic: Statistic) -> float | None:
    values = [value for task in scores for value in task]
    if not values or not all_finite(values):
        return None
    shift = _shift(values)
    return _shifted_back(_statistic(np.array([[math.ldexp(value, -shift) for value in values]]), statistic)[0], shift)


def _shift(values: Sequence[float]) -> int:
    """The power of two by which values near the largest float are divided, so that no sum overflows; 0 of others."""
    return max(0, math.frexp(max(map(abs, values)))[1] - LARGEST_EXPONENT)


def _shifted_back(value: float, shift: int) -> float:
    largest = math.ldexp(sys.float_info.max, -shift)  # which rounding may have passed
    return math.ldexp(min(max(float(value), -largest), largest), shift)


def _resampled(scores: Sequence[Sequence[float]], statistic: Statistic, resamples: int, seed: int) -> Array:
    """The statistic of each resample."""
    random = np.random.default_rng(seed)
    tasks = [np.array(task) for task in scores]
    step = max(1, VALUES_AT_ONCE // sum(map(len, tasks)))
    parts = []
    for start in range(0, resamples, step):
        count = min(step, resamples - start)
        drawn = [task[random.integers(0, len(task), (count, len(task)))] for task in tasks]
        parts.append(_statistic(np.concatenate(drawn, axis=1), statistic))
    return np.concatenate(parts)


def _statistic(values: Array, statistic: Statistic) -> Array:
    """Of each row."""
    size = values.shape[1]
    cut = int(0.25 * size) if statistic == "interquartile_mean" else 0
    return np.asarray(np.sort(values, axis=1)[:, cut : size - cut].mean(axis=1), dtype=np.float64)
