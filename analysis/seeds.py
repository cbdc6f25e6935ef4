"""What stands for a figure over the seeds of one configuration.

The seeds are the sample. Cells of one seed (other cohorts, other blocks) are no further seeds: they are averaged first.
"""

import math
from collections.abc import Sequence
from statistics import mean, median
from typing import Literal

from scalerlt.analysis.intervals import SEEDS_FOR_AN_INTERVAL, t_interval
from scalerlt.records.base import Scalar

Over = Literal["median", "mean", "interval from", "interval to", "smallest", "largest", "above 5"]
"""How the seeds become one entry: their median, their mean, or an end of its 95 % Student t interval; the smallest or
largest; or how many are above 5."""
MARGIN = 5.0
"""Points: what a seed's lower bound has to exceed."""


def over_seeds(over: Over, values: Sequence[tuple[Scalar, float]]) -> tuple[float | str | None, str | None]:
    """The entry of (seed, figure) of at least one cell, and what has to be said about it. NaN if a figure is NaN.

    Returns:
        The value, None where there are too few seeds for an interval; and a remark or the reason, if there is one.
    """
    seeds = averaged(values)
    several = f"{len(values)} cells of {len(seeds)} seeds; those of one seed are averaged first"
    remark = several if len(seeds) < len(values) else None
    if over == "above 5":
        return f"{sum(figure > MARGIN for figure in seeds)} of {len(seeds)}", remark
    if over in ("median", "smallest", "largest"):
        if any(map(math.isnan, seeds)):
            return math.nan, remark
        return _median(seeds) if over == "median" else min(seeds) if over == "smallest" else max(seeds), remark
    if over == "mean":
        return mean(seeds), remark
    interval = t_interval(seeds)
    if interval is None and len(seeds) >= SEEDS_FOR_AN_INTERVAL:
        return None, "a seed's figure is not finite"
    if interval is None:
        return None, f"an interval over seeds takes {SEEDS_FOR_AN_INTERVAL} of them, and there are {len(seeds)}"
    return interval[0 if over == "interval from" else 1], remark


def averaged(values: Sequence[tuple[Scalar, float]]) -> list[float]:
    """One figure per seed (or other draw), of (draw, figure) of each cell."""
    draws: dict[Scalar, list[float]] = {}
    for draw, figure in values:
        draws.setdefault(draw, []).append(figure)
    return [found[0] if len(found) == 1 else mean(found) for found in draws.values()]


def _median(figures: Sequence[float]) -> float:
    """A whole number of whole numbers where the two in the middle agree."""
    middle = median(figures)
    return int(middle) if all(isinstance(figure, int) for figure in figures) and middle == int(middle) else middle
