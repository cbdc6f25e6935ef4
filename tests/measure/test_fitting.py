"""Non-negative linear fits against known coefficients and scipy's."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import nnls

from scalerlt.measure.fitting import nonnegative_fit, predicted, relative_errors


@settings(max_examples=50, deadline=None)
@given(seed=st.integers(0, 10**6), rows=st.integers(6, 12), absent=st.integers(0, 4))
def test_known_coefficients_come_back(seed: int, rows: int, absent: int) -> None:
    """Of very different sizes, some of them zero, as those of a pass and of a pair are."""
    draw = np.random.default_rng(seed)
    size = 10.0 ** draw.integers(-8, 1, 5)
    shares = np.where(np.arange(5) < absent, 0, draw.uniform(0.5, 2, 5))
    features = draw.uniform(0.1, 1, (rows, 5)) / size
    found = nonnegative_fit(features.tolist(), (features @ (shares * size)).tolist())
    assert np.asarray(found) / size == pytest.approx(shares, rel=1e-6, abs=1e-6)


@settings(max_examples=50, deadline=None)
@given(seed=st.integers(0, 10**6), rows=st.integers(1, 10), columns=st.integers(1, 6))
def test_it_is_the_optimum(seed: int, rows: int, columns: int) -> None:
    draw = np.random.default_rng(seed)
    features, values = draw.uniform(0, 1, (rows, columns)), draw.uniform(0.1, 2, rows)
    found = nonnegative_fit(features.tolist(), values.tolist())
    _, residual = nnls(features / values[:, None], np.ones(rows))
    assert min(found) >= 0
    errors = relative_errors(found, features.tolist(), values.tolist())
    assert sum(error**2 for error in errors) == pytest.approx(residual**2, abs=1e-9)


def test_columns_that_say_the_same_share_nothing() -> None:
    """The first of them is taken, and prediction does not suffer."""
    found = nonnegative_fit([[1, 1, 0], [2, 2, 0], [3, 3, 0]], [2, 4, 6])
    assert found == pytest.approx((2, 0, 0))
    assert predicted(found, (4, 4, 0)) == pytest.approx(8)


@pytest.mark.parametrize("values", [[], [0.0], [-1.0, 2.0]])
def test_values_that_are_not_above_zero_are_refused(values: list[float]) -> None:
    with pytest.raises(ValueError, match="above zero"):
        nonnegative_fit([[1.0]] * len(values), values)
