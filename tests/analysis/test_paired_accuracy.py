"""Paired accuracy: published intervals and verdicts, scipy, and what must hold for any answers."""

import math
import random
from statistics import fmean

import numpy as np
import pytest
import scipy.stats
from hypothesis import given
from hypothesis import strategies as st

from scalerlt.analysis.accuracy import (
    CONSTANT,
    NARROW_MARGIN,
    WIDE_MARGIN,
    AccuracyDifference,
    avg_at_k,
    default_margin,
    judge,
    paired_accuracy,
    paired_avg_at_k,
)
from scalerlt.analysis.intervals import SMALLEST_P
from scalerlt.analysis.proportions import mcnemar_p, newcombe_interval
from scalerlt.power import detectable_margin

pytestmark = pytest.mark.filterwarnings("error")


def answers(both: int, gained: int, lost: int, neither: int) -> tuple[list[bool], list[bool]]:
    """Reference and candidate with these counts."""
    pairs = [(True, True)] * both + [(False, True)] * gained + [(True, False)] * lost + [(False, False)] * neither
    return [before for before, _ in pairs], [after for _, after in pairs]


def compared(both: int, gained: int, lost: int, neither: int, margin: float | None = None) -> AccuracyDifference:
    return paired_accuracy(*answers(both, gained, lost, neither), margin=margin)


PROBLEMS, REFERENCE = 128, 80
"""Of the published comparison of six arms on GSM8K: problems, and the reference's right answers."""


def union_interval(gained: int, lost: int, n: int, comparisons: int) -> tuple[float, float]:
    """The published comparison's own interval: the Clopper-Pearson intervals of the shares gained and lost, each at
    half of the error that Bonferroni leaves to one comparison, subtracted end from end."""
    alpha = 0.05 / comparisons / 2
    ends = []
    for count in (gained, lost):
        found = scipy.stats.binomtest(count, n).proportion_ci(1 - alpha, method="exact")
        ends.append((float(found.low), float(found.high)))
    return ends[0][0] - ends[1][1], ends[0][1] - ends[1][0]


@pytest.mark.parametrize(
    ("counts", "published", "verdict"),
    [
        # both right, gained, lost, both wrong: 0z5a/vllm-rlt H100_48GiB_CONFIRMATION-v1.json, all three UNCERTAIN there
        ((270, 31, 46, 158), (-0.09008988535465567, 0.031290344982920076), "UNCERTAIN"),
        ((257, 44, 30, 174), (-0.03222355049747422, 0.08709923492766208), "NON_INFERIOR"),
        ((0, 0, 1, 147), (-0.0474900317031247, 0.03366805626254722), "UNCERTAIN"),
        # 80 against 80 and 80 against 79 of 128, rounded to a hundredth of a point
        ((72, 8, 8, 40), (-0.1154, 0.1154), "UNCERTAIN"),
        ((73, 7, 6, 42), (-0.0985, 0.1133), "UNCERTAIN"),
    ],
)
def test_what_the_published_intervals_are(
    counts: tuple[int, int, int, int], published: tuple[float, float], verdict: str
) -> None:
    """Conservative ones, of a family of two comparisons. Ours lie inside, and one verdict is another by that."""
    _, gained, lost, _ = counts
    n = sum(counts)
    wide = union_interval(gained, lost, n, comparisons=2)
    assert wide == pytest.approx(published, abs=5.5e-5 if n == PROBLEMS else 1e-12)
    found = compared(*counts, margin=0.01)
    assert found.low is not None
    assert found.high is not None
    assert wide[0] < found.low < found.high < wide[1]
    assert judge(*wide, 0.01) == "UNCERTAIN"
    assert found.verdict == verdict


def test_only_8_gained_and_8_lost_give_the_published_interval_of_equal_totals() -> None:
    """[-11.54, +11.54] points of 80 against 80 of 128."""
    highs = {count: union_interval(count, count, PROBLEMS, comparisons=2)[1] for count in range(49)}
    assert [count for count, high in highs.items() if round(100 * high, 2) == 11.54] == [8]


@pytest.mark.parametrize("right", [83, 79, 80, 59, 62])
def test_the_published_verdicts(right: int) -> None:
    """UNCERTAIN for 83, 79 and 80, DEGRADED for 59 and 62 of 128 against 80, at a margin of 1 point. How many problems
    each arm gained and lost is not published: all counts are tried that give the published verdict by the published
    interval. Ours is narrower and gives the same one, but where 3 are gained and not one is lost."""
    published = "DEGRADED" if right in (59, 62) else "UNCERTAIN"
    tried, other = 0, []
    for lost in range(REFERENCE + 1):
        gained = right - REFERENCE + lost
        if not 0 <= gained <= PROBLEMS - REFERENCE:
            continue
        if judge(*union_interval(gained, lost, PROBLEMS, comparisons=2), 0.01) != published:
            continue
        tried += 1
        found = compared(REFERENCE - lost, gained, lost, PROBLEMS - REFERENCE - gained, margin=0.01)
        assert found.difference == pytest.approx((right - REFERENCE) / PROBLEMS)
        if found.verdict != published:
            other.append((gained, lost, found.verdict))
    assert tried > 1
    assert other == ([(3, 0, "NON_INFERIOR")] if right == 83 else [])


def test_equal_totals_prove_nothing() -> None:
    found = compared(72, 8, 8, 40)
    assert (found.difference, found.p, found.verdict, found.margin) == (0.0, 1.0, "UNCERTAIN", 0.025)
    assert (found.low, found.high) == pytest.approx((-0.0626323570, 0.0626323570))
    assert found.discordance == pytest.approx(16 / 128)


@pytest.mark.parametrize(
    ("low", "high", "verdict"),
    [
        (0.001, 0.1, "BETTER"),
        (0.0, 0.1, "NON_INFERIOR"),
        (-0.009, -0.001, "NON_INFERIOR"),
        (-0.01, 0.2, "UNCERTAIN"),
        (-0.2, -0.01, "UNCERTAIN"),
        (-0.2, -0.0101, "DEGRADED"),
    ],
)
def test_a_verdict_by_the_ends_of_the_interval(low: float, high: float, verdict: str) -> None:
    assert judge(low, high, 0.01) == verdict


@pytest.mark.parametrize(
    ("counts", "published"),
    [
        ((36, 12, 2, 0), (0.0569, 0.3404)),  # Newcombe (1998), table III, method 10
        ((1, 1, 7, 12), (-0.507, -0.026)),  # Fagerland, Lydersen, Laake (2014), of Bentur et al. (2009)
    ],
)
def test_the_score_interval_is_the_published_one(
    counts: tuple[int, int, int, int], published: tuple[float, float]
) -> None:
    digits = len(str(published[0]).partition(".")[2])
    assert tuple(round(end, digits) for end in newcombe_interval(*counts)) == published


counts = st.integers(0, 300)


@given(counts, counts, counts, counts)
def test_exchanging_the_policies_turns_the_difference_round(a: int, b: int, c: int, d: int) -> None:
    if a + b + c + d < 2:
        return
    one, other = compared(a, b, c, d), compared(a, c, b, d)
    assert one.low is not None
    assert one.high is not None
    assert one.difference is not None
    assert (other.low, other.high) == pytest.approx((-one.high, -one.low), abs=1e-9)
    assert other.p == one.p
    assert -1 - 1e-12 <= one.low <= one.difference <= one.high <= 1 + 1e-12
    assert one.low < one.high


@given(st.integers(0, 400), st.integers(0, 400))
def test_mcnemars_test_is_the_exact_binomial_one(gained: int, lost: int) -> None:
    p = mcnemar_p(gained, lost)
    expected = scipy.stats.binomtest(gained, gained + lost).pvalue if gained + lost else 1.0
    assert p == pytest.approx(expected, rel=1e-9)
    assert 0 < p <= 1


def test_p_is_never_zero() -> None:
    assert mcnemar_p(100_000, 0) == SMALLEST_P
    assert mcnemar_p(5, 0) == pytest.approx(2 / 32)
    assert mcnemar_p(8, 15) == pytest.approx(0.21003961563110352), "statsmodels 0.15, mcnemar(..., exact=True)"
    scores = [[0.0] * 4] * 500, [[1.0] * 4] * 499 + [[0.999] * 4]
    assert paired_avg_at_k(*scores).p == SMALLEST_P


@given(st.randoms(use_true_random=False), st.lists(st.tuples(st.booleans(), st.booleans()), min_size=2, max_size=80))
def test_the_order_of_the_problems_is_nothing_and_pairing_is_something(
    chance: random.Random, pairs: list[tuple[bool, bool]]
) -> None:
    shuffled = chance.sample(pairs, len(pairs))
    one = paired_accuracy([a for a, _ in pairs], [b for _, b in pairs])
    assert one == paired_accuracy([a for a, _ in shuffled], [b for _, b in shuffled])


def test_pairing_makes_the_interval_narrower() -> None:
    before, after = answers(400, 60, 40, 500)
    paired = paired_accuracy(before, after)
    crossed = paired_accuracy(before, random.Random(0).sample(after, len(after)))
    assert paired.difference == crossed.difference
    assert paired.low is not None
    assert crossed.low is not None
    assert paired.low > crossed.low + 0.01


@pytest.mark.parametrize(("gained", "lost"), [(0.05, 0.05), (0.1, 0.04), (0.02, 0.02)])
def test_the_interval_covers_what_it_says(gained: float, lost: float) -> None:
    both = 0.55
    drawn = np.random.default_rng(3).multinomial(200, [both, gained, lost, 1 - both - gained - lost], 3000)
    inside = 0
    for row in drawn.tolist():
        low, high = newcombe_interval(*row)
        inside += low <= gained - lost <= high
    assert 0.935 < inside / 3000 < 0.985


def test_few_problems() -> None:
    none = paired_accuracy([], [])
    assert (none.difference, none.low, none.high, none.n, none.p) == (None, None, None, 0, None)
    assert (none.verdict, none.note) == ("UNCERTAIN", "there is no problem")
    one = paired_accuracy([False], [True])
    assert (one.difference, one.low, one.high, one.p, one.verdict) == (1.0, None, None, 1.0, "UNCERTAIN")
    two = paired_accuracy([False, False], [True, True])
    assert two.low is not None
    assert two.low < 1 == two.high
    with pytest.raises(ValueError, match="1 problems and the candidate 2"):
        paired_accuracy([True], [True, False])
    for margin in (-0.1, math.nan, math.inf):
        with pytest.raises(ValueError, match="margin is"):
            paired_accuracy([True], [True], margin=margin)


def test_constant_answers_have_an_interval_with_a_width() -> None:
    same = compared(1319, 0, 0, 0)
    assert same.low is not None
    assert -0.0035 < same.low < 0
    assert (same.difference, same.p, same.verdict) == (0.0, 1.0, "NON_INFERIOR")
    assert compared(20, 0, 0, 0).verdict == "UNCERTAIN"
    assert compared(0, 50, 0, 0).verdict == "BETTER"
    assert compared(0, 0, 50, 0).verdict == "DEGRADED"


@pytest.mark.parametrize("n", [2, 3, 50, 128, 1319])
def test_an_interval_of_a_difference_stays_within_one(n: int) -> None:
    for counts in ((0, n, 0, 0), (0, 0, n, 0), (n, 0, 0, 0), (0, n - 1, 1, 0)):
        low, high = newcombe_interval(*counts)
        assert -1 <= low <= high <= 1
        lower, upper = newcombe_interval(counts[0], counts[2], counts[1], counts[3])
        assert (lower, upper) == pytest.approx((-high, -low))


def test_no_verdict_of_a_difference_that_the_exact_test_does_not_find() -> None:
    lost, gained = compared(0, 0, 3, 0), compared(0, 3, 0, 0)
    assert (lost.p, lost.verdict, gained.p, gained.verdict) == (0.25, "UNCERTAIN", 0.25, "NON_INFERIOR")
    assert lost.note == "DEGRADED by the interval alone, which the exact test (p=0.25) does not bear out"
    assert (gained.note or "").startswith("BETTER by the interval alone")
    six = compared(0, 0, 6, 0)
    assert (six.p, six.verdict, six.note) == (0.03125, "DEGRADED", None)
    bolder = paired_accuracy(*answers(0, 0, 6, 0), confidence=0.99)
    assert bolder.verdict == "UNCERTAIN"


@given(st.integers(0, 12), st.integers(0, 12), st.integers(0, 12), st.integers(0, 12))
def test_a_verdict_of_a_difference_has_both_its_interval_and_its_test(
    both: int, gained: int, lost: int, neither: int
) -> None:
    found = compared(both, gained, lost, neither)
    if found.verdict in ("BETTER", "DEGRADED"):
        assert mcnemar_p(gained, lost) <= 0.05
        assert judge(*newcombe_interval(both, gained, lost, neither), found.margin) == found.verdict


def test_the_default_margin_needs_many_answers() -> None:
    assert [default_margin(n) for n in (128, 1319, 7999, 8000)] == [WIDE_MARGIN] * 3 + [NARROW_MARGIN]
    assert [default_margin(1319, k) for k in (7, 8)] == [WIDE_MARGIN, NARROW_MARGIN]


def test_the_default_margins_can_be_detected_and_the_published_one_could_not() -> None:
    assert detectable_margin(1319) == pytest.approx(2.8015852 * math.sqrt(0.1 / 1319))
    assert 0.024 < (detectable_margin(1319) or 1) <= WIDE_MARGIN
    assert 0.0098 < (detectable_margin(8000) or 1) <= NARROW_MARGIN
    assert (detectable_margin(128, discordance=0.125) or 0) > 0.08 > 0.01
    assert detectable_margin(2, discordance=1.0) == 1.0
    assert (detectable_margin(0), detectable_margin(1)) == (None, None)
    for wrong in ({"discordance": 0.0}, {"discordance": 1.1}, {"power": 1.0}, {"confidence": 0.0}):
        with pytest.raises(ValueError, match=r"it has to be|both have to be"):
            detectable_margin(100, **wrong)


def test_the_detectable_margin_has_the_power_it_says() -> None:
    n, discordance = 1319, 0.12
    margin = detectable_margin(n, discordance=discordance, power=0.8)
    assert margin is not None
    half = discordance / 2
    drawn = np.random.default_rng(5).multinomial(n, [0.5, half, half, 0.5 - discordance], 2000)
    shown = sum(judge(*newcombe_interval(*row), margin) in ("NON_INFERIOR", "BETTER") for row in drawn.tolist())
    assert 0.76 < shown / 2000 < 0.84


def test_avg_at_k_is_clustered_by_problem() -> None:
    scores = [[1.0, 0.0, 1.0, 1.0], [0.0] * 4, [1.0] * 4, [0.0, 0.0, 1.0, 0.0], [1.0, 1.0, 0.0, 0.0]]
    found = avg_at_k(scores)
    # cluster-robust by hand: CR1 of an intercept is G / (G - 1) times the sum of squared cluster sums over N^2
    flat = [score for row in scores for score in row]
    centre = fmean(flat)
    meat = sum(sum(score - centre for score in row) ** 2 for row in scores)
    robust = math.sqrt(5 / 4 * meat) / len(flat)
    assert (found.estimate, found.standard_error, found.n) == (pytest.approx(centre), pytest.approx(robust), 5)
    low, high = scipy.stats.t.interval(0.95, 4, loc=centre, scale=robust)
    assert (found.low, found.high) == pytest.approx((max(low, 0), min(high, 1)))
    # statsmodels 0.15, OLS(answers, 1).fit(cov_type="cluster", cov_kwds={"groups": problems}).bse
    assert found.standard_error == pytest.approx(0.1767767, abs=5e-8)


@given(st.lists(st.lists(st.booleans(), min_size=3, max_size=3), min_size=2, max_size=30))
def test_a_paired_difference_of_a_policy_with_itself_shows_no_more_than_n_does(rows: list[list[bool]]) -> None:
    scores = [[float(value) for value in row] for row in rows]
    found = paired_avg_at_k(scores, scores)
    others = 1 - 0.025 ** (1 / len(rows))
    assert (found.difference, found.low, found.high) == (0.0, pytest.approx(-others), pytest.approx(others))
    assert (found.p, found.method, found.discordance) == (1.0, CONSTANT, 0.0)


def test_paired_avg_at_k_is_the_paired_t_test_over_problems() -> None:
    chance = np.random.default_rng(0)
    skill = chance.uniform(0.1, 0.9, 60)
    before = (chance.uniform(size=(60, 8)) < skill[:, None]).astype(float).tolist()
    after = (chance.uniform(size=(60, 8)) < np.minimum(skill + 0.1, 1)[:, None]).astype(float).tolist()
    found = paired_avg_at_k(before, after)
    test = scipy.stats.ttest_rel([fmean(row) for row in after], [fmean(row) for row in before])
    low, high = test.confidence_interval(0.95)
    assert (found.low, found.high, found.p) == pytest.approx((low, high, test.pvalue))
    assert (found.margin, found.n) == (NARROW_MARGIN, 60)
    unpaired = paired_avg_at_k(before, after[::-1])
    assert unpaired.low is not None
    assert found.low is not None
    assert unpaired.low < found.low


def test_several_answers_are_no_several_problems() -> None:
    once = avg_at_k([[0.0], [1.0], [1.0], [0.0], [1.0]])
    eight = avg_at_k([[0.0] * 8, [1.0] * 8, [1.0] * 8, [0.0] * 8, [1.0] * 8])
    assert (eight.low, eight.high, eight.standard_error) == (once.low, once.high, once.standard_error)


def test_the_clustered_interval_covers_what_it_says() -> None:
    chance, trials = np.random.default_rng(7), 1500
    covered = 0
    for _ in range(trials):
        skill = chance.beta(1, 1, 40)
        found = avg_at_k((chance.uniform(size=(40, 4)) < skill[:, None]).astype(float).tolist())
        assert found.low is not None
        assert found.high is not None
        covered += found.low <= 0.5 <= found.high
    assert 0.93 < covered / trials < 0.97


def test_what_avg_at_k_cannot_say() -> None:
    empty = avg_at_k([])
    assert (empty.estimate, empty.low, empty.n, empty.note) == (None, None, 0, "there is no problem")
    one = avg_at_k([[1.0, 0.0]])
    assert (one.estimate, one.low, one.high, one.standard_error) == (0.5, None, None, None)
    assert avg_at_k([[1.0], []]).note == "a problem has no answer"
    for score in (math.nan, math.inf, -math.inf, -0.1, 1.1, 10**400):
        found = avg_at_k([[1.0], [score]])
        assert (found.estimate, found.low, found.note) == (None, None, "a score is not in [0, 1]")
        both = paired_avg_at_k([[1.0], [1.0]], [[1.0], [score]])
        assert (both.difference, both.low, both.verdict, both.p) == (None, None, "UNCERTAIN", None)
    single = paired_avg_at_k([[1.0, 0.0]], [[1.0, 1.0]])
    assert (single.difference, single.low, single.verdict, single.p) == (0.5, None, "UNCERTAIN", None)
    nothing = paired_avg_at_k([], [])
    assert (nothing.difference, nothing.n, nothing.verdict) == (None, 0, "UNCERTAIN")
    with pytest.raises(ValueError, match="problems"):
        paired_avg_at_k([[1.0]], [])


def test_all_right_is_clopper_and_pearsons_interval() -> None:
    found = avg_at_k([[1.0, 1.0]] * 50)
    exact = scipy.stats.binomtest(50, 50).proportion_ci(0.95, method="exact")
    assert (found.low, found.high) == pytest.approx((exact.low, 1.0))
    constant = paired_avg_at_k([[0.5, 0.5]] * 30, [[1.0, 0.5]] * 30)
    assert constant.low is not None
    assert constant.high is not None
    assert constant.difference == pytest.approx(0.25)
    assert constant.low < 0.25 < constant.high
    assert constant.p == pytest.approx(2 * 0.5**30)
