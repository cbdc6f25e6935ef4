"""Accuracy of two policies on the same problems: paired difference, interval, test, and a verdict.

Shares and margins are fractions of one, not points. A verdict is read off the two-sided 95 % interval of candidate less
reference and a margin fixed beforehand; the first that holds:

BETTER: the lower end is above 0.
NON_INFERIOR: the lower end is above -margin.
DEGRADED: the upper end is below -margin.
UNCERTAIN: anything else, and whenever there is no interval.
With one answer to each problem McNemar's exact test has to bear a difference out: a BETTER that it does not is
NON_INFERIOR, and such a DEGRADED is UNCERTAIN.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, stdev
from typing import Literal

from scalerlt.analysis.intervals import CONFIDENCE, all_finite, student_interval, student_p
from scalerlt.analysis.proportions import mcnemar_p, newcombe_interval

Verdict = Literal["BETTER", "NON_INFERIOR", "UNCERTAIN", "DEGRADED"]

WIDE_MARGIN, NARROW_MARGIN = 0.025, 0.01
"""Margins of non-inferiority: of one greedy answer to each problem of GSM8K's test set, and of many more answers."""
PROBLEMS_FOR_THE_NARROW_MARGIN, ANSWERS_FOR_THE_NARROW_MARGIN = 8000, 8

ONE_ANSWER = "Newcombe's score interval for paired proportions (method 10), McNemar's exact test"
SEVERAL_ANSWERS = "Student's t over the problems' differences"
CONSTANT = "bounds of a difference that every problem has (zero-event Clopper-Pearson), exact sign test"

SAME = 1e-12
"""Means of problems that differ by no more than this are equal: the rest is rounding."""


@dataclass(frozen=True)
class Accuracy:
    """The share of right answers over problems.

    Attributes:
        estimate: mean over problems, in [0, 1]; None where there is none, `note` says why.
        low: lower end of the two-sided interval; None where there is none: for n = 0 and n = 1 always.
        high: upper end.
        n: problems.
        standard_error: of the mean over problems; None for n = 0 and n = 1.
        note: why something is missing; None if nothing.
    """

    estimate: float | None
    low: float | None
    high: float | None
    n: int
    standard_error: float | None = None
    note: str | None = None


@dataclass(frozen=True)
class AccuracyDifference:
    """Candidate less reference over the same problems.

    Attributes:
        difference: of the accuracies, in [-1, 1]; None where there is none, `note` says why.
        low: lower end of the two-sided interval; None where there is none: for n = 0 and n = 1 always.
        high: upper end.
        n: problems.
        verdict: against `margin`.
        margin: of non-inferiority.
        p: two-sided p-value of no difference; never 0; None where there is no test.
        discordance: share of problems on which the two differ.
        method: how interval and p-value were made.
        note: why something is missing, or what else has to be said; None if nothing.
    """

    difference: float | None
    low: float | None
    high: float | None
    n: int
    verdict: Verdict
    margin: float
    p: float | None
    discordance: float | None
    method: str
    note: str | None = None


def paired_accuracy(
    reference: Sequence[bool], candidate: Sequence[bool], *, margin: float | None = None, confidence: float = CONFIDENCE
) -> AccuracyDifference:
    """One answer to each problem by each policy: Newcombe's score interval and McNemar's exact test.

    Args:
        reference: whether each problem is right.
        candidate: the other policy's, of the same problems in the same order.
        margin: of non-inferiority; None for `default_margin`.
        confidence: of the two-sided interval.

    Raises:
        ValueError: unequal numbers of problems, or a margin that is negative or not finite.
    """
    n = _paired_length(reference, candidate)
    margin = _checked(default_margin(n) if margin is None else margin)
    if n == 0:
        return AccuracyDifference(
            None, None, None, 0, "UNCERTAIN", margin, None, None, ONE_ANSWER, "there is no problem"
        )
    pairs = [(bool(before), bool(after)) for before, after in zip(reference, candidate, strict=True)]
    both, neither = pairs.count((True, True)), pairs.count((False, False))
    gained, lost = pairs.count((False, True)), pairs.count((True, False))
    difference, discordance, p = (gained - lost) / n, (gained + lost) / n, mcnemar_p(gained, lost)
    if n == 1:
        note = "one problem has no interval"
        return AccuracyDifference(difference, None, None, n, "UNCERTAIN", margin, p, discordance, ONE_ANSWER, note)
    low, high = newcombe_interval(both, gained, lost, neither, confidence)
    verdict = judge(low, high, margin)
    said: str | None = None
    if verdict in ("BETTER", "DEGRADED") and p > 1 - confidence:
        said = f"{verdict} by the interval alone, which the exact test (p={p:.2g}) does not bear out"
        verdict = "NON_INFERIOR" if verdict == "BETTER" else "UNCERTAIN"
    return AccuracyDifference(difference, low, high, n, verdict, margin, p, discordance, ONE_ANSWER, said)


def avg_at_k(scores: Sequence[Sequence[float]], *, confidence: float = CONFIDENCE) -> Accuracy:
    """Accuracy from several answers to each problem, clustered by problem: Student's t over the problems' means.

    With equally many answers the standard error is the cluster-robust one (CR1) of the mean of all answers.

    Args:
        scores: for each problem its answers' scores in [0, 1]. A problem weighs the same, however many answers it has.
        confidence: of the two-sided interval, which is cut off at 0 and 1.

    Returns:
        No estimate without a problem, where one has no answer, and where a score is not in [0, 1]. Where all problems
        have the same mean, the spread of those seen says nothing of others: the interval is then exact for problems of
        which at most a share of 1 - (alpha/2)^(1/n) has another mean.
    """
    n = len(scores)
    means, note = _means(scores)
    if not means:
        return Accuracy(None, None, None, n, None, note)
    estimate = fmean(means)
    if n == 1:
        return Accuracy(estimate, None, None, n, None, "one problem has no interval")
    low, high, _ = _problem_interval(means, 0.0, 1.0, confidence)
    return Accuracy(estimate, low, high, n, stdev(means) / math.sqrt(n))


def paired_avg_at_k(
    reference: Sequence[Sequence[float]],
    candidate: Sequence[Sequence[float]],
    *,
    margin: float | None = None,
    confidence: float = CONFIDENCE,
) -> AccuracyDifference:
    """Several answers to each problem by each policy: Student's t over the problems' differences.

    Args:
        reference: for each problem its answers' scores in [0, 1].
        candidate: the other policy's, of the same problems in the same order; the numbers of answers may differ.
        margin: of non-inferiority; None for `default_margin`.
        confidence: of the two-sided interval, which is cut off at -1 and 1.

    Returns:
        Missing things as `avg_at_k`; where every problem has the same difference, its interval, and an exact sign test.

    Raises:
        ValueError: unequal numbers of problems, or a margin that is negative or not finite.
    """
    n = _paired_length(reference, candidate)
    answers = min(map(len, [*reference, *candidate]), default=0)
    margin = _checked(default_margin(n, answers) if margin is None else margin)
    before, note = _means(reference)
    after, other_note = _means(candidate)
    if not before or not after:
        note = note or other_note
        return AccuracyDifference(None, None, None, n, "UNCERTAIN", margin, None, None, SEVERAL_ANSWERS, note)
    differences = [late - early for early, late in zip(before, after, strict=True)]
    difference = fmean(differences)
    discordance = sum(abs(found) > SAME for found in differences) / n
    if n == 1:
        note = "one problem has no interval"
        return AccuracyDifference(
            difference, None, None, n, "UNCERTAIN", margin, None, discordance, SEVERAL_ANSWERS, note
        )
    low, high, constant = _problem_interval(differences, -1.0, 1.0, confidence)
    verdict = judge(low, high, margin)
    if constant:
        p = mcnemar_p(n if difference > SAME else 0, n if difference < -SAME else 0)
        return AccuracyDifference(difference, low, high, n, verdict, margin, p, discordance, CONSTANT)
    p_of_t = student_p(differences, 0.0)
    return AccuracyDifference(difference, low, high, n, verdict, margin, p_of_t, discordance, SEVERAL_ANSWERS)


def judge(low: float, high: float, margin: float) -> Verdict:
    """The verdict on a difference with this interval, whatever a test says."""
    if low > 0:
        return "BETTER"
    if low > -margin:
        return "NON_INFERIOR"
    return "DEGRADED" if high < -margin else "UNCERTAIN"


def default_margin(problems: int, answers: int = 1) -> float:
    """The margin of non-inferiority for so many problems with so many answers each.

    2.5 points; 1 point only from 8,000 problems, or from 8 answers each. With 10 % of discordant problems that is what
    GSM8K's 1,319 test problems, and 8,000, can detect (`scalerlt.power.detectable_margin`).
    """
    many = problems >= PROBLEMS_FOR_THE_NARROW_MARGIN or answers >= ANSWERS_FOR_THE_NARROW_MARGIN
    return NARROW_MARGIN if many else WIDE_MARGIN


def _problem_interval(
    values: Sequence[float], smallest: float, largest: float, confidence: float
) -> tuple[float, float, bool]:
    """The interval of the mean of figures between two bounds, and whether all of them are the same."""
    centre = fmean(values)
    ends = student_interval(values, confidence)
    if ends is None or max(values) - min(values) <= SAME:
        others = 1 - ((1 - confidence) / 2) ** (1 / len(values))
        return centre - others * (centre - smallest), centre + others * (largest - centre), True
    return max(ends[0], smallest), min(ends[1], largest), False


def _means(scores: Sequence[Sequence[float]]) -> tuple[list[float], str | None]:
    """The mean score of each problem; or none, and why."""
    if not scores:
        return [], "there is no problem"
    if not all(scores):
        return [], "a problem has no answer"
    if any(not all_finite(answers) or min(answers) < 0 or max(answers) > 1 for answers in scores):
        return [], "a score is not in [0, 1]"
    return [fmean(answers) for answers in scores], None


def _paired_length(reference: Sequence[object], candidate: Sequence[object]) -> int:
    if len(reference) != len(candidate):
        raise ValueError(f"the reference has {len(reference)} problems and the candidate {len(candidate)}")
    return len(reference)


def _checked(margin: float) -> float:
    if not (math.isfinite(margin) and margin >= 0):
        raise ValueError(f"margin is {margin:g}; it has to be finite and not negative")
    return margin
