"""Bootstrap, interquartile mean and Holm's correction: scipy, hand-computed values, and what must hold for any."""

import math
import random
import sys

import numpy as np
import pytest
import scipy.stats
from hypothesis import given
from hypothesis import strategies as st

import scalerlt.analysis
from scalerlt.analysis.bootstrap import BootstrapEstimate, Statistic, bootstrap_interval, interquartile_mean
from scalerlt.analysis.intervals import SMALLEST_P
from scalerlt.analysis.multiple import holm

pytestmark = pytest.mark.filterwarnings("error")

REWARDS = [0.31, 0.35, 0.02, 0.44, 0.39, 0.41, 0.97]


def test_the_interquartile_mean_by_hand() -> None:
    assert interquartile_mean([1, 2, 3, 4, 5, 6, 7, 100]) == pytest.approx((3 + 4 + 5 + 6) / 4)
    assert interquartile_mean([9.0, 1.0, 2.0]) == pytest.approx(4.0), "of three a quarter is none"
    assert interquartile_mean([5.0]) == 5.0
    for values in ([], [1.0, math.nan], [1.0, math.inf], [10**400]):
        assert interquartile_mean(values) is None


@given(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=60))
def test_the_interquartile_mean_is_scipys_trimmed_mean(values: list[float]) -> None:
    assert interquartile_mean(values) == pytest.approx(float(scipy.stats.trim_mean(values, 0.25)), rel=1e-9, abs=1e-6)


@pytest.mark.parametrize("statistic", ["mean", "interquartile_mean"])
def test_the_interval_is_scipys_percentile_interval_of_the_same_draws(statistic: Statistic) -> None:
    def of(values: np.ndarray, axis: int) -> np.ndarray:
        return np.mean(values, axis=axis) if statistic == "mean" else scipy.stats.trim_mean(values, 0.25, axis=axis)

    found = bootstrap_interval([REWARDS], statistic=statistic, resamples=5000, seed=11)
    expected = scipy.stats.bootstrap(
        (sorted(REWARDS),), of, n_resamples=5000, method="percentile", rng=np.random.default_rng(11)
    )
    assert (found.low, found.high) == pytest.approx(tuple(expected.confidence_interval))
    assert found.estimate == pytest.approx(float(of(np.array(REWARDS), 0)))
    assert (found.n, found.statistic, found.note) == (7, statistic, None)


def test_the_interval_of_a_mean_is_what_normal_theory_gives_for_many_seeds() -> None:
    values = np.random.default_rng(0).normal(3.0, 2.0, 400).tolist()
    found = bootstrap_interval([values], statistic="mean", resamples=4000)
    half = 1.959964 * np.std(values) / math.sqrt(400)
    assert (found.low, found.high) == pytest.approx((np.mean(values) - half, np.mean(values) + half), abs=0.02)


def test_seeds_are_drawn_within_their_task() -> None:
    """Tasks that differ much from each other, and seeds that do not, leave little open."""
    tasks = [[level + 0.01 * seed for seed in range(5)] for level in (0.0, 10.0, 20.0, 30.0)]
    within = bootstrap_interval(tasks, statistic="mean")
    across = bootstrap_interval([[score for task in tasks for score in task]], statistic="mean")
    assert within.low is not None
    assert within.high is not None
    assert across.low is not None
    assert across.high is not None
    assert within.high - within.low < 0.02
    assert within.low < 15.02 < within.high
    assert across.high - across.low > 5
    assert within.n == 5


@given(
    st.lists(st.lists(st.floats(0, 1), min_size=5, max_size=8), min_size=1, max_size=4),
    st.randoms(use_true_random=False),
)
def test_the_order_of_seeds_and_tasks_is_nothing(tasks: list[list[float]], chance: random.Random) -> None:
    shuffled = [chance.sample(task, len(task)) for task in chance.sample(tasks, len(tasks))]
    assert bootstrap_interval(shuffled, resamples=200) == bootstrap_interval(tasks, resamples=200)


def test_the_same_seed_gives_the_same_interval_and_another_almost() -> None:
    one, again, other = (
        bootstrap_interval([REWARDS], statistic="mean", resamples=2000, seed=seed) for seed in (0, 0, 1)
    )
    assert one == again
    assert one != other
    assert (one.low, one.high) == pytest.approx((other.low, other.high), abs=0.02)


def test_draws_in_parts_are_draws() -> None:
    many = [np.random.default_rng(2).uniform(size=3000).tolist()]
    found = bootstrap_interval(many, statistic="mean", resamples=3000)
    half = 1.96 * math.sqrt(1 / 12 / 3000)
    assert found.low is not None
    assert found.high is not None
    assert found.high - found.low == pytest.approx(2 * half, rel=0.1)


def test_the_interval_covers_about_what_it_says() -> None:
    chance, covered = np.random.default_rng(4), 0
    for trial in range(400):
        found = bootstrap_interval([chance.normal(size=20).tolist()], statistic="mean", resamples=400, seed=trial)
        assert found.low is not None
        assert found.high is not None
        covered += found.low <= 0 <= found.high
    assert 0.88 < covered / 400 < 0.97, "a percentile interval of 20 values is somewhat narrow"


def test_what_a_bootstrap_cannot_say() -> None:
    assert bootstrap_interval([]) == BootstrapEstimate(None, None, None, 0, "interquartile_mean", "no task has a score")
    assert bootstrap_interval([[]]).note == "no task has a score"
    assert bootstrap_interval([[1.0], []]).note == "a task has no score"
    for n in (1, 2, 4):
        few = bootstrap_interval([[0.5, 0.7, 0.1, 0.2][:n]], statistic="mean")
        assert (few.low, few.high, few.n) == (None, None, n)
        assert few.note == f"an interval over seeds takes 5 of them, and there are {n}"
        assert few.estimate is not None
    for wrong in (math.nan, math.inf, -math.inf, 10**400):
        found = bootstrap_interval([[*REWARDS, wrong]])
        assert (found.estimate, found.low, found.note) == (None, None, "a score is not finite")
    same = bootstrap_interval([[0.5] * 6, [0.1] * 5])
    assert (same.low, same.high) == (same.estimate, same.estimate)
    assert "no width" in (same.note or "")


@pytest.mark.parametrize("statistic", ["mean", "interquartile_mean"])
def test_scores_at_the_range_of_a_float_are_scores_as_others_are(statistic: Statistic) -> None:
    plain = [-1.75, 1.75, 0.0, 1.0, -0.5, 0.25]
    one = bootstrap_interval([plain], statistic=statistic)
    for power in (-1000, 1000, 1023):
        found = bootstrap_interval([[math.ldexp(value, power) for value in plain]], statistic=statistic)
        ends = [None if end is None else math.ldexp(end, power) for end in (one.estimate, one.low, one.high)]
        assert [found.estimate, found.low, found.high] == pytest.approx(ends, rel=1e-12)
        assert found.note is None
    largest = sys.float_info.max
    same = bootstrap_interval([[largest] * 7], statistic=statistic)
    assert same.estimate == same.low == same.high == pytest.approx(largest)
    assert interquartile_mean([largest, 1.0, 2.0, 3.0]) == pytest.approx(2.5)


def test_holm_by_hand_and_as_published() -> None:
    # Holm's own procedure on four: 4 * 0.005, 3 * 0.01, 2 * 0.03, max(0.06, 0.04)
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    # R 4: p.adjust(c(0.01, 0.02, 0.03, 0.04, 0.05), "holm")
    assert holm([0.01, 0.02, 0.03, 0.04, 0.05]) == pytest.approx([0.05, 0.08, 0.09, 0.09, 0.09])


def test_holm_is_statsmodels() -> None:
    values = [0.0001, 0.0004, 0.0019, 0.0095, 0.0201, 0.0278, 0.0298, 0.0344, 0.0459, 0.3240, 0.4262, 0.5719, 1.0]
    # statsmodels 0.15, multipletests(values, method="holm")
    adjusted = [0.0013, 0.0048, 0.0209, 0.095, 0.1809, 0.2224, 0.2224, 0.2224, 0.2295, 1.0, 1.0, 1.0, 1.0]
    assert holm(values) == pytest.approx(adjusted)


@given(st.lists(st.floats(0, 1), max_size=20), st.randoms(use_true_random=False))
def test_holm_is_monotone_between_the_value_and_bonferroni_in_any_order(
    values: list[float], chance: random.Random
) -> None:
    adjusted = holm(values)
    order = chance.sample(range(len(values)), len(values))
    assert holm([values[place] for place in order]) == [adjusted[place] for place in order]
    ranked = [found for _, found in sorted(zip(values, adjusted, strict=True), key=lambda pair: pair[0])]
    assert ranked == sorted(ranked)  # type: ignore[type-var]
    for value, found in zip(values, adjusted, strict=True):
        assert found is not None
        assert 0 < found <= 1
        assert value <= found <= max(min(len(values) * value, 1), len(values) * SMALLEST_P) * (1 + 1e-12)


def test_holm_of_what_was_not_tested() -> None:
    assert holm([]) == []
    assert holm([None, 0.02, math.nan, 0.5]) == [None, pytest.approx(0.04), None, 0.5]
    assert holm([0.0, 0.0]) == [2 * SMALLEST_P, 2 * SMALLEST_P]
    for wrong in (-0.1, 1.1, math.inf):
        with pytest.raises(ValueError, match="has to be in"):
            holm([0.5, wrong])


def test_the_statistics_are_names_of_the_package() -> None:
    for name in (
        "paired_ratio",
        "paired_accuracy",
        "paired_avg_at_k",
        "avg_at_k",
        "detectable_margin",
        "default_margin",
    ):
        assert name in scalerlt.analysis.__all__
        assert callable(getattr(scalerlt.analysis, name))
    assert (scalerlt.analysis.holm, scalerlt.analysis.bootstrap_interval) == (holm, bootstrap_interval)
    with pytest.raises(AttributeError, match="no attribute t_test"):
        scalerlt.analysis.t_test  # noqa: B018
