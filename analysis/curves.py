"""Curves over training: a thin line per seed, and from five seeds on their mean with its interval.

Colours, line styles and markers tell the configurations apart, in grey too.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FixedLocator, MaxNLocator, NullLocator, StrMethodFormatter

from scalerlt.analysis.drawing import COLUMN_WIDTH, MARKERS, color_of, line_of, new_figure, number_axis
from scalerlt.analysis.intervals import t_interval
from scalerlt.analysis.marks import MEASURED
from scalerlt.analysis.reading import CellResult
from scalerlt.analysis.rows import is_number
from scalerlt.analysis.series import kind_of
from scalerlt.analysis.training_specs import Panel, TrainingFigure

FEW_POINTS = 12
"""So many points of a line, or fewer, are marked."""
LEGEND_LINE = 0.15
"""Height in inches of a line of the legend."""


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
    """The rows that have both numbers, finite, in the order of the series."""
    points = []
    for row in cell.series:
        step, across, up = row["step"], row.get(x), row.get(panel.column)
        if kind_of(row) == panel.kind and isinstance(step, int) and is_number(across) and is_number(up):
            points.append(Point(step, float(across), float(up)))
    return [point for point in points if math.isfinite(point.x) and math.isfinite(point.y)]


def has_points(panel: Panel, x: str, configurations: Sequence[Configuration]) -> bool:
    """Whether any cell has something to draw in the panel."""
    return any(points_of(cell, panel, x) for one in configurations for cell in one.cells)


def draw_curves(
    spec: TrainingFigure, panels: Sequence[Panel], title: str, configurations: Sequence[Configuration]
) -> Figure:
    """One panel above the other over a common x, with a legend that names every configuration."""
    figure = new_figure(COLUMN_WIDTH, 0.5 + 1.4 * len(panels) + LEGEND_LINE * (len(configurations) + 1))
    grid: list[Axes] = list(figure.subplots(len(panels), 1, sharex=True, squeeze=False)[:, 0])
    for axes, panel in zip(grid, panels, strict=True):
        for one in configurations:
            _draw_configuration(axes, one, panel, spec.x[0])
        axes.set_ylabel(panel.header)
        _value_axis(axes, panel)
    number_axis(grid[-1], "x")
    grid[-1].set_xlabel(spec.x[1])
    handles = [
        Line2D([], [], color=color_of(one.index), linestyle=line_of(one.index), marker=_marker(one), label=one.label)
        for one in configurations
    ]
    figure.legend(
        handles=handles, loc="outside upper left", title=title, title_fontsize=7, alignment="left", handlelength=3.4
    )
    return figure


def _draw_configuration(axes: Axes, one: Configuration, panel: Panel, x: str) -> None:
    curves = [(cell, points) for cell in one.cells if (points := points_of(cell, panel, x))]
    mean = _mean_curve([(cell, points) for cell, points in curves if cell.state == MEASURED])
    thin: dict[str, Any] = {"linewidth": 0.5, "alpha": 0.6} if mean else {"linewidth": 0.9}
    look: dict[str, Any] = {"color": color_of(one.index), "linestyle": line_of(one.index)}
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
    few = {"marker": _marker(one), "markersize": 3, "markeredgecolor": "black", "markeredgewidth": 0.3}
    return few if len(points) <= FEW_POINTS else {}


def _marker(one: Configuration) -> str:
    return MARKERS[one.index % len(MARKERS)]


def _value_axis(axes: Axes, panel: Panel) -> None:
    values = [float(value) for line in axes.lines for value in np.asarray(line.get_ydata())]
    positive = [value for value in values if value > 0]
    decades = math.log10(max(positive) / min(positive)) if positive else 0.0
    match panel.scale:
        case "fit":
            _fitted_axis(axes)
        case "log" if decades >= 1:
            _logarithmic_axis(axes, min(positive), max(positive), zeros=min(values) <= 0)
        case _:
            number_axis(axes, "y")
            axes.set_ylim(bottom=min(-0.03 * axes.get_ylim()[1], min(values)))  # a line at zero is not behind the axis
            axes.yaxis.set_major_formatter(_short)


def _fitted_axis(axes: Axes) -> None:
    """An axis over what is drawn, bands included."""
    low, high = axes.dataLim.y0, axes.dataLim.y1
    margin = 0.08 * (high - low) or 0.05
    axes.yaxis.set_major_locator(MaxNLocator(5, steps=[1, 2, 2.5, 5, 10]))
    axes.yaxis.set_major_formatter(StrMethodFormatter("{x:,.10g}"))
    axes.grid(axis="y")
    floor = -0.03 * (high + margin) if low >= 0 else -math.inf  # what cannot be negative gets no axis below zero
    axes.set_ylim(max(low - margin, floor), high + margin)


def _logarithmic_axis(axes: Axes, smallest: float, largest: float, *, zeros: bool) -> None:
    """Whole powers of ten; where there are zeros, they lie below the first of them."""
    low, high = math.floor(math.log10(smallest)), math.ceil(math.log10(largest))
    if zeros:
        axes.set_yscale("symlog", linthresh=10.0**low, linscale=0.6)
    else:
        axes.set_yscale("log")
    powers = [10.0**power for power in range(low, high + 1, math.ceil((high - low + 1) / 5))]
    axes.yaxis.set_major_locator(FixedLocator([0.0, *powers] if zeros else powers))
    axes.yaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_major_formatter(lambda value, _: f"1e{round(math.log10(value))}" if value > 0 else "0")
    axes.set_ylim(-0.3 * 10.0**low if zeros else 10.0**low, 10.0**high)
    axes.grid(axis="y")


def _short(value: float, _: object) -> str:
    """0.5, 2e-7."""
    mantissa, _, exponent = f"{value:g}".partition("e")
    return f"{mantissa}e{int(exponent)}" if exponent else mantissa
