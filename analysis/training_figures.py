"""Figures over training: which configurations stand in one figure, their captions, and what each of them draws."""

from collections import Counter
from collections.abc import Sequence

from matplotlib.figure import Figure

from scalerlt.analysis.curves import Configuration, draw_curves, has_points
from scalerlt.analysis.drawing import COLORS
from scalerlt.analysis.figure_spec import CurvesFigure, DepthsFigure, TrainingFigure
from scalerlt.analysis.intervals import SEEDS_FOR_AN_INTERVAL
from scalerlt.analysis.marks import MEASURED
from scalerlt.analysis.reading import CellResult
from scalerlt.analysis.rows import Row, group_rows, row_axes
from scalerlt.analysis.shares import draw_depths, draw_phases, has_depths, has_phases
from scalerlt.analysis.slices import Drawn, shown_in
from scalerlt.analysis.tables import label_text

SEVERAL = len(COLORS)
"""So many configurations stand in one figure at most."""


def draw_training(spec: TrainingFigure, cells: list[CellResult], swept: Sequence[str]) -> list[Drawn]:
    """The figures of one definition: one, or one per value of its first axes where it would hold too many.

    A figure without a single number is left out; its cells stand in the tables.
    """
    if not cells:
        return []
    axes = row_axes(cells, spec.rows, swept)
    varying = [axis for axis in axes if len(group_rows(cells, [axis])) > 1]
    apart, along = _split(cells, varying or axes[:1])
    drawn: list[Drawn] = []
    for part in group_rows(cells, apart):
        rows = group_rows(part.cells, along)
        configurations = [Configuration(_label(row), index, row.cells) for index, row in enumerate(rows)]
        figure = _draw(spec, ", ".join(along), configurations)
        if figure is not None:
            drawn.append(Drawn(part, " ".join([spec.caption, *shown_in(part), *_remarks(spec)]), figure))
    return drawn


def _split(cells: Sequence[CellResult], axes: list[str]) -> tuple[list[str], list[str]]:
    """The axes whose values get figures of their own, and those along which configurations share one."""
    apart: list[str] = []
    along = list(axes)
    while len(along) > 1 and any(len(group_rows(part.cells, along)) > SEVERAL for part in group_rows(cells, apart)):
        apart.append(along.pop(0))
    return apart, along


def _draw(spec: TrainingFigure, title: str, configurations: list[Configuration]) -> Figure | None:
    match spec:
        case CurvesFigure():
            panels = [panel for panel in spec.panels if has_points(panel, spec.x.column, configurations)]
            return draw_curves(spec, panels, title, configurations) if panels else None
        case DepthsFigure():
            return draw_depths(spec, title, configurations) if has_depths(configurations) else None
        case _:
            return draw_phases(spec, title, configurations) if has_phases(configurations) else None


def _label(row: Row) -> str:
    """A configuration in a legend: its values, how many cells were measured, and what became of the others."""
    states = Counter(cell.state for cell in row.cells)
    measured = states.pop(MEASURED, 0)
    fates = ", ".join(f"{count} {state.replace('_', ' ')}" for state, count in sorted(states.items()))
    count = f"n = {measured}" if measured or not fates else ""
    return f"{', '.join(map(label_text, row.labels.values()))} ({', '.join(filter(None, [count, fates]))})"


def _remarks(spec: TrainingFigure) -> list[str]:
    if isinstance(spec, CurvesFigure):
        return [
            f"Thin lines are seeds. From {SEEDS_FOR_AN_INTERVAL} measured seeds on a thick line is their mean, at "
            "their mean place along the axis, and the band its 95 % Student t interval, at each step by itself "
            "and not of the curve as a whole; with fewer there is neither. "
            "A line that ends in × is of a run that was not measured to its end, and is in no mean."
        ]
    return ["Tokens of all measured seeds together."] if isinstance(spec, DepthsFigure) else []
