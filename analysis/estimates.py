"""What a figure shows of one configuration: an estimate over its cohorts, with its interval or all of its points."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, median

from scalerlt.analysis.figure_spec import FigureEstimator
from scalerlt.analysis.formatting import Scale, format_number
from scalerlt.analysis.intervals import t_interval
from scalerlt.analysis.marks import MEASURED
from scalerlt.analysis.reading import CellResult
from scalerlt.analysis.rows import cohort_of, entry, has_number, is_number

DRAWABLE = 1e100
"""Amounts beyond this are written as words: an axis that reached them would show nothing else."""


@dataclass(frozen=True)
class Estimate:
    """One place of a figure.

    Attributes:
        value: what is drawn; None where there is nothing that can be.
        word: what stands there instead: the states of the cells, or a measured figure that cannot be drawn.
        interval: the 95 % Student t interval over the cohorts, from five cohorts on.
        cohorts: the figure of each cohort, its blocks averaged.
        repeats: smallest and largest repeat in all cohorts, where there are several. No interval.
        planned: number of cohorts planned.
    """

    value: float | None
    word: str
    interval: tuple[float, float] | None
    cohorts: tuple[float, ...]
    repeats: tuple[float, float] | None
    planned: int

    def scaled(self, scale: Scale) -> "Estimate":
        """The same in another unit."""
        return Estimate(
            None if self.value is None else scale.apply(self.value),
            self.word,
            None if self.interval is None else _both(scale, self.interval),
            tuple(map(scale.apply, self.cohorts)),
            None if self.repeats is None else _both(scale, self.repeats),
            self.planned,
        )

    def reach(self) -> list[float]:
        """All amounts that are drawn here."""
        if self.value is None:
            return []
        if self.interval is not None:
            return [self.value, *self.interval]
        return [self.value, *self.cohorts, *(self.repeats or ())]


def estimate(cells: Sequence[CellResult], metric: str, estimator: FigureEstimator) -> Estimate:
    """What stands for a metric of one configuration's cells."""
    blocks: dict[str, list[float]] = {}
    repeats: list[float] = []
    for cell in cells:
        if not has_number(cell, metric) or not is_number((figure := cell.metrics[metric]).value):
            continue
        blocks.setdefault(cohort_of(cell), []).append(_float(figure.value))
        if figure.spread is not None and (figure.n or 1) > 1:
            repeats += [figure.spread.minimum, figure.spread.maximum]
    planned = len({cohort_of(cell) for cell in cells})
    if not blocks:
        place = entry(cells, metric)
        said = place.state if place.value is None else str(place.value)
        return Estimate(None, said.replace("_", " "), None, (), None, planned)
    cohorts = tuple(_average(blocks[cohort], estimator) for cohort in sorted(blocks))
    value = _average(cohorts, estimator)
    if not -DRAWABLE <= value <= DRAWABLE:
        return Estimate(None, format_number(value), None, cohorts, None, planned)
    ends = (min(repeats), max(repeats)) if repeats else None
    if ends is not None and max(map(abs, ends)) > DRAWABLE:
        ends = None
    return Estimate(value, MEASURED, _interval(cohorts, estimator), cohorts, ends, planned)


def _average(values: Sequence[float], estimator: FigureEstimator) -> float:
    """NaN if one of them is; a geometric mean of figures that are not all positive is 0, its limit, or NaN."""
    if any(map(math.isnan, values)):
        return math.nan
    if estimator == "median":
        return float(median(values))
    if (farthest := max(values, key=abs)) and not -DRAWABLE <= farthest <= DRAWABLE:
        return farthest
    if estimator == "mean":
        return fmean(values)
    if min(values) <= 0:
        return 0.0 if min(values) == 0 else math.nan
    return math.exp(fmean(map(math.log, values))) if len(set(values)) > 1 else values[0]


def _interval(cohorts: Sequence[float], estimator: FigureEstimator) -> tuple[float, float] | None:
    if estimator == "mean":
        return t_interval(cohorts)
    if estimator == "geometric_mean" and min(cohorts) > 0:
        logarithms = t_interval([math.log(value) for value in cohorts])
        return None if logarithms is None else (_power(logarithms[0]), _power(logarithms[1]))
    return None


def _power(logarithm: float) -> float:
    return math.exp(min(max(logarithm, math.log(1 / DRAWABLE)), math.log(DRAWABLE)))


def _float(value: float) -> float:
    try:
        return float(value)
    except OverflowError:  # an integer beyond the largest float
        return math.copysign(math.inf, value)


def _both(scale: Scale, ends: tuple[float, float]) -> tuple[float, float]:
    return scale.apply(ends[0]), scale.apply(ends[1])
