"""Where everything stands on the paper: a figure's width is given, its height follows from its words and panels.

Matplotlib takes the room for words from the panels; here the panels keep their size and the figure grows, so that
nothing is cut off and nothing overlaps however long the names are.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.legend import Legend
from matplotlib.lines import Line2D

from scalerlt.analysis.drawing import DOTS, SMALL, TEXT, legible, release, renderer_of, width_of, wrapped

LINE = 0.135
"""Inches from one line of text to the next."""
PANEL = 1.3
"""Inches of a panel's height."""
GAP = 0.06
"""Inches between what stands above each other."""
TALLEST_LABEL = 1.1
"""Inches of the longest label that stands upright below an axis."""
EDGE = 0.03
"""Inches between anything and the edge of the paper."""


@dataclass
class Stack:
    """The panels of a figure, from top to bottom, the legend above them and what stands below.

    Attributes:
        heights: inches of each panel.
        gaps: inches above each panel that its neighbours' words do not need, but that set it apart.
    """

    figure: Figure
    panels: list[Axes] = field(default_factory=list)
    heights: list[float] = field(default_factory=list)
    gaps: list[float] = field(default_factory=list)
    above: list[Legend] = field(default_factory=list)
    below: list[Legend] = field(default_factory=list)

    def panel(self, height: float = PANEL, gap: float = GAP) -> Axes:
        """A new panel below the others."""
        axes = self.figure.add_axes((0.2, 0.2, 0.7, 0.7), label=str(len(self.panels)))
        self.panels.append(axes)
        self.heights.append(height)
        self.gaps.append(gap)
        return axes

    def legend(
        self, entries: Sequence[tuple[Artist, str]], title: str = "", *, below: bool = False, **look: Any
    ) -> Legend:
        """A legend in as many columns as its names leave room for; a name too long for one has several lines."""
        small = SMALL if below else TEXT
        sample = look.setdefault("handlelength", 1.6) * small / 72 + 0.06
        room = self.figure.get_figwidth() - 2 * EDGE
        names = ["\n".join(wrapped(name, room - sample - 0.05, small)) for _, name in entries]
        widest = max(width_of(line, small) for name in names for line in name.split("\n"))
        columns = max(1, min(len(entries), int((room + 0.12) / (sample + widest + 0.12))))
        legend = self.figure.legend(
            handles=[handle for handle, _ in entries],
            labels=["x"] * len(entries),  # a label that begins with `_` would be left out
            loc="upper left",
            ncols=columns,
            title=title or None,
            alignment="left",
            fontsize=small,
            borderpad=0,
            borderaxespad=0,
            handletextpad=0.06 * 72 / small,
            columnspacing=0.12 * 72 / small,
            labelspacing=0.35,
            **look,
        )
        for text, name in zip(legend.get_texts(), names, strict=True):
            text.set_text(name)
        legend.get_title().set_text("\n".join(wrapped(title, room)))
        (self.below if below else self.above).append(legend)
        return legend

    def keys(self, keys: Sequence[tuple[str, str]]) -> None:
        """What each letter means, below the figure."""
        if keys:
            blank = [Line2D([], [], linestyle="") for _ in keys]
            texts = [f"{letter}: {name}" for letter, name in keys]
            self.legend(list(zip(blank, texts, strict=True)), below=True, handlelength=0.0)

    def arrange(self) -> Figure:
        """Give every panel its place and the figure its height."""
        for _ in range(2):  # where words stand depends a little on where the panels do
            self._place()
        release(self.figure)
        return self.figure

    def _place(self) -> None:
        renderer = renderer_of(self.figure)
        around = [_words_around(axes, renderer) for axes in self.panels]
        width = self.figure.get_figwidth()
        left = max(words[0] for words in around) + EDGE
        right = max(words[2] for words in around) + EDGE
        heights = {id(legend): _height(legend, renderer) for legend in (*self.above, *self.below)}
        head = EDGE + sum(heights[id(legend)] + GAP for legend in self.above)
        tops: list[float] = []
        down = head
        for (_, bottom, _, top), height, gap in zip(around, self.heights, self.gaps, strict=True):
            down += top + (gap if tops else 0)
            tops.append(down)
            down += height + bottom
        foot = sum(GAP + heights[id(legend)] for legend in self.below)
        total = down + foot + EDGE
        self.figure.set_size_inches(width, total)
        for axes, top, height in zip(self.panels, tops, self.heights, strict=True):
            axes.set_position(
                (left / width, 1 - (top + height) / total, (width - left - right) / width, height / total)
            )
        place = EDGE
        for legend in self.above:
            _put(self.figure, legend, EDGE / width, 1 - place / total)
            place += heights[id(legend)] + GAP
        place = down + GAP
        for legend in self.below:
            _put(self.figure, legend, EDGE / width, 1 - place / total)
            place += heights[id(legend)] + GAP


def _words_around(axes: Axes, renderer: Any) -> tuple[float, float, float, float]:
    """Inches that ticks, labels and title need to the left, below, to the right and above of a panel."""
    inner, outer = axes.get_window_extent(renderer), axes.get_tightbbox(renderer, bbox_extra_artists=axes.texts)
    assert outer is not None
    sides = (inner.x0 - outer.x0, inner.y0 - outer.y0, outer.x1 - inner.x1, outer.y1 - inner.y1)
    left, below, right, above = (max(0.0, side) / DOTS for side in sides)
    return left, below, right, above


def _height(legend: Legend, renderer: Any) -> float:
    return float(legend.get_window_extent(renderer).height) / DOTS


def _put(figure: Figure, legend: Legend, x: float, y: float) -> None:
    legend.set_bbox_to_anchor((x, y), transform=figure.transFigure)


def title(axes: Axes, text: str) -> None:
    """What a panel shows, above it, in as many lines as the figure's width asks for."""
    axes.set_title("\n".join(wrapped(text, 0.8 * figure_width(axes))), loc="left", pad=2)


def label_y(axes: Axes, text: str, height: float = PANEL) -> None:
    """What an upright axis shows, in as many lines as its panel's height asks for."""
    axes.set_ylabel("\n".join(wrapped(text, height)))


def label_x(axes: Axes, text: str) -> None:
    """What a level axis shows, in as many lines as the figure's width asks for."""
    axes.set_xlabel("\n".join(wrapped(text, 0.7 * figure_width(axes))))


def figure_width(axes: Axes) -> float:
    """Inches of the paper that a panel stands on."""
    figure = axes.figure
    assert isinstance(figure, Figure)
    return figure.get_figwidth()


@dataclass(frozen=True)
class Names:
    """How the places along an axis are named.

    Attributes:
        labels: what stands at each place.
        rotation: in degrees.
        keys: what has to be said below the figure: each letter with its name. Empty where the names stand in full.
    """

    labels: list[str]
    rotation: float
    keys: list[tuple[str, str]]


def fit_names(names: Sequence[Sequence[str]], slot: float) -> Names:
    """The names of places side by side, else upright, else as letters.

    Args:
        names: the lines of each name.
        slot: inches from one place to the next.
    """
    room = slot - 0.05
    lines = [[line for part in name for line in wrapped(part, room, anywhere=False)] for name in names]
    if max(map(len, lines)) <= 3 and max(width_of(line) for name in lines for line in name) <= room:
        return Names(["\n".join(name) for name in lines], 0, [])
    whole = [", ".join(map(legible, name)) for name in names]
    if max(map(width_of, whole)) <= TALLEST_LABEL:
        return Names(whole, 90, [])
    letters = [_letters(number) for number in range(len(names))]
    return Names(letters, 0, list(zip(letters, whole, strict=True)))


def _letters(number: int) -> str:
    """A, B, …, Z, AA, AB, …"""
    first, last = divmod(number, 26)
    return (_letters(first - 1) if first else "") + chr(ord("A") + last)
