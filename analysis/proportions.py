"""Two answers to each of the same problems: McNemar's exact test, and Newcombe's score interval of the difference."""

import math
from statistics import NormalDist

from scipy.special import bdtr

from scalerlt.analysis.intervals import CONFIDENCE, no_zero


def mcnemar_p(gained: int, lost: int) -> float:
    """Two-sided p-value of McNemar's exact test, that a discordant problem is as often gained as lost.

    1 without a discordant problem; else twice the binomial tail, at most 1 and at least `SMALLEST_P`.
    """
    discordant = gained + lost
    if discordant == 0:
        return 1.0
    return no_zero(min(2 * float(bdtr(min(gained, lost), discordant, 0.5)), 1.0))


def newcombe_interval(
    both: int, gained: int, lost: int, neither: int, confidence: float = CONFIDENCE
) -> tuple[float, float]:
    """Interval of p_after - p_before, within [-1, 1], for two answers to each of the same n problems.

    Newcombe's score interval for paired proportions (method 10 in Statistics in Medicine 17, 1998, 2635-2650): the
    Wilson intervals of both proportions, joined by their correlation, which is corrected for continuity.

    Args:
        both: problems that are right before and after.
        gained: right after only.
        lost: right before only.
        neither: wrong before and after.
        confidence: of the two-sided interval.

    Raises:
        ValueError: there is no problem.
    """
    n = both + gained + lost + neither
    if n == 0:
        raise ValueError("no problem was answered before and after")
    z = NormalDist().inv_cdf((1 + confidence) / 2)
    after, before = (both + gained) / n, (both + lost) / n
    low_after, high_after = _wilson(both + gained, n, z)
    low_before, high_before = _wilson(both + lost, n, z)
    agreement = both * neither - gained * lost
    corrected = max(agreement - n / 2, 0) if agreement > 0 else agreement
    margins = (both + gained) * (lost + neither) * (both + lost) * (gained + neither)
    correlation = corrected / math.sqrt(margins) if margins else 0.0

    def joined(one: float, other: float) -> float:
        return math.sqrt(max(one**2 - 2 * correlation * one * other + other**2, 0.0))

    below, above = joined(after - low_after, high_before - before), joined(high_after - after, before - low_before)
    return max(after - before - below, -1.0), min(after - before + above, 1.0)  # rounding may pass them


def _wilson(successes: int, n: int, z: float) -> tuple[float, float]:
    """Wilson's score interval of one proportion."""
    share, z2 = successes / n, z**2
    centre = share + z2 / (2 * n)
    half = z * math.sqrt(share * (1 - share) / n + z2 / (4 * n**2))
    return (centre - half) / (1 + z2 / n), (centre + half) / (1 + z2 / n)
