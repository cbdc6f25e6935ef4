"""Shares: where training time goes, and at which depth tokens stop, for one configuration beside the other."""

from collections.abc import Sequence
from itertools import pairwise
from typing import Any, Literal

from matplotlib.axes import Axes
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from matplotlib.ticker import PercentFormatter

from scalerlt.analysis.curves import Configuration
from scalerlt.analysis.drawing import MARK_COLOR, amount_axis, area_of, new_figure, patch
from scalerlt.analysis.figure_spec import TrainingFigure
from scalerlt.analysis.layout import Stack, label_x, title
from scalerlt.analysis.marks import MEASURED
from scalerlt.analysis.phases import in_order
from scalerlt.analysis.rows import entry, is_number
from scalerlt.analysis.series import SeriesRow
from scalerlt.analysis.training import SHARE
from scalerlt.analysis.venues import INCHES

DEPTH = "loop/exit_depth_hist_"
SHALLOW, DEEP = to_rgb("#e3ecf7"), to_rgb("#00305f")
"""The colours of the fewest and the most loops; those between differ from each other in lightness."""
BAR, STAIRS = 0.17, 0.65
"""Inches of a bar, and of a panel of depths."""


def has_phases(configurations: Sequence[Configuration]) -> bool:
    """Whether any measured cell has times by phase."""
    return bool(_phases(configurations))


def _phases(configurations: Sequence[Configuration]) -> list[str]:
    """The phases of all measured cells, in the order of a step."""
    cells = [cell for one in configurations for cell in one.cells if cell.state == MEASURED]
    return in_order({name.removeprefix(SHARE) for cell in cells for name in cell.metrics if name.startswith(SHARE)})


def draw_phases(spec: TrainingFigure, axis: str, configurations: Sequence[Configuration]) -> Figure:
    """A bar per configuration, from the first phase on the left to the last on the right."""
    phases = _phases(configurations)
    stack = Stack(new_figure(INCHES[spec.venue][spec.width]))
    stack.legend([(patch(number), phase) for number, phase in enumerate(phases)], f"phase, by {axis}")
    for one in configurations:
        axes = stack.panel(BAR)
        title(axes, one.label)
        left = 0.0
        for number, phase in enumerate(phases):
            share = entry(one.cells, SHARE + phase, "mean").value
            if is_number(share):
                axes.barh(0, share, left=left, **area_of(number), linewidth=0.4)
                left += share
        if not left:
            _say_none(axes)
        _percent_axis(axes, "x")
        axes.set_ylim(-0.5, 0.5)
        axes.set_yticks([])
        axes.spines["left"].set_visible(False)
        if one is not configurations[-1]:
            axes.spines["bottom"].set_visible(False)
            axes.set_xticks([])
    label_x(axes, "share of training time")
    return stack.arrange()


def _say_none(axes: Axes) -> None:
    axes.text(0.5, 0.5, "no number", transform=axes.transAxes, ha="center", va="center", color=MARK_COLOR)


def _percent_axis(axes: Axes, which: Literal["x", "y"]) -> None:
    (axes.set_xlim if which == "x" else axes.set_ylim)(0, 1)
    (axes.set_xticks if which == "x" else axes.set_yticks)([0, 0.5, 1])
    (axes.xaxis if which == "x" else axes.yaxis).set_major_formatter(PercentFormatter(1, symbol=" %"))


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


def draw_depths(spec: TrainingFigure, axis: str, configurations: Sequence[Configuration]) -> Figure:
    """A panel per configuration: over the steps the shares of the depths, the fewest loops at the bottom."""
    counts = [_counts(one) for one in configurations]
    depths = sorted({depth for found in counts for at in found.values() for depth in at})
    steps = [step for found in counts for step in found]
    stack = Stack(new_figure(INCHES[spec.venue][spec.width]))
    shades = [(Patch(**_shade(number, len(depths))), f"{depth}") for number, depth in enumerate(depths)]
    stack.legend(shades, f"exit depth (loops), by {axis}")
    for one, found in zip(configurations, counts, strict=True):
        axes = stack.panel(STAIRS)
        title(axes, one.label)
        if found:
            _stack(axes, found, depths)
        else:
            _say_none(axes)
        _percent_axis(axes, "y")
        amount_axis(axes, "x", "zero", steps)
        axes.set_xlim(min(steps) - 0.5, max(steps) + 0.5)
        axes.tick_params(axis="x", labelbottom=one is configurations[-1])
    label_x(axes, "training step")
    return stack.arrange()


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
