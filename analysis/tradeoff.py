"""One amount against another: what each configuration costs and buys, and the front that none surpasses."""

import itertools
from collections.abc import Sequence
from functools import partial
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from scalerlt.analysis.drawing import (
    COLORS,
    EDGE,
    FILLS,
    MARKERS,
    amount_axis,
    color_of,
    draw_spread,
    line_of,
    new_figure,
    sample,
)
from scalerlt.analysis.figure_spec import TradeoffFigure
from scalerlt.analysis.gates import GateVerdict
from scalerlt.analysis.layout import Stack, label_x, label_y
from scalerlt.analysis.lines import has_line
from scalerlt.analysis.slices import Slice
from scalerlt.analysis.venues import INCHES

SQUARE = 1.9
"""Inches of the panel's height."""
FRONT: dict[str, Any] = {"color": "#c8c8c8", "linewidth": 3.5, "solid_capstyle": "round", "solid_joinstyle": "round"}
Point = tuple[float, float]


def front(points: Sequence[Point], higher: tuple[bool, bool] = (False, False)) -> list[Point]:
    """The points that no other is at least as good as in both amounts and better in one, from left to right.

    Args:
        higher: for each amount, whether more of it is better.
    """
    signs = [-1 if up else 1 for up in higher]
    best: list[Point] = []
    reached = float("inf")
    for point in sorted(set(points), key=lambda point: (signs[0] * point[0], signs[1] * point[1])):
        if signs[1] * point[1] < reached:
            best.append(point)
            reached = signs[1] * point[1]
    return sorted(best)


def draw_tradeoff(shown: Slice, spec: TradeoffFigure) -> Figure:
    """The second amount over the first: a marker per value along `x`, a colour per series, and the front.

    A thin line joins the points of a series where their values along `x` are numbers, which have an order, and where
    there are more series than colours.
    """
    stack = Stack(new_figure(INCHES[spec.venue][spec.width]))
    shapes = {category: _shape(number) for number, category in enumerate(shown.categories)}
    axes = stack.panel(SQUARE)
    lines: dict[int, list[Point]] = {}
    good: list[Point] = []
    missing: list[tuple[Line2D, str]] = []
    verdicts: dict[str, None] = {}
    for row, (across, up), verdict in zip(shown.rows, shown.places, shown.verdicts, strict=True):
        series, shape = shown.series_of(row), shapes[shown.category(row)]
        if across.value is None or up.value is None:
            word = across.word if across.value is None else up.word
            missing.append((_marker(shape, color_of(series)), word))
            continue
        point = (across.value, up.value)
        lines.setdefault(series, []).append(point)
        draw_spread(axes, across.value, up)
        draw_spread(axes, up.value, across, level=True)
        axes.plot(*point, **shape, **_FILLED, color=color_of(series), zorder=4.5)
        if verdict and verdict != GateVerdict.PASS:
            verdicts.setdefault(verdict)
            axes.plot(*point, **_verdict(verdict), zorder=7)
        else:
            good.append(point)
    joined = has_line(shown) or len(shown.present()) > len(COLORS)
    for series, points in lines.items() if joined else ():
        axes.plot(*zip(*points, strict=True), color=color_of(series), linestyle=line_of(series), zorder=2)
    _draw_front(axes, front(good, (spec.columns[0].better == "higher", spec.columns[1].better == "higher")), spec)
    for which, column in (("x", 0), ("y", 1)):
        amount_axis(axes, which, spec.columns[column].reach, shown.reach(column))  # type: ignore[arg-type]
    label_x(axes, shown.header(0))
    label_y(axes, shown.header(1), SQUARE)
    key = partial(sample, marker=False) if joined else _color
    stack.legend([(key(series), shown.series_text(series)) for series in shown.present()])
    stack.legend([(_marker(shape, "#888888"), ", ".join(category)) for category, shape in shapes.items()])
    marks = [(Line2D([], [], **_verdict(verdict)), f"gate {verdict}") for verdict in verdicts]
    if good:
        marks.insert(0, (Line2D([], [], **FRONT), "front" if not spec.gate else "front (gate PASS)"))
    if marks:
        stack.legend(marks)
    if missing:
        stack.legend(missing, "no number", below=True, handlelength=1.0)
    return stack.arrange()


def _draw_front(axes: Axes, points: list[Point], spec: TradeoffFigure) -> None:
    """The border of what the front's points are at least as good as: level and upright, never better than they are."""
    corners: list[Point] = []
    for one, following in itertools.pairwise(points):
        corner = (following[0], one[1]) if spec.columns[0].better == "lower" else (one[0], following[1])
        corners += [one, corner]
    axes.plot(*zip(*[*corners, points[-1]], strict=True), **FRONT, zorder=1) if points else None


_FILLED: dict[str, Any] = {"linestyle": "", "markersize": 5.5, **EDGE}


def _shape(number: int) -> dict[str, Any]:
    return {"marker": MARKERS[number % len(MARKERS)], "fillstyle": FILLS[number // len(MARKERS) % len(FILLS)]}


def _marker(shape: dict[str, Any], color: str) -> Line2D:
    return Line2D([], [], **shape, **_FILLED, color=color)


def _color(series: int) -> Line2D:
    return Line2D([], [], marker="s", linestyle="", markersize=7, color=color_of(series))


def _verdict(verdict: str) -> dict[str, Any]:
    """A cross over a FAIL, a ring around what is not resolved."""
    look: dict[str, Any] = {"linestyle": "", "color": "black"}
    if verdict == GateVerdict.FAIL:
        return {**look, "marker": "x", "markersize": 7, "markeredgewidth": 1.2}
    return {**look, "marker": "o", "markersize": 9, "markerfacecolor": "none", "markeredgewidth": 0.7}
