"""Ratios over cohorts: published numbers, scipy, and what must hold for any."""

import math
import random
from collections.abc import Sequence
from statistics import fmean, mean, stdev

import pytest
import scipy.stats
from hypothesis import given
from hypothesis import strategies as st

from scalerlt.analysis.intervals import student_interval, student_p
from scalerlt.analysis.ratios import Ratio, RatioEstimator, paired_ratio

pytestmark = pytest.mark.filterwarnings("error")

T2 = 4.302653
"""Student's t, 2 degrees of freedom, 97.5 %."""
ESTIMATORS: tuple[RatioEstimator, ...] = (
    "geometric_mean_of_cohorts",
    "geometric_mean_of_cohort_means",
    "matched_pair_mean",
)


def of_cohorts(ratios: Sequence[float], estimator: RatioEstimator = "geometric_mean_of_cohorts") -> Ratio:
    """One block per cohort."""
    return paired_ratio([[ratio] for ratio in ratios], [[1.0]] * len(ratios), estimator=estimator)


PUBLISHED = [
    # cohorts' ratios, estimate, interval: 0z5a/vime benchmarks/results/packed-prefix-clean-cpu/summary-parent.json
    ((2.5285515003315426, 3.1468166236287343, 3.2707898551422407), 2.9634569805, (2.0992143302, 4.1835067288)),
    ((2.5709702198710387, 3.506084087110975, 3.442336524150014), 3.1423717819, (2.0393218902, 4.8420509107)),
    ((3.891382630059741, 3.4061452054555432, 3.7453875649936648), 3.6752590259, (3.0996099022, 4.3578157682)),
    ((0.3407377284492439, 0.5204481299366097, 0.49361863801367606), 0.4440137389, (0.2502665993, 0.7877527442)),
    ((0.8953232369739169, 1.149800135974254, 0.7586723593158219), 0.9209134683, (0.5475207073, 1.5489489342)),
    # 0z5a/vllm-rlt benchmarks/results/group-prefill-fork/clean-cpu/summary.json
    ((3.618569116782527, 3.0907288183335115, 4.279668726939635), 3.6308026385, (2.4233091525, 5.4399694674)),
    ((4.4437938404996515, 4.6312719470136665, 4.457146112192034), 4.5099357249, (4.2590522550, 4.7755977210)),
    ((4.354781391194716, 0.8846491634602894, 4.407311790885299), 2.5702206092, (0.2590934769, 25.4967205627)),
]


@pytest.mark.parametrize(("ratios", "estimate", "interval"), PUBLISHED)
def test_published_cohorts_give_the_published_interval(
    ratios: tuple[float, ...], estimate: float, interval: tuple[float, float]
) -> None:
    found = of_cohorts(ratios)
    assert (found.n, found.note) == (3, None)
    assert found.estimate == pytest.approx(estimate, rel=1e-9)
    assert (found.low, found.high) == pytest.approx(interval, rel=1e-9)
    assert (found.smallest, found.largest) == pytest.approx((min(ratios), max(ratios)))


ROUNDED = [  # published with three digits after the point, all from three cohorts
    (2.963, 2.099, 4.184),
    (3.142, 2.039, 4.842),
    (3.675, 3.100, 4.358),
    (3.631, 2.423, 5.440),
    (4.510, 4.259, 4.776),
    (2.570, 0.259, 25.497),
    (1.102, 0.737, 1.646),
    (1.119, 0.514, 2.436),
    (0.649, 0.268, 1.570),
    (0.517, 0.261, 1.022),
]


@pytest.mark.parametrize(("estimate", "low", "high"), ROUNDED)
def test_published_intervals_are_students_on_the_logarithm(estimate: float, low: float, high: float) -> None:
    # symmetric as a factor, up to the rounding of three numbers by half a unit in the third place
    rounding = 0.0005 * (1 / low + 1 / high + 2 / estimate)
    assert abs(math.log(high / estimate) - math.log(estimate / low)) <= rounding
    # the deviation that the interval implies gives the interval again
    centre, deviation = math.log(low * high) / 2, math.log(high / low) / 2 * math.sqrt(3) / T2
    found = of_cohorts([math.exp(centre + shift * deviation) for shift in (-1, 0, 1)])
    assert found.low is not None
    assert found.high is not None
    assert (round(found.low, 3), round(found.high, 3)) == (low, high)
    assert found.estimate == pytest.approx(estimate, abs=0.0005 + estimate * rounding / 2)


FRESH_D4, FRESH_D3, FRESH_GUIDED = (143.8722, 144.4825), (166.7335, 167.5084), (164.6464, 164.7555)
MATCHED_D3 = (
    (1.1589533190203436, 1.1672305749602145, 1.1658692908053419, 1.1661649406689953, 1.1361334535494103),
    (1.150367272771884, 1.149182587768044, 1.138625047214358, 1.207677108736802, 1.1532178217029252),
)
MATCHED_GUIDED = (
    (1.1730250499747459, 1.1499358799636974, 1.128106236485313, 1.1328384632829296, 1.1385044638262283),
    (1.1283788104491972, 1.1342740175533752, 1.134570065962947, 1.183085953995548, 1.1232422078552695),
)


@pytest.mark.parametrize(
    ("fresh", "matched", "of_means", "of_pairs"),
    [(FRESH_D3, MATCHED_D3, 1.1591, 1.159342), (FRESH_GUIDED, MATCHED_GUIDED, 1.1424, 1.142596)],
)
def test_both_published_aggregations_of_one_measurement(
    fresh: tuple[float, float], matched: tuple[tuple[float, ...], ...], of_means: float, of_pairs: float
) -> None:
    """0z5a/vllm-rlt, fixed work at C32: throughput of two fresh processes, and ten matched ratios of elapsed time."""
    means = paired_ratio(
        [[value] for value in fresh], [[value] for value in FRESH_D4], estimator="geometric_mean_of_cohort_means"
    )
    pairs = paired_ratio(matched, [[1.0] * 5] * 2, estimator="matched_pair_mean")
    assert means.estimate is not None
    assert pairs.estimate is not None
    assert (round(means.estimate, 4), round(pairs.estimate, 6)) == (of_means, of_pairs)
    assert (means.estimator, pairs.estimator) == ("geometric_mean_of_cohort_means", "matched_pair_mean")
    assert pairs.n == 2, "ten pairs of two processes are two cohorts"


def test_the_three_estimators_by_hand() -> None:
    above, below = [[8.0, 2.0], [9.0, 9.0]], [[2.0, 1.0], [3.0, 1.0]]
    # ratios 4, 2 and 3, 9
    geometric, of_means, of_pairs = (paired_ratio(above, below, estimator=one) for one in ESTIMATORS)
    first, second = math.sqrt(8), math.sqrt(27)
    assert geometric.estimate == pytest.approx(math.sqrt(first * second))
    assert of_means.estimate == pytest.approx(math.sqrt((10 / 3) * (18 / 4)))
    assert of_pairs.estimate == pytest.approx((3 + 6) / 2)
    assert (geometric.smallest, geometric.largest) == pytest.approx((first, second))
    assert (of_pairs.smallest, of_pairs.largest) == (3.0, 6.0)


values = st.floats(0.01, 100)
blocks = st.integers(1, 4).flatmap(lambda n: st.tuples(*[st.lists(values, min_size=n, max_size=n)] * 2))
arms = st.lists(blocks, min_size=2, max_size=7)


def unzip(cohorts: Sequence[tuple[list[float], list[float]]]) -> tuple[list[list[float]], list[list[float]]]:
    return [above for above, _ in cohorts], [below for _, below in cohorts]


@given(arms, st.sampled_from(ESTIMATORS[:2]))
def test_the_ratio_turned_over_has_the_interval_turned_over(
    cohorts: list[tuple[list[float], list[float]]], estimator: RatioEstimator
) -> None:
    above, below = unzip(cohorts)
    one, other = (paired_ratio(*pair, estimator=estimator) for pair in ((above, below), (below, above)))
    assert one.estimate is not None
    assert other.estimate == pytest.approx(1 / one.estimate)
    if one.p is None or other.p is None:
        return
    assert one.low is not None
    assert one.high is not None
    assert one.p == pytest.approx(other.p, rel=1e-6, abs=1e-12)
    if one.low > 1e-300:  # else the ends leave the range of a float
        assert (other.low, other.high) == (pytest.approx(1 / one.high), pytest.approx(1 / one.low))


@given(arms, st.sampled_from(ESTIMATORS), st.randoms(use_true_random=False))
def test_the_order_of_cohorts_and_blocks_is_nothing(
    cohorts: list[tuple[list[float], list[float]]], estimator: RatioEstimator, chance: random.Random
) -> None:
    shuffled = []
    for above, below in cohorts:
        order = chance.sample(range(len(above)), len(above))
        shuffled.append(([above[place] for place in order], [below[place] for place in order]))
    chance.shuffle(shuffled)
    assert paired_ratio(*unzip(shuffled), estimator=estimator) == paired_ratio(*unzip(cohorts), estimator=estimator)


@given(arms, st.sampled_from(ESTIMATORS))
def test_interval_and_test_agree_with_scipy(
    cohorts: list[tuple[list[float], list[float]]], estimator: RatioEstimator
) -> None:
    found = paired_ratio(*unzip(cohorts), estimator=estimator)
    linear = estimator == "matched_pair_mean"
    centres = []
    for above, below in cohorts:
        ratios = [one / other for one, other in zip(above, below, strict=True)]
        match estimator:
            case "geometric_mean_of_cohorts":
                centres.append(float(scipy.stats.gmean(ratios)))
            case "geometric_mean_of_cohort_means":
                centres.append(sum(above) / sum(below))
            case _:
                centres.append(fmean(ratios))
    sample = centres if linear else [math.log(centre) for centre in centres]
    if max(sample) - min(sample) < 1e-9:
        return
    test = scipy.stats.ttest_1samp(sample, 1.0 if linear else 0.0)
    low, high = test.confidence_interval(0.95)
    assert found.p == pytest.approx(test.pvalue, rel=1e-5)
    assert found.estimate is not None
    assert found.low is not None
    assert found.high is not None
    if linear:
        assert (found.low, found.high) == pytest.approx((max(low, 0.0), high))
        assert (found.note is not None) == (low < 0)
    elif high < 700 and low > -700:
        assert (math.log(found.low), math.log(found.high)) == pytest.approx((low, high), abs=1e-6)
    assert 0 <= found.low <= found.estimate <= found.high
    if found.p is not None and abs(found.p - 0.05) > 1e-6:
        assert (found.p < 0.05) == (not found.low <= 1 <= found.high)


@given(arms)
def test_the_mean_of_ratios_is_never_below_their_geometric_mean(cohorts: list[tuple[list[float], list[float]]]) -> None:
    geometric, arithmetic = (paired_ratio(*unzip(cohorts), estimator=ESTIMATORS[place]).estimate for place in (0, 2))
    assert geometric is not None
    assert arithmetic is not None
    assert geometric <= arithmetic * (1 + 1e-12)


def test_pairing_takes_out_what_a_cohort_shares() -> None:
    speeds = [1.0, 7.0, 40.0, 3.0]
    gains = [1.21, 1.19, 1.20, 1.22]
    paired = paired_ratio([[s * g] for s, g in zip(speeds, gains, strict=True)], [[s] for s in speeds])
    crossed = paired_ratio([[s * g] for s, g in zip(speeds, gains, strict=True)], [[s] for s in speeds[::-1]])
    assert paired.low is not None
    assert crossed.low is not None
    assert paired.low > 1.15
    assert crossed.low < 0.1


def test_blocks_are_no_cohorts() -> None:
    once = paired_ratio([[1.2], [1.1], [1.3]], [[1.0]] * 3)
    often = paired_ratio([[1.2] * 50, [1.1] * 50, [1.3] * 50], [[1.0] * 50] * 3)
    assert (often.n, often.low, often.high) == (3, pytest.approx(once.low), pytest.approx(once.high))


@pytest.mark.parametrize("cohorts", [3, 5])
def test_the_interval_covers_what_it_says(cohorts: int) -> None:
    chance, trials, covered = random.Random(1), 2000, 0
    for _ in range(trials):
        above, below = [], []
        for _ in range(cohorts):
            host, gain = chance.gauss(0, 1), chance.gauss(math.log(1.3), 0.1)
            above.append([math.exp(host + gain + chance.gauss(0, 0.05)) for _ in range(2)])
            below.append([math.exp(host + chance.gauss(0, 0.05)) for _ in range(2)])
        found = paired_ratio(above, below)
        assert found.low is not None
        assert found.high is not None
        covered += found.low <= 1.3 <= found.high
    assert 0.935 < covered / trials < 0.965


@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_few_cohorts(estimator: RatioEstimator) -> None:
    assert of_cohorts([], estimator) == Ratio(None, None, None, 0, estimator, note="no cohort has both arms")
    assert paired_ratio([[], []], [[], []], estimator=estimator).n == 0
    one = of_cohorts([1.5], estimator)
    assert (one.estimate, one.low, one.high, one.n, one.p) == (pytest.approx(1.5), None, None, 1, None)
    assert one.note == "one cohort has no interval"
    two = of_cohorts([1.0, 4.0], estimator)
    assert (two.n, two.estimate) == (2, pytest.approx(2.5 if estimator == "matched_pair_mean" else 2.0))
    assert two.low is not None
    assert two.high is not None
    assert two.low < 1 < 4 < two.high
    assert paired_ratio([[2.0], []], [[1.0], []], estimator=estimator).n == 1, "a cohort without blocks is none"


@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_cohorts_that_do_not_differ(estimator: RatioEstimator) -> None:
    found = paired_ratio(
        [[450.72, 3.3], [0.3, 9.9], [7.0, 1e-3]], [[225.36, 1.65], [0.15, 4.95], [3.5, 5e-4]], estimator=estimator
    )
    assert found.estimate == pytest.approx(2, rel=1e-14)
    assert (found.low, found.high, found.p) == (found.estimate, found.estimate, None)
    assert "no width" in (found.note or "")


@pytest.mark.parametrize("estimator", ESTIMATORS)
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, 0.0, -1.0, 0, 10**400, -(10**400)])
def test_a_value_without_a_ratio_leaves_no_estimate(estimator: RatioEstimator, value: float) -> None:
    for arms in (
        ([[1.0], [value]], [[1.0], [1.0]]),
        (
            [[1.0], [1.0]],
            [
                [
                    1.0,
                ],
                [value],
            ],
        ),
    ):
        found = paired_ratio(*arms, estimator=estimator)
        assert (found.estimate, found.low, found.high, found.p, found.n) == (None, None, None, None, 2)
        assert "finite" in (found.note or "")


def test_what_leaves_the_range_of_a_float() -> None:
    wide = of_cohorts([1e-200, 1e200])
    assert (wide.estimate, wide.low, wide.high) == (pytest.approx(1), 0.0, math.inf)
    huge = paired_ratio([[1e308], [1e308]], [[1e-308], [1e-308]], estimator="matched_pair_mean")
    assert (huge.estimate, huge.note) == (None, "a ratio is beyond the range of a float")
    means = paired_ratio([[1.7e308, 1.7e308], [1.0, 1.0]], [[1.7e308, 1.7e308], [1.0, 2.0]], estimator=ESTIMATORS[1])
    assert means.estimate == pytest.approx(math.sqrt(1 / 1.5))
    matched = paired_ratio([[1e308] * 2, [1.5e308, 1.7e308]], [[1.0] * 2] * 2, estimator="matched_pair_mean")
    assert (matched.estimate, matched.high) == (pytest.approx(1.3e308), math.inf)
    assert (matched.smallest, matched.largest) == (1e308, pytest.approx(1.6e308))


@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_a_cohort_beyond_the_range_of_a_float_has_no_ratio(estimator: RatioEstimator) -> None:
    large, small = [[1e308], [0.5e308]], [[1e-308], [1e-308]]
    for arms in ((large, small), (small, large), ([*large, [2.0]], [*small, [1.0]])):
        found = paired_ratio(*arms, estimator=estimator)
        assert (found.estimate, found.low, found.high, found.p) == (None, None, None, None)
        assert found.note == "a ratio is beyond the range of a float"


def test_p_is_never_zero() -> None:
    found = of_cohorts([1e30 * (1 + place * 1e-9) for place in range(60)])
    assert found.p is not None
    assert found.p > 0


def test_arms_that_do_not_match_are_an_error() -> None:
    with pytest.raises(ValueError, match="2 cohorts and the other 1"):
        paired_ratio([[1.0], [1.0]], [[1.0]])
    with pytest.raises(ValueError, match="cohort 1 has 2 blocks of one arm and 1"):
        paired_ratio([[1.0], [1.0, 2.0]], [[1.0], [1.0]])


@given(st.lists(st.floats(-1e6, 1e6), min_size=2, max_size=30), st.floats(0.5, 0.999))
def test_students_interval_is_scipys(sample: list[float], confidence: float) -> None:
    interval = student_interval(sample, confidence)
    assert interval is not None
    error = stdev(sample) / math.sqrt(len(sample))
    if error > 1e-6:
        expected = scipy.stats.t.interval(confidence, len(sample) - 1, loc=mean(sample), scale=error)
        assert interval == pytest.approx(expected, rel=1e-7, abs=1e-7 * error)


def test_students_test_and_interval_of_what_has_none() -> None:
    for sample in ([], [1.0], [1.0, math.nan], [1.0, math.inf], [1.0, 10**400]):
        assert student_interval(sample) is None
        assert student_p(sample, 0.0) is None
    assert student_interval([2.0, 2.0]) == (2.0, 2.0)
    assert student_p([2.0, 2.0], 0.0) is None
    assert student_interval([1.7e308, -1.7e308]) == (-math.inf, math.inf)
    assert student_p([1.0, 1.0 + 1e-15] * 400, 0.0) == pytest.approx(2.2250738585072014e-308)
