"""What a number of repetitions can show: known before a run by its plan, and after it by its statistics."""

import math
from statistics import NormalDist

CONFIDENCE, POWER = 0.95, 0.8
"""Of two-sided intervals, and the probability that a true difference of the detectable size is found."""


def detectable_margin(
    n: int, *, discordance: float = 0.1, power: float = POWER, confidence: float = CONFIDENCE
) -> float | None:
    """The smallest margin at which n problems would show that an equally good policy is not inferior.

    (z_(1 - alpha/2) + z_power) sqrt(discordance / n), the normal approximation for paired proportions (J. M. Nam,
    Biometrics 53, 1997, 1422-1430, at equal proportions), for the two-sided interval that verdicts are read off.

    Args:
        n: problems; with avg@k too, `discordance` being the variance of the problems' differences.
        discordance: share of problems on which the two differ, in (0, 1].
        power: probability of the verdict, in (0, 1).
        confidence: of the two-sided interval.

    Returns:
        At most 1; None for fewer than two problems.

    Raises:
        ValueError: discordance, power or confidence is outside its range.
    """
    if not 0 < discordance <= 1:
        raise ValueError(f"discordance is {discordance:g}; it has to be above 0 and at most 1")
    if not (0 < power < 1 and 0 < confidence < 1):
        raise ValueError(f"power is {power:g} and confidence {confidence:g}; both have to be between 0 and 1")
    if n < 2:
        return None
    normal = NormalDist()
    return min((normal.inv_cdf((1 + confidence) / 2) + normal.inv_cdf(power)) * math.sqrt(discordance / n), 1.0)


def detectable_ratio(n: int, *, deviation: float, power: float = POWER, confidence: float = CONFIDENCE) -> float | None:
    """The smallest ratio above 1 that n paired cohorts would tell from 1, by Student's t over their log ratios.

    The shift at which the noncentral t distribution, n - 1 degrees of freedom, passes the critical value of the
    two-sided test with probability `power`.

    Args:
        n: cohorts.
        deviation: standard deviation of a cohort's log ratio.
        power: probability of the verdict, in (0, 1).
        confidence: of the two-sided interval, in (0, 1).

    Returns:
        None for fewer than two cohorts, which have no interval; inf where the ratio is beyond the range of a float.

    Raises:
        ValueError: the deviation is negative or not finite.
    """
    if not (math.isfinite(deviation) and deviation >= 0):
        raise ValueError(f"the standard deviation of a log ratio is {deviation:g}; it has to be finite and not below 0")
    if n < 2:
        return None
    from scipy.special import nctdtrinc, stdtrit

    critical = stdtrit(n - 1, (1 + confidence) / 2)
    shift = float(nctdtrinc(n - 1, 1 - power, critical))
    try:
        return math.exp(shift * deviation / math.sqrt(n))
    except OverflowError:
        return math.inf
