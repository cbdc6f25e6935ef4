"""The ratio of two arms over cohorts, paired, with Student's t interval. Cohorts are the sample, never the blocks.

Each cohort gives one ratio, made of its pairs of blocks. Which way decides what the number means, so every result
carries the name of its estimator:

geometric_mean_of_cohorts: a cohort's ratio is the geometric mean of its pairs' ratios; the estimate is the geometric
    mean of the cohorts' ratios. The one to use.
geometric_mean_of_cohort_means: a cohort's ratio is that of its arms' arithmetic means over the blocks; the estimate is
    the geometric mean of the cohorts' ratios ("geometric mean of fresh means": one mean per fresh process).
matched_pair_mean: a cohort's ratio is the arithmetic mean of its pairs' ratios; the estimate is the arithmetic mean
    over cohorts, which with equally many blocks is the mean of all matched ratios. It is never below the first, and
    the ratio turned over is not the estimate turned over.

The first two have their interval on the logarithm (Student's t, n - 1 degrees of freedom, exp back): it is symmetric as
a factor, and the ratio turned over has it turned over. The third has it on the ratio itself, symmetric as a difference.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import mean
from typing import Literal

from scalerlt.analysis.intervals import CONFIDENCE, all_finite, student_interval, student_p

RatioEstimator = Literal["geometric_mean_of_cohorts", "geometric_mean_of_cohort_means", "matched_pair_mean"]
Pairs = Sequence[tuple[float, float]]

SAME = 1e-12
"""Cohorts whose ratios differ by no more than this, relatively, do not differ: the rest is rounding."""


@dataclass(frozen=True)
class Ratio:
    """A ratio of two arms, and how far the cohorts leave it open.

    Attributes:
        estimate: None where there is none; `note` says why.
        low: lower end of the two-sided interval; None where there is none: for n = 0 and n = 1 always.
        high: upper end.
        n: cohorts.
        estimator: how the estimate was made.
        p: two-sided p-value of Student's t test that the ratio is 1, on the scale of the interval; never 0. None where
            there is no interval, and where the cohorts do not differ at all.
        smallest: smallest ratio of a cohort. The range of the cohorts is not an interval.
        largest: largest ratio of a cohort.
        note: why there is no estimate or no interval, or what else has to be said; None if nothing.
    """

    estimate: float | None
    low: float | None
    high: float | None
    n: int
    estimator: RatioEstimator
    p: float | None = None
    smallest: float | None = None
    largest: float | None = None
    note: str | None = None


def paired_ratio(
    numerator: Sequence[Sequence[float]],
    denominator: Sequence[Sequence[float]],
    *,
    estimator: RatioEstimator = "geometric_mean_of_cohorts",
    confidence: float = CONFIDENCE,
) -> Ratio:
    """The ratio numerator / denominator of two arms, paired by cohort and, within a cohort, by block.

    A speed-up is baseline time over candidate time, or candidate throughput over baseline throughput.

    Args:
        numerator: for each cohort the values of its blocks, all finite and above zero.
        denominator: the other arm's, of the same shape.
        estimator: see the module.
        confidence: of the two-sided interval.

    Returns:
        No estimate without a cohort, where a value is not a finite number above zero, and where a cohort's ratio is
        beyond the range of a float: nothing is left out silently.
        Cohorts without blocks do not count. No interval for one cohort. Cohorts that do not differ have an interval of
        no width, no p-value and a note. An end of the interval beyond the range of a float is inf or 0.

    Raises:
        ValueError: the arms differ in their cohorts or in the blocks of a cohort.
    """
    cohorts = _matched(numerator, denominator)
    n = len(cohorts)
    unusable = _unusable(cohorts)
    if unusable is not None:
        return Ratio(None, None, None, n, estimator, note=unusable)
    on_logs = estimator != "matched_pair_mean"
    values = [_centre(pairs, estimator) for pairs in cohorts]
    ratios = [_exp(value) for value in values] if on_logs else values
    smallest, largest = min(ratios), max(ratios)
    if not 0 < smallest <= largest < math.inf:
        return Ratio(None, None, None, n, estimator, note="a ratio is beyond the range of a float")
    centre = mean(values)
    estimate = min(max(_exp(centre) if on_logs else centre, smallest), largest)
    ends = student_interval(values, confidence)
    if ends is None:
        note = "one cohort has no interval"
        return Ratio(estimate, None, None, n, estimator, None, smallest, largest, note)
    if largest <= smallest * (1 + SAME):
        note = "the cohorts do not differ: the interval has no width, and there is no test"
        return Ratio(estimate, estimate, estimate, n, estimator, None, smallest, largest, note)
    p = student_p(values, 0.0 if on_logs else 1.0)
    if on_logs:
        return Ratio(estimate, _exp(ends[0]), _exp(ends[1]), n, estimator, p, smallest, largest)
    cut = "the interval's lower end is cut off at 0" if ends[0] < 0 else None
    return Ratio(estimate, max(ends[0], 0.0), ends[1], n, estimator, p, smallest, largest, cut)


def _matched(numerator: Sequence[Sequence[float]], denominator: Sequence[Sequence[float]]) -> list[Pairs]:
    """The pairs of blocks of each cohort that has any."""
    if len(numerator) != len(denominator):
        raise ValueError(f"one arm has {len(numerator)} cohorts and the other {len(denominator)}")
    for place, (above, below) in enumerate(zip(numerator, denominator, strict=True)):
        if len(above) != len(below):
            raise ValueError(f"cohort {place} has {len(above)} blocks of one arm and {len(below)} of the other")
    pairs = [list(zip(above, below, strict=True)) for above, below in zip(numerator, denominator, strict=True)]
    return [blocks for blocks in pairs if blocks]


def _unusable(cohorts: Sequence[Pairs]) -> str | None:
    """Why there is no ratio, or None."""
    if not cohorts:
        return "no cohort has both arms"
    values = [value for pairs in cohorts for pair in pairs for value in pair]
    if not all_finite(values):
        return "a value is not finite, and a ratio takes finite ones above 0"
    return None if min(values) > 0 else f"a value is {min(values):g}, and a ratio takes finite ones above 0"


def _centre(pairs: Pairs, estimator: RatioEstimator) -> float:
    """The ratio of one cohort, of the geometric estimators its logarithm."""
    match estimator:
        case "geometric_mean_of_cohorts":
            return mean([math.log(above) - math.log(below) for above, below in pairs])
        case "geometric_mean_of_cohort_means":
            return math.log(mean([above for above, _ in pairs])) - math.log(mean([below for _, below in pairs]))
        case "matched_pair_mean":
            return mean([float(above) / float(below) for above, below in pairs])


def _exp(value: float) -> float:
    try:
        return math.exp(value)
    except OverflowError:
        return math.inf
