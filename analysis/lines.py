"""Lines over numbers: one panel per amount, with a strip below it for what has no number there."""

import math
from collections.abc import Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FixedLocator, MaxNLocator, NullLocator

from scalerlt.analysis.drawing import (
    MARK_COLOR,
    amount_axis,
    color_of,
    draw_spread,
    line_of,
    marker_of,
    new_figure,
    sample,
    tick_text,
    width_of,
)
from scalerlt.analysis.estimates import Estimate
from scalerlt.analysis.figure_spec import LinesFigure
from scalerlt.analysis.layout import Stack, figure_width, label_x, label_y
from scalerlt.analysis.rows import Row, is_number
from scalerlt.analysis.slices import Slice
from scalerlt.analysis.venues import INCHES

SYMBOLS = "x+1|_234*d"
"""For each word that stands where there is no number."""
LANE = 0.12
"""Inches of one series in the strip."""
TICKS = 12
"""So many numbers along the axis, or fewer, are its ticks."""


def number_along(row: Row, axis: str) -> float | None:
    """Where a row stands along the axis; None where it has no number for it."""
    value = row.labels[axis]
    return float(value) if is_number(value) and math.isfinite(value) else None


def has_line(shown: Slice) -> bool:
    """Whether there are two numbers along `x`, which a line takes."""
    return len({number_along(row, shown.spec.x) for row in shown.rows} - {None}) > 1


def draw_lines(shown: Slice, spec: LinesFigure) -> Figure:
    """The estimates over the numbers of `x`, a line per series; a cell without a number has its mark in the strip."""
    stack = Stack(new_figure(INCHES[spec.venue][spec.width]))
    stack.legend([(sample(series), shown.series_text(series)) for series in shown.present()], handlelength=3.0)
    words = dict.fromkeys(place.word for places in shown.places for place in places if place.value is None)
    symbols = {word: SYMBOLS[number % len(SYMBOLS)] for number, word in enumerate(words)}
    for column in range(len(spec.columns)):
        by_series = _by_series(shown, column)
        axes = stack.panel()
        for series, places in by_series.items():
            _line(axes, series, places)
        amount_axis(axes, "y", spec.columns[column].reach, shown.reach(column))
        label_y(axes, shown.header(column))
        parts = [axes]
        lanes = {
            series: places for series, places in by_series.items() if any(p.value is None for p in places.values())
        }
        if lanes:
            parts.append(stack.panel(LANE * len(lanes), gap=0.02))
            _strip(parts[-1], lanes, symbols)
        for part in parts:
            _number_axis(part, sorted({x for places in by_series.values() for x in places}), spec)
        if lanes:
            axes.tick_params(axis="x", labelbottom=False)
    label_x(parts[-1], spec.header or spec.x)
    if symbols:
        marks = [(_mark(symbol), word) for word, symbol in symbols.items()]
        stack.legend(marks, "no number", below=True, handlelength=1.0)
    return stack.arrange()


def _by_series(shown: Slice, column: int) -> dict[int, dict[float, Estimate]]:
    """Of each series the places along `x`."""
    found: dict[int, dict[float, Estimate]] = {series: {} for series in shown.present()}
    for row, places in zip(shown.rows, shown.places, strict=True):
        x = number_along(row, shown.spec.x)
        if x is not None:
            found[shown.series_of(row)][x] = places[column]
    return {series: dict(sorted(places.items())) for series, places in found.items() if places}


def _line(axes: Axes, series: int, places: dict[float, Estimate]) -> None:
    """The line of a series, which does not run across a place without a number."""
    heights = [math.nan if place.value is None else place.value for place in places.values()]
    color = color_of(series)
    axes.plot(
        list(places),
        heights,
        color=color,
        linestyle=line_of(series),
        **marker_of(series),
        markersize=4,
        markeredgecolor="black",
        markeredgewidth=0.4,
        zorder=3,
    )
    for x, place in places.items():
        if place.value is not None:
            draw_spread(axes, x, place, color=color)


def _strip(axes: Axes, lanes: dict[int, dict[float, Estimate]], symbols: dict[str, str]) -> None:
    """A lane per series that has no number somewhere, drawn as its line is."""
    for lane, (series, places) in enumerate(lanes.items()):
        axes.axhline(lane, color=color_of(series), linestyle=line_of(series), linewidth=0.7, zorder=1)
        for x, place in places.items():
            if place.value is None:
                axes.plot(x, lane, marker=symbols[place.word], **_LOOK, zorder=3)
    axes.set_ylim(len(lanes) - 0.4, -0.6)
    axes.set_yticks([])
    axes.spines["left"].set_visible(False)


_LOOK: dict[str, Any] = {"linestyle": "", "markersize": 4.5, "color": MARK_COLOR, "markeredgewidth": 1.0}


def _mark(symbol: str) -> Line2D:
    return Line2D([], [], marker=symbol, **_LOOK)


def _number_axis(axes: Axes, numbers: Sequence[float], spec: LinesFigure) -> None:
    """An axis whose ticks are the numbers themselves, as far as their names fit beside each other."""
    low, high = numbers[0], numbers[-1]
    logarithmic = spec.reach == "log" and low > 0 and high / low >= 10
    if logarithmic:
        axes.set_xscale("log")
        margin = (high / low) ** 0.05
        axes.set_xlim(low / margin, high * margin)
    else:
        low = min(low, 0.0) if spec.reach == "zero" else low
        margin = 0.05 * (high - low) or 0.5
        axes.set_xlim(low - margin, high + margin)
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(lambda value, _: tick_text(value))
    if len(numbers) <= TICKS or logarithmic:
        axes.xaxis.set_major_locator(FixedLocator(_fitting(axes, numbers)))
    else:
        axes.xaxis.set_major_locator(MaxNLocator(5, steps=[1, 2, 2.5, 5, 10]))


def _fitting(axes: Axes, numbers: Sequence[float]) -> list[float]:
    """The numbers whose names do not run into each other, from the left."""
    room = 0.75 * figure_width(axes)
    low, high = axes.transData.transform([(axes.get_xlim()[0], 1), (axes.get_xlim()[1], 1)])[:, 0]
    kept: list[float] = []
    end = -math.inf
    for number in numbers:
        place = room * (axes.transData.transform((number, 1))[0] - low) / (high - low)
        half = width_of(tick_text(number)) / 2
        if place - half >= end + 0.04:
            kept.append(number)
            end = place + half
    return kept
