"""Figures: from a definition and cells to drawings, and from those to PDF and PNG with the same bytes every time."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from matplotlib.figure import Figure

from scalerlt.analysis.drawing import Drawing, draw_bars, draw_tradeoff, number
from scalerlt.analysis.formatting import Scale, choose_scale
from scalerlt.analysis.reading import CellResult
from scalerlt.analysis.rows import Entry, Row, entry, group_rows, is_number, row_axes, unit_of
from scalerlt.analysis.specs import Column, FigureSpec
from scalerlt.analysis.tables import label_text


@dataclass(frozen=True)
class Picture:
    """A drawn figure, its file name without ending, and its caption."""

    name: str
    caption: str
    figure: Figure


def build_figures(spec: FigureSpec, cells: Sequence[CellResult], swept: Sequence[str]) -> list[Picture]:
    """The figures of one definition: one per combination of the axes that it does not draw.

    A combination without a single number has no figure; its cells stand in the tables.
    """
    series = [row.labels[spec.series] for row in group_rows(cells, [spec.series])]  # one colour throughout a report
    cells = [cell for cell in cells if cell.axes.get("experiment") == spec.experiment]
    axes = row_axes(cells, (spec.x, spec.series), swept)
    along = [axis for axis in axes if axis.partition(".")[0] == spec.x]
    along = [axis for axis in along if len({label_text(cell.axes.get(axis)) for cell in cells}) > 1] or along
    apart = [axis for axis in axes if axis not in (*along, spec.series)]
    scales = [_scale(cells, column) for column in spec.columns]
    pictures: list[Picture] = []
    slices = group_rows(cells, apart)
    for part in slices:
        rows = group_rows(part.cells, [*along, spec.series])
        places = [[entry(row.cells, column.metric) for column in spec.columns] for row in rows]
        if not any(number(place) is not None for row_places in places for place in row_places):
            continue
        draw = draw_bars if spec.kind == "bars" else draw_tradeoff
        figure = draw(Drawing(spec, along, series, scales, rows, places))
        pictures.append(Picture(file_name(spec.name, part, slices, pictures), _caption(spec, part, places), figure))
    return pictures


def save(picture: Picture, directory: Path) -> list[Path]:
    """Write the picture as PDF and PNG, without a date or the name of a program's build in them."""
    pdf, png = (directory / f"{picture.name}.{ending}" for ending in ("pdf", "png"))
    picture.figure.savefig(pdf, format="pdf", metadata={"CreationDate": None})
    picture.figure.savefig(png, format="png", metadata={"Software": None})
    return [pdf, png]


def _scale(cells: Sequence[CellResult], column: Column) -> Scale:
    values = [entry([cell], column.metric).value for cell in cells]
    largest = max((abs(value) for value in values if is_number(value)), default=0)
    return choose_scale(unit_of(cells, column.metric), [largest])


def file_name(name: str, part: Row, slices: list[Row], earlier: list[Picture]) -> str:
    """The name of a definition's figure of one slice, made unique among the definition's earlier ones."""
    if len(slices) == 1:
        return name
    words = (re.sub(r"[^A-Za-z0-9.]+", "_", label_text(label)).strip("_.") for label in part.labels.values())
    slug = "-".join([name, *words])
    taken = sum(picture.name.lower().startswith(slug.lower()) for picture in earlier)
    return f"{slug}-{taken + 1}" if taken else slug


def _caption(spec: FigureSpec, part: Row, places: list[list[Entry]]) -> str:
    entries = [place for row in places for place in row]
    sentences = [spec.caption]
    held = ", ".join(f"{axis} {label_text(label)}" for axis, label in part.labels.items())
    if held:
        sentences.append(f"Shown: {held}.")
    counts = sorted({place.measured for place in entries if place.measured})
    span = str(counts[0]) if len(counts) == 1 else f"{counts[0]} to {counts[-1]}"
    sentences.append(f"Medians over cohorts (n = {span}).")
    if any(place.minimum is not None for place in entries):
        sentences.append(
            "Thin lines span the smallest and the largest repeat; repeats in a process are not independent, so this "
            "is no confidence interval."
        )
    if any(number(place) is None for place in entries):
        sentences.append("Marked places have no number, for the reason that they name.")
    return " ".join(sentences)
