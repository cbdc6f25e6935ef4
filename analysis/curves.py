"""Curves over training: a thin line per seed, and from five seeds on their mean with its interval.

Colours, line styles and markers tell the configurations apart, in grey too.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from scalerlt.analysis.drawing import amount_axis, color_of, line_of, marker_of, new_figure, sample
from scalerlt.analysis.estimates import DRAWABLE
from scalerlt.analysis.figure_spec import CurvesFigure, Panel
from scalerlt.analysis.intervals import t_interval
from scalerlt.analysis.layout import Stack, label_x, label_y
from scalerlt.analysis.marks import MEASURED
from scalerlt.analysis.reading import CellResult
from scalerlt.analysis.rows import is_number
from scalerlt.analysis.series import kind_of
from scalerlt.analysis.venues import INCHES

FEW_POINTS = 12
"""So many points of a line, or fewer, are marked."""


@dataclass(frozen=True)
class Configuration:
    """Cells that differ in nothing but seed or cohort.

    Attributes:
        label: what the legend calls it.
        index: its colour's place.
    """

    label: str
    index: int
    cells: list[CellResult]


@dataclass(frozen=True)
class Point:
    """One row of a series in a panel."""

    step: int
    x: float
    y: float


def points_of(cell: CellResult, panel: Panel, x: str) -> list[Point]:
    """The rows that have both numbers, finite and not beyond all measure, in the order of the series."""
    points = []
    for row in cell.series:
        step, across, up = row["step"], row.get(x), row.get(panel.column)
        if kind_of(row) == panel.kind and isinstance(step, int) and is_number(across) and is_number(up):
            points += [Point(step, float(across), float(up))] if max(abs(across), abs(up)) <= DRAWABLE else []
    return [point for point in points if not math.isnan(point.x) and not math.isnan(point.y)]


def has_points(panel: Panel, x: str, configurations: Sequence[Configuration]) -> bool:
    """Whether any cell has something to draw in the panel."""
    return any(points_of(cell, panel, x) for one in configurations for cell in one.cells)


def draw_curves(
    spec: CurvesFigure, panels: Sequence[Panel], title: str, configurations: Sequence[Configuration]
) -> Figure:
    """One panel above the other over a common x, with a legend that names every configuration."""
    stack = Stack(new_figure(INCHES[spec.venue][spec.width]))
    stack.legend([(sample(one.index), one.label) for one in configurations], title, handlelength=3.4)
    drawn: list[Point] = []
    for panel in panels:
        axes = stack.panel()
        points = [point for one in configurations for point in _draw_configuration(axes, one, panel, spec.x.column)]
        amount_axis(axes, "y", panel.reach, [point.y for point in points])
        if panel.reach != "fit" and axes.get_yscale() == "linear":
            low, high = axes.get_ylim()
            axes.set_ylim(min(low, -0.03 * high), high)  # a line at zero is not behind the axis
        label_y(axes, panel.header)
        drawn += points
    for axes in stack.panels:
        amount_axis(axes, "x", "zero", [point.x for point in drawn])
        axes.tick_params(axis="x", labelbottom=axes is stack.panels[-1])
    label_x(stack.panels[-1], spec.x.header)
    return stack.arrange()


def _draw_configuration(axes: Axes, one: Configuration, panel: Panel, x: str) -> list[Point]:
    """Draw the seeds, and their mean where there is one. Returns the points that were drawn, ends of bands too."""
    curves = [(cell, points) for cell in one.cells if (points := points_of(cell, panel, x))]
    mean = _mean_curve([(cell, points) for cell, points in curves if cell.state == MEASURED])
    thin: dict[str, Any] = {"linewidth": 0.5, "alpha": 0.6} if mean else {"linewidth": 0.9}
    look: dict[str, Any] = {"color": color_of(one.index), "linestyle": line_of(one.index)}
    drawn = [point for _, points in curves for point in points]
    for cell, points in curves:
        across, up = [point.x for point in points], [point.y for point in points]
        axes.plot(across, up, **look, **thin, **(_marks(one, points) if not mean else {}))
        if cell.state != MEASURED:
            axes.plot(across[-1], up[-1], marker="x", markersize=4, color=look["color"], zorder=4)
    if mean:
        places, low, high = zip(*mean, strict=True)
        across = [point.x for point in places]
        axes.fill_between(across, low, high, color=look["color"], alpha=0.18, linewidth=0)
        axes.plot(across, [point.y for point in places], **look, **_marks(one, places), linewidth=1.4, zorder=3)
        drawn += [Point(point.step, point.x, end) for point, *ends in mean for end in ends]
    return drawn


def _mean_curve(curves: Sequence[tuple[CellResult, list[Point]]]) -> list[tuple[Point, float, float]]:
    """At each step that enough seeds have: the mean over seeds, and the ends of its interval."""
    at: dict[int, dict[object, list[Point]]] = {}
    for cell, points in curves:
        for point in points:
            at.setdefault(point.step, {}).setdefault(cell.axes.get("seed"), []).append(point)
    mean = []
    for step in sorted(at):
        seeds = [(fmean(p.x for p in of_seed), fmean(p.y for p in of_seed)) for of_seed in at[step].values()]
        interval = t_interval([y for _, y in seeds])
        if interval is not None:
            mean.append((Point(step, fmean(x for x, _ in seeds), fmean(y for _, y in seeds)), *interval))
    return mean


def _marks(one: Configuration, points: Sequence[Point]) -> dict[str, Any]:
    few = {**marker_of(one.index), "markersize": 3, "markeredgecolor": "black", "markeredgewidth": 0.3}
    return few if len(points) <= FEW_POINTS else {}
