"""What all figures share: one style, looks that tell series apart in grey too, axes of amounts, and words on paper.

Colours are safe for the colour-blind (after Paul Tol's and Okabe and Ito's schemes) and differ in lightness; hatches,
line styles and markers tell the series apart in grey.
"""

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from typing import Any, Literal

import matplotlib.style
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.font_manager import FontProperties, findfont, get_font
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import FixedLocator, MaxNLocator, NullLocator

from scalerlt.analysis.estimates import Estimate
from scalerlt.analysis.figure_spec import Reach
from scalerlt.analysis.formatting import one_line

FONT = "DejaVu Sans"
TEXT, SMALL = 7.0, 6.0
"""Points, as printed: of labels, ticks and legends, and of the marks inside a panel. Nothing is smaller."""
DOTS = 300
"""Dots per inch of the PNG, at which words are measured, too."""

STYLE: dict[str, object] = {
    "font.family": FONT,
    "font.size": TEXT,
    "axes.labelsize": TEXT,
    "axes.titlesize": TEXT,
    "axes.linewidth": 0.6,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.axisbelow": True,
    "grid.linewidth": 0.4,
    "grid.color": "#d0d0d0",
    "xtick.labelsize": TEXT,
    "ytick.labelsize": TEXT,
    "xtick.major.width": 0.6,
    "ytick.major.width": 0.6,
    "xtick.major.size": 2.5,
    "ytick.major.size": 2.5,
    "legend.fontsize": TEXT,
    "legend.title_fontsize": TEXT,
    "legend.frameon": False,
    "hatch.linewidth": 0.6,
    "lines.linewidth": 0.9,
    "lines.markersize": 5,
    "pdf.fonttype": 42,
    "savefig.dpi": DOTS,
    "text.parse_math": False,
}
COLORS = ["#004488", "#ddaa33", "#bb5566", "#9fd3c7", "#222222"]
"""Of each series; its lightness differs from that of the next."""
HATCHES = ["", "////", "....", "xxxx", "\\\\\\\\"]
LINES: list[Any] = ["-", "--", ":", "-.", (0, (5, 1, 1, 1, 1, 1))]
MARKERS = "os^Dv<>P"
FILLS: list[Literal["full", "left", "bottom", "top"]] = ["full", "left", "bottom", "top"]
MARK_COLOR = "#404040"
EDGE: dict[str, Any] = {"markeredgecolor": "black", "markeredgewidth": 0.5}


@contextmanager
def fixed_style() -> Iterator[None]:
    """Matplotlib's defaults and ours, whatever the user's own configuration says."""
    with matplotlib.style.context(["default", STYLE]):
        yield


def new_figure(width: float) -> Figure:
    """An empty figure of a width in inches, with the Agg canvas; its height follows from what is drawn."""
    figure = Figure(figsize=(width, width), dpi=DOTS)
    FigureCanvasAgg(figure)
    return figure


def color_of(series: int) -> str:
    """The colour of a series, by its place."""
    return COLORS[series % len(COLORS)]


def line_of(series: int) -> Any:
    """The line style of a series, by its place; two series of one colour differ in it."""
    return LINES[(series + series // len(COLORS)) % len(LINES)]


def marker_of(series: int) -> dict[str, Any]:
    """The marker of a series, by its place; two series of one colour differ in it."""
    return {"marker": MARKERS[series % len(MARKERS)], "fillstyle": FILLS[series // len(MARKERS) % len(FILLS)]}


def area_of(series: int) -> dict[str, Any]:
    """How an area of a series is filled, by its place; two series of one colour differ in their hatch."""
    color = color_of(series)
    hatch = HATCHES[(series + series // len(COLORS)) % len(HATCHES)]
    return {"facecolor": color, "hatch": hatch, "edgecolor": "white" if _is_dark(color) and hatch else "black"}


def _is_dark(color: str) -> bool:
    return lightness(color) < 45


def lightness(color: str) -> float:
    """CIE L* of a colour, 0 to 100: what is left of it in grey."""
    linear = [
        value / 12.92 if value <= 0.04045 else ((value + 0.055) / 1.055) ** 2.4
        for value in matplotlib.colors.to_rgb(color)
    ]
    luminance = 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]
    return 116 * luminance ** (1 / 3) - 16 if luminance > 0.008856 else 903.3 * luminance


def patch(series: int) -> Patch:
    """A sample of the areas of a series."""
    return Patch(**area_of(series), linewidth=0.4)


def sample(series: int, *, line: bool = True, marker: bool = True) -> Line2D:
    """A sample of the lines and markers of a series."""
    return Line2D(
        [],
        [],
        color=color_of(series),
        linestyle=line_of(series) if line else "",
        **(marker_of(series) if marker else {}),
        **EDGE,
    )


def draw_spread(
    axes: Axes, place: float, shown: Estimate, *, color: str = "black", cap: float = 0.03, level: bool = False
) -> None:
    """How far an estimate spreads: its interval, with caps; else its cohorts, and a thin line for the repeats.

    Args:
        place: where it stands along the other axis.
        cap: inches of half a cap.
        level: whether the amounts run along x.
    """
    ends = shown.interval or shown.repeats
    bars: dict[str, Any] = {"color": color, "linestyle": "-", "zorder": 4}
    if shown.interval is not None:
        bars |= {"linewidth": 0.9, "marker": "|" if level else "_", "markersize": 2 * cap * 72, "markeredgewidth": 0.9}
    else:
        bars |= {"linewidth": 0.6}
    if ends is not None:
        axes.plot(ends if level else (place, place), (place, place) if level else ends, **bars)
    if shown.interval is None and len(shown.cohorts) > 1:
        amounts, places = shown.cohorts, [place] * len(shown.cohorts)
        points: dict[str, Any] = {"marker": "o", "markersize": 2.4, "markerfacecolor": "white", "linestyle": "", **EDGE}
        axes.plot(*((amounts, places) if level else (places, amounts)), **points, zorder=5)


def amount_axis(axes: Axes, which: Literal["x", "y"], reach: Reach, amounts: Sequence[float]) -> None:
    """Limits, ticks and grid of an axis of amounts, for what is drawn along it."""
    positive = [amount for amount in amounts if amount > 0]
    if reach == "log" and positive and min(amounts) >= 0 and math.log10(max(positive)) - math.log10(min(positive)) >= 1:
        _logarithmic_axis(axes, which, min(positive), max(positive), zeros=min(amounts) <= 0)
        return
    low, high = (min(amounts), max(amounts)) if amounts else (0.0, 1.0)
    if reach == "fit":
        margin = 0.08 * (high - low) or 0.05 * abs(high) or 0.05
        floor = -0.03 * (high + margin) if low >= 0 else -math.inf  # what cannot be negative gets no axis below zero
        low, high = max(low - margin, floor), high + margin
    else:
        low, high = 1.08 * min(low, 0.0), 1.08 * max(high, 0.0)
        high = high if high > low else 1.0
    axis = axes.yaxis if which == "y" else axes.xaxis
    axis.set_major_locator(MaxNLocator(5, steps=[1, 2, 2.5, 5, 10]))
    axis.set_major_formatter(lambda value, _: tick_text(value))
    _limits(axes, which, low, high)
    axes.grid(axis=which)


def _limits(axes: Axes, which: Literal["x", "y"], low: float, high: float) -> None:
    (axes.set_ylim if which == "y" else axes.set_xlim)(low, high)


def tick_text(value: float) -> str:
    """0.5; 12,500; 2e-7."""
    if value and not 1e-3 <= abs(value) < 1e7:
        mantissa, _, exponent = f"{value:.10g}".partition("e")
        return f"{mantissa}e{int(exponent)}" if exponent else mantissa
    return f"{value:,.10g}"


def _logarithmic_axis(axes: Axes, which: Literal["x", "y"], smallest: float, largest: float, *, zeros: bool) -> None:
    """Whole powers of ten; where there are zeros, they lie below the first of them."""
    low, high = math.floor(math.log10(smallest)), math.ceil(math.log10(largest))
    scale = axes.set_yscale if which == "y" else axes.set_xscale
    if zeros:
        scale("symlog", linthresh=10.0**low, linscale=0.6)
    else:
        scale("log")
    powers = [10.0**power for power in range(low, high + 1, math.ceil((high - low + 1) / 5))]
    axis = axes.yaxis if which == "y" else axes.xaxis
    axis.set_major_locator(FixedLocator([0.0, *powers] if zeros else powers))
    axis.set_minor_locator(NullLocator())
    axis.set_major_formatter(lambda value, _: f"1e{round(math.log10(value))}" if value > 0 else "0")
    _limits(axes, which, -0.3 * 10.0**low if zeros else 10.0**low, 10.0**high)
    axes.grid(axis=which)


def legible(text: str) -> str:
    """Text in one line, in which a character that the font lacks is written as its code point (U+6A21)."""
    return "".join(char if _has_glyph(char) else f"U+{ord(char):04X} " for char in one_line(text)).rstrip()


@cache
def _has_glyph(char: str) -> bool:
    return char.isprintable() and get_font(findfont(FONT)).get_char_index(ord(char)) != 0


@cache
def width_of(text: str, points: float = TEXT) -> float:
    """Width in inches of a line of text."""
    font = FontProperties(family=FONT, size=points)
    width, _, _ = renderer_of(_blank()).get_text_width_height_descent(text, font, False)
    return float(width) / DOTS


@cache
def _blank() -> Figure:
    return new_figure(1)


def renderer_of(figure: Figure) -> Any:
    """What knows how large the words of a figure are."""
    canvas: Any = figure.canvas
    return canvas.get_renderer()


def release(figure: Figure) -> None:
    """Let go of the canvas that a figure was measured or painted on: megabytes, for each figure of a report."""
    FigureCanvasAgg(figure)


def wrapped(text: str, inches: float, points: float = TEXT, *, anywhere: bool = True) -> list[str]:
    """Text in lines of at most a width, broken behind blanks and punctuation, else anywhere.

    Args:
        anywhere: whether a word that is too long is broken; if not, its line is too wide.
    """
    lines, line = [], ""
    for piece in _pieces(legible(text)):
        if line and width_of((line + piece).rstrip(), points) > inches:
            lines.append(line.rstrip())
            line = ""
        line += piece
        while anywhere and width_of(line.rstrip(), points) > inches and len(line) > 1:
            fits = next((n for n in range(len(line) - 1, 0, -1) if width_of(line[:n], points) <= inches), 1)
            lines.append(line[:fits])
            line = line[fits:]
    return [*lines, line.rstrip()]


def _pieces(text: str) -> Iterator[str]:
    piece = ""
    for char in text:
        piece += char
        if char in " _-/.,:=+|":
            yield piece
            piece = ""
    if piece:
        yield piece
