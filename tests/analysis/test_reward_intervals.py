import math
import random
from statistics import fmean

import pytest
import scipy.stats
from hypothesis import given
from hypothesis import strategies as st

from scalerlt.analysis.intervals import t_interval
from scalerlt.analysis.proportions import newcombe_interval
from scalerlt.analysis.seeds import over_seeds


@pytest.mark.parametrize(
    ("counts", "published"),
    [
        ((14, 5, 0, 22), 0.011),  # Altman et al., Statistics with Confidence (2000), table 6.2
        ((36, 12, 2, 0), 0.0569),  # Newcombe (1998)
        ((1, 1, 7, 12), -0.507),  # Fagerland, Lydersen, Laake (2014), of Bentur et al. (2009)
    ],
)
def test_the_paired_bound_is_the_published_one(counts: tuple[int, int, int, int], published: float) -> None:
    digits = len(str(published).partition(".")[2])
    assert round(newcombe_interval(*counts)[0], digits) == published


def test_the_paired_bound_by_hand() -> None:
    # 100 problems, 50 right before and 70 after; Wilson's intervals at z = 1.959964: 70 in (0.604154, 0.781051),
    # 50 in (0.403832, 0.596168); ad - bc = 45 * 25 - 25 * 5 = 1000, corrected 950, phi = 950 / sqrt(70 30 50 50)
    phi = 950 / math.sqrt(70 * 30 * 50 * 50)
    down, up = 0.7 - 0.604154, 0.596168 - 0.5
    expected = 0.2 - math.sqrt(down**2 - 2 * phi * down * up + up**2)
    assert newcombe_interval(45, 25, 5, 25)[0] == pytest.approx(expected, abs=2e-6)


counts = st.integers(0, 400)


@given(counts, counts, counts, counts)
def test_the_paired_bound_lies_below_the_gain_and_is_a_difference(a: int, b: int, c: int, d: int) -> None:
    if a + b + c + d == 0:
        with pytest.raises(ValueError, match="no problem"):
            newcombe_interval(a, b, c, d)[0]
        return
    bound = newcombe_interval(a, b, c, d)[0]
    assert -1 - 1e-12 <= bound <= (b - c) / (a + b + c + d) + 1e-12
    assert newcombe_interval(a, b + 1, c, d)[0] > bound - 1e-12 or a + d == 0


def test_a_correlated_pair_has_a_closer_bound_than_the_same_shares_unrelated() -> None:
    assert newcombe_interval(400, 100, 0, 500)[0] > newcombe_interval(200, 300, 200, 300)[0]


def test_the_bound_covers_what_it_says() -> None:
    """Of many samples at most about 2.5 % have a bound above the true gain."""
    draw = random.Random(0)
    shares, n, trials = (0.35, 0.16, 0.06, 0.43), 300, 1500
    above = 0
    for _ in range(trials):
        drawn = draw.choices(range(4), shares, k=n)
        bound = newcombe_interval(*(drawn.count(kind) for kind in range(4)))[0]
        above += bound > shares[1] - shares[2]
    assert 0.01 < above / trials < 0.04


def test_the_t_interval_by_hand_and_against_scipy() -> None:
    # 1..5: mean 3, standard deviation sqrt(2.5), t(4, 97.5 %) = 2.776445
    interval = t_interval([1, 2, 3, 4, 5])
    half = 2.776445 * math.sqrt(2.5) / math.sqrt(5)
    assert interval == pytest.approx((3 - half, 3 + half), abs=1e-6)
    values = [0.3, 0.9, -2.0, 4.4, 0.1, 7.0, 2.5]
    error = scipy.stats.sem(values)
    assert t_interval(values) == pytest.approx(scipy.stats.t.interval(0.95, 6, loc=fmean(values), scale=error))


def test_no_interval_below_five_seeds() -> None:
    assert t_interval([1, 2, 3, 4]) is None
    assert t_interval([2.0] * 5) == (2.0, 2.0)
    value, reason = over_seeds("interval from", [(seed, 1.0) for seed in range(4)])
    assert (value, reason) == (None, "an interval over seeds takes 5 of them, and there are 4")


def test_cells_of_one_seed_are_no_further_seeds() -> None:
    cells = [(0, 1.0), (0, 3.0), (1, 8.0)]
    remark = "3 cells of 2 seeds; those of one seed are averaged first"
    assert over_seeds("mean", cells) == (5.0, remark)
    assert over_seeds("interval to", [(0, float(value)) for value in range(9)])[0] is None
    five = [(seed, float(seed)) for seed in range(5)]
    twice = [(seed, value + shift) for seed, value in five for shift in (-0.5, 0.5)]
    assert over_seeds("interval to", twice)[0] == over_seeds("interval to", five)[0]


def test_the_other_statistics() -> None:
    cells = [(0, 5.0), (1, 5.1), (2, -1.0)]
    assert over_seeds("smallest", cells) == (-1.0, None)
    assert over_seeds("largest", cells) == (5.1, None)
    assert over_seeds("above 5", cells) == ("1 of 3", None)
    for over in ("smallest", "largest", "mean"):
        value = over_seeds(over, [*cells, (3, math.nan)])[0]  # type: ignore[arg-type]
        assert isinstance(value, float)
        assert math.isnan(value)
