"""Student's t over a sample of independent values, the base of every interval over cohorts, seeds and problems.

All intervals are two-sided, at 95 % unless another confidence is asked for; where one bound alone is shown it is that
interval's lower end, which a one-sided claim at 95 % would allow to be a little higher.
"""

import math
import sys
from collections.abc import Sequence
from statistics import mean, stdev

from scipy.special import stdtr, stdtrit

CONFIDENCE = 0.95
SEEDS_FOR_AN_INTERVAL = 5
"""With fewer seeds all are shown and no interval is."""
SMALLEST_P = sys.float_info.min
"""What stands for a p-value below the smallest normal float (2.2e-308): none is ever 0."""


def student_interval(values: Sequence[float], confidence: float = CONFIDENCE) -> tuple[float, float] | None:
    """Student's t interval of the mean, n - 1 degrees of freedom.

    Returns:
        None for fewer than two values and where one of them is not finite. Equal values have an interval of no width.
    """
    n = len(values)
    if n < 2 or not all_finite(values):
        return None
    half = float(stdtrit(n - 1, (1 + confidence) / 2)) * _deviation(values) / math.sqrt(n)
    return mean(values) - half, mean(values) + half


def student_p(values: Sequence[float], null: float) -> float | None:
    """Two-sided p-value of Student's t test that the mean is `null`; at least `SMALLEST_P`.

    Returns:
        None for fewer than two values, where one of them is not finite, and where all are equal.
    """
    n = len(values)
    if n < 2 or not all_finite(values):
        return None
    error = _deviation(values) / math.sqrt(n)
    return None if error == 0 else no_zero(2 * float(stdtr(n - 1, -abs(mean(values) - null) / error)))


def t_interval(values: Sequence[float]) -> tuple[float, float] | None:
    """Student's t interval of the mean over seeds; None for fewer than `SEEDS_FOR_AN_INTERVAL`, too."""
    return None if len(values) < SEEDS_FOR_AN_INTERVAL else student_interval(values)


def no_zero(p: float) -> float:
    """A p-value, raised to the smallest that is ever given."""
    return max(p, SMALLEST_P)


def all_finite(values: Sequence[float]) -> bool:
    """Whether every value is a finite float, or an integer within a float's range."""
    try:
        return all(map(math.isfinite, values))
    except OverflowError:
        return False


def _deviation(values: Sequence[float]) -> float:
    try:
        return stdev(values)
    except OverflowError:
        return math.inf
