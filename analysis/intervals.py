"""The intervals of reward claims: over seeds, and over the problems that one policy answers before and after.

Both are two-sided at 95 %; where one bound alone is shown it is that interval's lower end, which a one-sided claim at
95 % would allow to be a little higher.
"""

import math
from collections.abc import Sequence
from statistics import NormalDist, mean, stdev

from scipy.special import stdtrit

CONFIDENCE = 0.95
SEEDS_FOR_AN_INTERVAL = 5
"""With fewer seeds all are shown and no interval is."""
_Z = NormalDist().inv_cdf((1 + CONFIDENCE) / 2)


def t_interval(values: Sequence[float]) -> tuple[float, float] | None:
    """Student's t interval of the mean, n - 1 degrees of freedom; None for fewer than `SEEDS_FOR_AN_INTERVAL`."""
    n = len(values)
    if n < SEEDS_FOR_AN_INTERVAL:
        return None
    half = float(stdtrit(n - 1, (1 + CONFIDENCE) / 2)) * stdev(values) / math.sqrt(n)
    return mean(values) - half, mean(values) + half


def paired_lower_bound(both: int, gained: int, lost: int, neither: int) -> float:
    """Lower end of the interval of p_after - p_before for two answers to each of the same n problems.

    Newcombe's score interval for paired proportions (method 10 in Statistics in Medicine 17, 1998, 2635-2650): the
    Wilson intervals of both proportions, joined by their correlation, which is corrected for continuity.

    Args:
        both: problems that are right before and after.
        gained: right after only.
        lost: right before only.
        neither: wrong before and after.

    Raises:
        ValueError: there is no problem.
    """
    n = both + gained + lost + neither
    if n == 0:
        raise ValueError("no problem was answered before and after")
    after, before = (both + gained) / n, (both + lost) / n
    below_after = after - _wilson(both + gained, n)[0]
    above_before = _wilson(both + lost, n)[1] - before
    agreement = both * neither - gained * lost
    corrected = max(agreement - n / 2, 0) if agreement > 0 else agreement
    margins = (both + gained) * (lost + neither) * (both + lost) * (gained + neither)
    correlation = corrected / math.sqrt(margins) if margins else 0.0
    square = below_after**2 - 2 * correlation * below_after * above_before + above_before**2
    return after - before - math.sqrt(max(square, 0.0))


def _wilson(successes: int, n: int) -> tuple[float, float]:
    """Wilson's score interval of one proportion."""
    share, z2 = successes / n, _Z**2
    centre = share + z2 / (2 * n)
    half = _Z * math.sqrt(share * (1 - share) / n + z2 / (4 * n**2))
    return (centre - half) / (1 + z2 / n), (centre + half) / (1 + z2 / n)
