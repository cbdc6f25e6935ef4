"""Bars over an axis: one panel per amount, in several lines where one would make the bars too thin."""

import math

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from scalerlt.analysis.drawing import MARK_COLOR, SMALL, amount_axis, area_of, draw_spread, new_figure, patch, width_of
from scalerlt.analysis.estimates import Estimate
from scalerlt.analysis.layout import PANEL, Stack, fit_names, label_x, label_y
from scalerlt.analysis.slices import Slice
from scalerlt.analysis.venues import INCHES

SLOT = 0.125
"""Inches of a bar's place, in which an upright word stands."""
BESIDE = 0.65
"""Inches that an axis of amounts takes of a figure's width, as far as that is known before it is drawn."""


def draw_bars(shown: Slice) -> Figure:
    """The estimates as bars, grouped by the values along `x`; a place without a number has its word."""
    categories, present = shown.categories, shown.present()
    width = INCHES[shown.spec.venue][shown.spec.width]
    if len(categories) > _fitting(width, len(present)):
        width = INCHES[shown.spec.venue]["page"]
    lines = math.ceil(len(categories) / max(1, _fitting(width, len(present))))
    per_line = math.ceil(len(categories) / lines)
    stack = Stack(new_figure(width))
    stack.legend([(patch(series), shown.series_text(series)) for series in present])
    names = fit_names(categories, (width - BESIDE) / per_line)
    for first in range(0, len(categories), per_line):
        part = categories[first : first + per_line]
        for column in range(len(shown.spec.columns)):
            axes = _panel(stack, shown, column, part, per_line)
        axes.set_xticks(range(len(part)), names.labels[first : first + per_line], rotation=names.rotation)
    label_x(axes, ", ".join(shown.along))
    stack.keys(names.keys)
    return stack.arrange()


def _fitting(width: float, series: int) -> int:
    """How many groups of bars fit beside each other."""
    return int((width - BESIDE) / ((series + 0.5) * SLOT))


def _panel(stack: Stack, shown: Slice, column: int, categories: list[tuple[str, ...]], per_line: int) -> Axes:
    present = shown.present()
    width = 1 / (len(present) + 0.5)
    words = [width_of(word, SMALL) for places in shown.places if (word := _word(places[column]))]
    axes = stack.panel(max(PANEL, 0.25 + max(words, default=0.0)))
    for row, places in zip(shown.rows, shown.places, strict=True):
        if shown.category(row) in categories:
            series = shown.series_of(row)
            offset = (present.index(series) - (len(present) - 1) / 2) * width
            _bar(axes, categories.index(shown.category(row)) + offset, width, places[column], series)
    amount_axis(axes, "y", shown.spec.columns[column].reach, shown.reach(column))
    axes.set_xlim(-0.55, per_line - 0.45)
    axes.set_xticks([])
    axes.tick_params(axis="x", length=0)
    label_y(axes, shown.header(column), stack.heights[-1])
    return axes


def _bar(axes: Axes, position: float, width: float, place: Estimate, series: int) -> None:
    if place.value is not None:
        axes.bar(position, place.value, width * 0.9, **area_of(series), linewidth=0.4)
        draw_spread(axes, position, place)
    word = _word(place)
    if word:
        _write(axes, position, word, dashed=place.value is None)


def _word(place: Estimate) -> str:
    """What is written at the foot of a place: why it has no number; how many of its cohorts have; or a measured 0."""
    if place.value is None:
        return place.word
    if len(place.cohorts) < place.planned:
        return f"{len(place.cohorts)} of {place.planned}"
    return "0" if place.value == 0 else ""


def _write(axes: Axes, position: float, word: str, *, dashed: bool) -> None:
    box = {"boxstyle": "square,pad=0.2", "facecolor": "white", "edgecolor": MARK_COLOR, "linewidth": 0.6}
    axes.annotate(
        word,
        (position, 0),
        xycoords=("data", "axes fraction"),
        xytext=(0, 3),
        textcoords="offset points",
        rotation=90,
        ha="center",
        va="bottom",
        fontsize=SMALL,
        color=MARK_COLOR,
        bbox={**box, "linestyle": (0, (3, 2)) if dashed else "-"},
        zorder=6,
    )
