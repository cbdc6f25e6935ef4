"""Linear cost models: non-negative coefficients from measured values."""

from collections.abc import Sequence
from itertools import combinations

import numpy as np


def nonnegative_fit(features: Sequence[Sequence[float]], values: Sequence[float]) -> tuple[float, ...]:
    """The coefficients c >= 0 for which the sum of the squared relative errors of `features @ c` is least.

    The optimum is the unconstrained least-squares solution on the features whose coefficients are above zero, so every
    set of features is tried: exact, and quick for the few that a cost model has. Of sets that serve equally well the
    smallest is taken.

    Args:
        features: of each measurement the same number, at most a dozen.
        values: measured, above zero; at least one.
    """
    measured = np.asarray(values, dtype=np.float64)
    if not len(measured) or not (measured > 0).all():
        raise ValueError("a cost model is fitted to measured values above zero, at least one")
    rows = np.asarray(features, dtype=np.float64) / measured[:, None]
    used = [int(column) for column in np.flatnonzero(rows.any(axis=0))]
    scale = np.abs(rows).max(axis=0)
    best, least = np.zeros(rows.shape[1]), float(len(measured))
    for size in range(1, min(len(used), len(measured)) + 1):
        for columns in map(list, combinations(used, size)):
            scaled = rows[:, columns] / scale[columns]
            found = np.linalg.lstsq(scaled, np.ones(len(measured)), rcond=None)[0]
            left = float(((scaled @ found - 1) ** 2).sum())
            if (found >= 0).all() and left < least * (1 - 1e-9) - 1e-15:
                best, least = np.zeros(rows.shape[1]), left
                best[columns] = found / scale[columns]
    return tuple(float(coefficient) for coefficient in best)


def predicted(coefficients: Sequence[float], features: Sequence[float]) -> float:
    """What a cost model says of a piece of work."""
    return sum(coefficient * feature for coefficient, feature in zip(coefficients, features, strict=True))


def relative_errors(
    coefficients: Sequence[float], features: Sequence[Sequence[float]], values: Sequence[float]
) -> list[float]:
    """Predicted less measured, over measured."""
    return [predicted(coefficients, row) / value - 1 for row, value in zip(features, values, strict=True)]
