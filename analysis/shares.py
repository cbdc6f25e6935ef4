"""Shares: where training time goes, and at which depth tokens stop, for one configuration beside the other."""

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

from matplotlib.axes import Axes
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from matplotlib.ticker import PercentFormatter

from scalerlt.analysis.curves import Configuration
from scalerlt.analysis.drawing import COLORS, COLUMN_WIDTH, HATCHES, MARK_COLOR, new_figure, number_axis
from scalerlt.analysis.marks import MEASURED
from scalerlt.analysis.rows import entry, is_number
from scalerlt.analysis.series import SeriesRow
from scalerlt.analysis.specs import PHASES
from scalerlt.analysis.training import SHARE

DEPTH = "loop/exit_depth_hist_"
SHALLOW, DEEP = to_rgb("#e3ecf7"), to_rgb("#00305f")
"""The colours of the fewest and the most loops; those between differ from each other in lightness."""


def has_phases(configurations: Sequence[Configuration]) -> bool:
    """Whether any measured cell has times by phase."""
    return bool(_phases(configurations))


def _phases(configurations: Sequence[Configuration]) -> list[str]:
    """The phases of all measured cells, in the order of a step."""
    cells = [cell for one in configurations for cell in one.cells if cell.state == MEASURED]
    found = {name.removeprefix(SHARE) for cell in cells for name in cell.metrics if name.startswith(SHARE)}
    return sorted(found, key=lambda phase: (PHASES.index(phase) if phase in PHASES else len(PHASES), phase))


def draw_phases(title: str, configurations: Sequence[Configuration]) -> Figure:
    """A bar per configuration, from the first phase on the left to the last on the right."""
    phases = _phases(configurations)
    figure = new_figure(COLUMN_WIDTH, 0.95 + 0.42 * len(configurations))
    axes = figure.subplots()
    places = range(len(configurations))
    for place, one in zip(places, configurations, strict=True):
        left = 0.0
        for phase in phases:
            share = entry(one.cells, SHARE + phase, "mean").value
            if is_number(share):
                axes.barh(place, share, 0.42, left=left, **_look(phases.index(phase)))
                left += share
        axes.annotate(one.label, (0, place), (0, 10.5), textcoords="offset points", va="center", fontsize=6.5)
        if not left:
            axes.text(0.5, place, "no number", ha="center", va="center", color=MARK_COLOR)
    axes.set_xlim(0, 1)
    axes.set_ylim(len(configurations) - 0.65, -0.75)
    axes.set_yticks([])
    axes.spines["left"].set_visible(False)
    axes.xaxis.set_major_formatter(PercentFormatter(1, symbol=" %"))
    axes.set_xlabel("share of training time")
    axes.set_title(title, fontsize=7, loc="left", pad=2)
    handles = [Patch(label=phase, **_look(number)) for number, phase in enumerate(phases)]
    figure.legend(handles=handles, loc="outside upper left", ncols=3, columnspacing=1.2)
    return figure


def _look(phase: int) -> dict[str, Any]:
    hatch = HATCHES[(phase + phase // len(COLORS)) % len(HATCHES)]
    return {"facecolor": COLORS[phase % len(COLORS)], "hatch": hatch, "edgecolor": "black", "linewidth": 0.4}


def has_depths(configurations: Sequence[Configuration]) -> bool:
    """Whether any measured cell has counted its exit depths."""
    return any(_counts(one) for one in configurations)


def _counts(one: Configuration) -> dict[int, dict[int, float]]:
    """By step the decode tokens that stopped at each depth, over all measured cells."""
    counts: dict[int, dict[int, float]] = {}
    for row in (row for cell in one.cells if cell.state == MEASURED for row in cell.series):
        step, depths = row["step"], _depths(row)
        if depths and isinstance(step, int):
            at = counts.setdefault(step, {})
            for depth, count in depths.items():
                at[depth] = at.get(depth, 0) + count
    return dict(sorted(counts.items()))


def _depths(row: SeriesRow) -> dict[int, float]:
    return {
        int(column.removeprefix(DEPTH)): value
        for column, value in row.items()
        if column.startswith(DEPTH) and is_number(value)
    }


def draw_depths(title: str, configurations: Sequence[Configuration]) -> Figure:
    """A panel per configuration: over the steps the shares of the depths, the fewest loops at the bottom."""
    figure = new_figure(COLUMN_WIDTH, 0.75 + 0.95 * len(configurations))
    grid: list[Axes] = list(figure.subplots(len(configurations), 1, sharex=True, squeeze=False)[:, 0])
    counts = [_counts(one) for one in configurations]
    depths = sorted({depth for found in counts for at in found.values() for depth in at})
    for axes, one, found in zip(grid, configurations, counts, strict=True):
        axes.set_title(one.label, fontsize=6.5, loc="left", pad=3)
        if found:
            _stack(axes, found, depths)
        else:
            axes.text(0.5, 0.5, "no number", transform=axes.transAxes, ha="center", va="center", color=MARK_COLOR)
        axes.set_ylim(0, 1)
        axes.set_yticks([0, 0.5, 1])
        axes.yaxis.set_major_formatter(PercentFormatter(1, symbol=" %"))
    number_axis(grid[-1], "x")
    steps = [step for found in counts for step in found]
    grid[-1].set_xlim(min(steps) - 0.5, max(steps) + 0.5)
    grid[-1].set_xlabel("training step")
    handles = [Patch(label=f"{depth}", **_shade(number, len(depths))) for number, depth in enumerate(depths)]
    figure.legend(
        handles=handles,
        loc="outside upper left",
        title=f"exit depth (loops), by {title}",
        title_fontsize=7,
        alignment="left",
        ncols=6,
    )
    return figure


def _stack(axes: Axes, counts: dict[int, dict[int, float]], depths: Sequence[int]) -> None:
    steps = list(counts)
    edges = [steps[0] - 0.5, *((one + next_one) / 2 for one, next_one in pairwise(steps)), steps[-1] + 0.5]
    base = [0.0] * len(steps)
    for number, depth in enumerate(depths):
        totals = [sum(at.values()) for at in counts.values()]
        shares = [at.get(depth, 0) / total for at, total in zip(counts.values(), totals, strict=True)]
        top = [low + share for low, share in zip(base, shares, strict=True)]
        axes.stairs(top, edges, baseline=base, fill=True, **_shade(number, len(depths)))
        base = top


def _shade(number: int, of: int) -> dict[str, Any]:
    part = number / (of - 1) if of > 1 else 1.0
    color = tuple(light + part * (dark - light) for light, dark in zip(SHALLOW, DEEP, strict=True))
    return {"facecolor": color, "edgecolor": "black", "linewidth": 0.3}
