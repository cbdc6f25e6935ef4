"""What stands for a figure over the seeds of one configuration.

The seeds are the sample. Cells of one seed (other cohorts, other blocks) are no further seeds: they are averaged first.
"""

from collections.abc import Sequence
from statistics import mean
from typing import Literal

from scalerlt.analysis.intervals import SEEDS_FOR_AN_INTERVAL, t_interval
from scalerlt.records.base import Scalar

Over = Literal["median", "mean", "interval from", "interval to", "smallest", "largest", "above 5"]
"""How the cells of a row become one entry: their median; of the seeds the mean, or an end of the 95 % Student t
interval of the mean; the smallest or largest cell; or how many cells are above 5."""
MARGIN = 5.0
"""Points: what a seed's lower bound has to exceed."""


def over_seeds(over: Over, values: Sequence[tuple[Scalar, float]]) -> tuple[float | str | None, str | None]:
    """The entry of (seed, figure) of at least one cell, and what has to be said about it.

    Returns:
        The value, None where there are too few seeds for an interval; and a remark or the reason, if there is one.
    """
    figures = [figure for _, figure in values]
    if over == "smallest":
        return (next((figure for figure in figures if figure != figure), min(figures))), None
    if over == "largest":
        return (next((figure for figure in figures if figure != figure), max(figures))), None
    if over == "above 5":
        return f"{sum(figure > MARGIN for figure in figures)} of {len(figures)}", None
    by_seed: dict[Scalar, list[float]] = {}
    for seed, figure in values:
        by_seed.setdefault(seed, []).append(figure)
    seeds = [mean(found) for found in by_seed.values()]
    several = f"{len(values)} cells of {len(seeds)} seeds; those of one seed are averaged first"
    remark = several if len(seeds) < len(values) else None
    if over == "mean":
        return mean(seeds), remark
    interval = t_interval(seeds)
    if interval is None and len(seeds) >= SEEDS_FOR_AN_INTERVAL:
        return None, "a seed's figure is not finite"
    if interval is None:
        return None, f"an interval over seeds takes {SEEDS_FOR_AN_INTERVAL} of them, and there are {len(seeds)}"
    return interval[0 if over == "interval from" else 1], remark
