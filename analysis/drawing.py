"""How a figure is drawn: bars over an axis, or one figure against another.

Colours are safe for the colour-blind and differ in lightness; hatches, line styles and markers tell the series apart in
grey. A cell without a number keeps its place, marked with its state. Thin lines are the range of the repeats.
"""

import itertools
import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal

import matplotlib.style
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import MaxNLocator, StrMethodFormatter

from scalerlt.analysis.formatting import Scale, format_number
from scalerlt.analysis.rows import Entry, Row, is_number
from scalerlt.analysis.specs import FigureSpec
from scalerlt.analysis.tables import label_text
from scalerlt.records.base import Scalar

COLUMN_WIDTH, PAGE_WIDTH = 3.35, 6.9
"""Widths in inches of one column and of the text of a two-column page."""
BARS_IN_A_COLUMN = 16

STYLE: dict[str, object] = {
    "font.family": "DejaVu Sans",
    "font.size": 7,
    "axes.labelsize": 7,
    "axes.linewidth": 0.6,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.axisbelow": True,
    "grid.linewidth": 0.4,
    "grid.color": "#d0d0d0",
    "xtick.labelsize": 7,
    "ytick.labelsize": 6.5,
    "xtick.major.width": 0.6,
    "ytick.major.width": 0.6,
    "xtick.major.size": 2.5,
    "ytick.major.size": 2.5,
    "legend.fontsize": 7,
    "legend.frameon": False,
    "hatch.linewidth": 0.6,
    "lines.linewidth": 0.9,
    "lines.markersize": 5,
    "pdf.fonttype": 42,
    "savefig.dpi": 300,
    "text.parse_math": False,
}
COLORS = ["#004488", "#ddaa33", "#bb5566", "#9fd3c7", "#555555"]
HATCHES = ["", "////", "....", "xxxx", "\\\\\\\\"]
LINES = ["-", "--", ":", "-.", (0, (5, 1, 1, 1, 1, 1))]
"""Of each series; its lightness differs from that of the next."""
MARKERS = "os^Dv<>P"
MARK_COLOR = "#404040"


@contextmanager
def fixed_style() -> Iterator[None]:
    """Matplotlib's defaults and ours, whatever the user's own configuration says."""
    with matplotlib.style.context(["default", STYLE]):
        yield


@dataclass(frozen=True)
class Drawing:
    """What one figure shows: its rows, and for each row the entry of each column.

    Attributes:
        along: the axes along the figure's `x`.
        series: all series of the report, each with the colour of its place here.
        scales: the unit of each column.
    """

    spec: FigureSpec
    along: list[str]
    series: list[Scalar]
    scales: list[Scale]
    rows: list[Row]
    places: list[list[Entry]]

    @property
    def categories(self) -> list[str]:
        """The values along the figure's `x`, in the order of the rows."""
        return list(dict.fromkeys(self.category(row) for row in self.rows))

    def category(self, row: Row) -> str:
        """A row's values along the figure's `x`."""
        return "\n".join(label_text(row.labels[axis]) for axis in self.along)

    def present(self) -> list[int]:
        """The series, by their place in `series`, that have a row here."""
        return sorted({self.series_of(row) for row in self.rows})

    def series_of(self, row: Row) -> int:
        """The place of a row's series in `series`."""
        return self.series.index(row.labels[self.spec.series])

    def axis_label(self, column: int) -> str:
        """What a column shows, and its unit."""
        unit = self.scales[column].unit
        return self.spec.columns[column].header + (f" ({unit})" if unit else "")


def number(place: Entry) -> float | None:
    """The number that can be drawn: a measured NaN or infinity cannot, and is marked by its word."""
    return place.value if is_number(place.value) and math.isfinite(place.value) else None


def word_of(place: Entry) -> str:
    """What stands for a place that cannot be drawn: its state, or a measured NaN or infinity."""
    return format_number(place.value) if is_number(place.value) else place.state.replace("_", " ")


def draw_bars(drawing: Drawing) -> Figure:
    """One panel of bars per column, grouped by the values along `x`."""
    categories, present = drawing.categories, drawing.present()
    wide = len(categories) * len(present) > BARS_IN_A_COLUMN
    panels = len(drawing.spec.columns)
    figure = new_figure(PAGE_WIDTH if wide else COLUMN_WIDTH, 0.65 + 1.35 * panels)
    grid: list[Axes] = list(figure.subplots(panels, 1, sharex=True, squeeze=False)[:, 0])
    width = 0.8 / len(present)
    for panel, axes in enumerate(grid):
        for row, places in zip(drawing.rows, drawing.places, strict=True):
            series = drawing.series_of(row)
            offset = (present.index(series) - (len(present) - 1) / 2) * width
            position = categories.index(drawing.category(row)) + offset
            _bar(axes, position, width, places[panel], drawing.scales[panel], series)
        axes.set_ylabel(drawing.axis_label(panel))
        number_axis(axes, "y")
    crowded = sum(len(category) for category in categories) > (90 if wide else 44)
    slant: dict[str, Any] = {"rotation": 30, "ha": "right", "rotation_mode": "anchor"} if crowded else {}
    grid[-1].set_xticks(range(len(categories)), categories, **slant)
    grid[-1].set_xlim(-0.6, len(categories) - 0.4)
    grid[-1].set_xlabel(", ".join(drawing.along))
    for axes in grid:
        axes.tick_params(axis="x", length=0)
    handles = [_patch(series, label_text(drawing.series[series])) for series in present]
    figure.legend(handles=handles, loc="outside upper center", ncols=min(len(handles), 5))
    return figure


def _bar(axes: Axes, position: float, width: float, place: Entry, scale: Scale, series: int) -> None:
    value = number(place)
    if value is None:
        box = {"boxstyle": "square,pad=0.2", "facecolor": "white", "edgecolor": MARK_COLOR, "linestyle": (0, (3, 2))}
        axes.annotate(
            word_of(place),
            (position, 0),
            xycoords=("data", "axes fraction"),
            xytext=(0, 4),
            textcoords="offset points",
            rotation=90,
            ha="center",
            va="bottom",
            fontsize=5.5,
            color=MARK_COLOR,
            bbox={**box, "linewidth": 0.8},
        )
        return
    axes.bar(
        position,
        scale.apply(value),
        width * 0.9,
        color=color_of(series),
        hatch=HATCHES[series % len(HATCHES)],
        edgecolor="black",
        linewidth=0.4,
    )
    if place.minimum is not None and place.maximum is not None:
        low, high = scale.apply(place.minimum), scale.apply(place.maximum)
        axes.vlines(position, low, high, color="black", linewidth=0.8)
        axes.hlines([low, high], position - width / 5, position + width / 5, color="black", linewidth=0.8)


def draw_tradeoff(drawing: Drawing) -> Figure:
    """The second column over the first: a marker per value along `x`, a line per series."""
    shapes = {category: MARKERS[number % len(MARKERS)] for number, category in enumerate(drawing.categories)}
    missing = [
        (row, next(word_of(place) for place in places if number(place) is None))
        for row, places in zip(drawing.rows, drawing.places, strict=True)
        if any(number(place) is None for place in places)
    ]
    figure = new_figure(COLUMN_WIDTH, max(2.5, 1.2 + 0.135 * len(missing)))
    axes = figure.subplots()
    lines: dict[int, list[tuple[float, float]]] = {}
    for row, places in zip(drawing.rows, drawing.places, strict=True):
        across, up = (number(place) for place in places)
        if across is not None and up is not None:
            point = (drawing.scales[0].apply(across), drawing.scales[1].apply(up))
            series = drawing.series_of(row)
            lines.setdefault(series, []).append(point)
            _point(axes, point, places[1], drawing.scales[1], shapes[drawing.category(row)], series)
    for series, points in lines.items():
        axes.plot(*zip(*points, strict=True), color=color_of(series), linestyle=line_of(series), zorder=1.5)
    axes.set_xlabel(drawing.axis_label(0))
    axes.set_ylabel(drawing.axis_label(1))
    number_axis(axes, "x")
    number_axis(axes, "y")
    colors = [
        Line2D([], [], color=color_of(series), linestyle=line_of(series), label=label_text(drawing.series[series]))
        for series in drawing.present()
    ]
    markers = [_marker(shape, category.replace("\n", " "), "#888888") for category, shape in shapes.items()]
    blank = Line2D([], [], linestyle="", label=" ")
    pairs = itertools.zip_longest(colors, markers, fillvalue=blank)  # a legend fills its columns first
    handles = [handle for pair in pairs for handle in pair]
    figure.legend(handles=handles, loc="outside upper left", ncols=len(handles) // 2, columnspacing=1.2)
    if missing:
        marks = [
            _marker(shapes[drawing.category(row)], word, color_of(drawing.series_of(row))) for row, word in missing
        ]
        figure.legend(
            handles=marks,
            loc="outside right center",
            title="no number",
            title_fontsize=6.5,
            fontsize=6,
            handletextpad=0.3,
        )
    return figure


def _point(axes: Axes, point: tuple[float, float], up: Entry, scale: Scale, shape: str, series: int) -> None:
    if up.minimum is not None and up.maximum is not None:
        axes.vlines(point[0], scale.apply(up.minimum), scale.apply(up.maximum), color="black", linewidth=0.7, zorder=2)
    axes.plot(*point, marker=shape, color=color_of(series), markeredgecolor="black", markeredgewidth=0.5, zorder=3)


def new_figure(width: float, height: float) -> Figure:
    """An empty figure of a size in inches, with the Agg canvas."""
    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def number_axis(axes: Axes, which: Literal["x", "y"]) -> None:
    """An axis of amounts: from zero, with round numbers."""
    axis = axes.yaxis if which == "y" else axes.xaxis
    axis.set_major_locator(MaxNLocator(5, steps=[1, 2, 2.5, 5, 10]))
    axis.set_major_formatter(StrMethodFormatter("{x:,.10g}"))
    axes.grid(axis=which)
    highest = axes.dataLim.y1 if which == "y" else axes.dataLim.x1
    setter = axes.set_ylim if which == "y" else axes.set_xlim
    setter(0, highest * 1.08 if math.isfinite(highest) and highest > 0 else 1)


def _patch(series: int, label: str) -> Patch:
    hatch = HATCHES[series % len(HATCHES)]
    return Patch(facecolor=color_of(series), hatch=hatch, edgecolor="black", linewidth=0.4, label=label)


def color_of(series: int) -> str:
    """The colour of a series, by its place."""
    return COLORS[series % len(COLORS)]


def line_of(series: int) -> Any:
    """The line style of a series, by its place."""
    return LINES[series % len(LINES)]


def _marker(shape: str, label: str, fill: str) -> Line2D:
    return Line2D(
        [], [], linestyle="", marker=shape, color=fill, markeredgecolor="black", markeredgewidth=0.5, label=label
    )
