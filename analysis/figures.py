"""Figures: from definitions and cells to drawings, and from those to PDF and PNG with the same bytes every time."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from matplotlib.figure import Figure

from scalerlt.analysis.bars import draw_bars
from scalerlt.analysis.drawing import fixed_style, release
from scalerlt.analysis.estimates import DRAWABLE, estimate
from scalerlt.analysis.figure_spec import BarsFigure, Figures, LinesFigure, TradeoffFigure, TrainingFigure
from scalerlt.analysis.formatting import Scale, choose_scale
from scalerlt.analysis.gates import GateVerdict
from scalerlt.analysis.intervals import SEEDS_FOR_AN_INTERVAL
from scalerlt.analysis.lines import draw_lines, has_line, number_along
from scalerlt.analysis.reading import CellResult
from scalerlt.analysis.rows import Row, group_rows, has_number, is_number, record_paths, row_axes, unit_of
from scalerlt.analysis.slices import Drawn, Slice, shown_in
from scalerlt.analysis.tables import label_text
from scalerlt.analysis.tradeoff import draw_tradeoff
from scalerlt.analysis.training_figures import draw_training
from scalerlt.analysis.venues import Venue
from scalerlt.records.base import Scalar


@dataclass(frozen=True)
class Picture:
    """A drawn figure.

    Attributes:
        name: its file name without ending.
        label: what LaTeX refers to it by.
        sources: the record files that its numbers and marks are from, relative to the sweep.
    """

    name: str
    caption: str
    figure: Figure
    label: str = ""
    sources: tuple[str, ...] = ()


def pictures(
    specs: Sequence[Figures], cells: Sequence[CellResult], swept: Sequence[str], venue: Venue | None = None
) -> list[Picture]:
    """The figures of all definitions, in their order.

    Args:
        swept: the axes that the sweep's plans name as varying.
        venue: whose columns they are for; that of each definition, if None.

    Raises:
        UserError: a figure's metric was recorded in two units.
    """
    if venue is not None:
        specs = [spec.model_copy(update={"venue": venue}) for spec in specs]
    with fixed_style():
        return [picture for spec in specs for picture in build_figures(spec, cells, swept)]


def build_figures(spec: Figures, cells: Sequence[CellResult], swept: Sequence[str]) -> list[Picture]:
    """The figures of one definition: one per combination of the axes that it does not draw.

    A combination without a single number has no figure; its cells stand in the tables.
    """
    own = [cell for cell in cells if cell.axes.get("experiment") in spec.experiment]
    own = [cell for cell in own if not spec.sweeps or cell.sweep in spec.sweeps]
    if isinstance(spec, TrainingFigure):
        drawn = draw_training(spec, own, swept)
    else:
        series = [row.labels[spec.series] for row in group_rows(cells, [spec.series])]  # one look throughout a report
        drawn = _draw_cells(spec, own, swept, series)
    found: list[Picture] = []
    for one in drawn:
        name = file_name(spec.name, one.part, len(drawn) > 1, [picture.name for picture in found])
        label = spec.label or f"fig:{spec.name}"
        label += name.removeprefix(spec.name)
        found.append(Picture(name, one.caption, one.figure, label, record_paths(one.part.cells)))
    return found


def save(picture: Picture, directory: Path) -> list[Path]:
    """Write the picture as PDF and PNG, without a date or the name of a program's build in them."""
    pdf, png = (directory / f"{picture.name}.{ending}" for ending in ("pdf", "png"))
    with fixed_style():
        picture.figure.savefig(pdf, format="pdf", metadata={"CreationDate": None})
        picture.figure.savefig(png, format="png", metadata={"Software": None})
    release(picture.figure)
    return [pdf, png]


def file_name(name: str, part: Row, several: bool, earlier: Sequence[str]) -> str:
    """The name of a definition's figure of one slice, made unique among the definition's earlier ones."""
    if not several:
        return name
    words = (re.sub(r"[^A-Za-z0-9.]+", "_", label_text(label)).strip("_.") for label in part.labels.values())
    slug = "-".join([name, *(word[:40] for word in words)])
    taken = sum(other.lower().startswith(slug.lower()) for other in earlier)
    return f"{slug}-{taken + 1}" if taken else slug


def _draw_cells(
    spec: BarsFigure | LinesFigure | TradeoffFigure, cells: list[CellResult], swept: Sequence[str], series: list[Scalar]
) -> list[Drawn]:
    axes = row_axes(cells, (spec.x, spec.series), swept)
    along = [axis for axis in axes if axis.partition(".")[0] == spec.x and not isinstance(spec, LinesFigure)]
    along = [axis for axis in along if len({label_text(cell.axes.get(axis)) for cell in cells}) > 1] or [spec.x]
    apart = [axis for axis in axes if axis not in (*along, spec.series)]
    scales = [_scale(cells, column.metric) for column in spec.columns]
    drawn: list[Drawn] = []
    for part in group_rows(cells, apart):
        rows = group_rows(part.cells, [*along, spec.series])
        places = [
            [
                estimate(row.cells, column.metric, spec.estimator).scaled(scale)
                for column, scale in zip(spec.columns, scales, strict=True)
            ]
            for row in rows
        ]
        verdicts = [_verdict(spec, row.cells) for row in rows]
        shown = Slice(spec, along, series, [scale.unit for scale in scales], rows, places, verdicts)
        if not any(place.value is not None for row in places for place in row):
            continue
        match spec:
            case BarsFigure():
                figure = draw_bars(shown)
            case TradeoffFigure():
                figure = draw_tradeoff(shown, spec)
            case LinesFigure():
                if not has_line(shown):
                    continue
                figure = draw_lines(shown, spec)
        drawn.append(Drawn(part, _caption(shown, part), figure))
    return drawn


def _scale(cells: Sequence[CellResult], metric: str) -> Scale:
    """The unit in which people read the largest figure."""
    values = [cell.metrics[metric].value for cell in cells if has_number(cell, metric)]
    largest = max((abs(value) for value in values if is_number(value) and abs(value) <= DRAWABLE), default=0)
    return choose_scale(unit_of(cells, metric), [largest])


def _verdict(spec: BarsFigure | LinesFigure | TradeoffFigure, cells: Sequence[CellResult]) -> str:
    """The word of the gate over a row's cells: the worst of them; empty where the figure has none."""
    if not isinstance(spec, TradeoffFigure) or spec.gate is None:
        return ""
    words = {str(cell.metrics[spec.gate].value) if has_number(cell, spec.gate) else "" for cell in cells}
    verdicts = (GateVerdict.FAIL, GateVerdict.NOT_RESOLVED, GateVerdict.PASS)
    return str(next((verdict for verdict in verdicts if verdict in words), GateVerdict.NOT_RESOLVED))


def _caption(shown: Slice, part: Row) -> str:
    """The definition's caption, what is held, and how what is drawn came about."""
    places = [place for row in shown.places for place in row]
    drawn = [place for place in places if place.value is not None]
    counts = sorted({len(place.cohorts) for place in drawn})
    span = str(counts[0]) if len(counts) == 1 else f"{counts[0]} to {counts[-1]}"
    name = {"median": "Medians", "mean": "Means", "geometric_mean": "Geometric means"}[shown.spec.estimator]
    sentences = [shown.spec.caption, *shown_in(part), f"{name} over cohorts (n = {span})."]
    if any(place.interval for place in drawn):
        kind = "Student t intervals" + (" on logarithms" if shown.spec.estimator == "geometric_mean" else "")
        sentences.append(f"Lines with caps are 95 % {kind}, from {SEEDS_FOR_AN_INTERVAL} cohorts on.")
    if any(place.interval is None and len(place.cohorts) > 1 for place in drawn):
        sentences.append("White points are cohorts.")
    if any(place.interval is None and place.repeats for place in drawn):
        sentences.append(
            "Thin lines without caps span the smallest and the largest repeat; repeats in a process are not "
            "independent, so this is no confidence interval."
        )
    if isinstance(shown.spec, TradeoffFigure):
        sentences.append(_front_caption(shown.spec))
    if isinstance(shown.spec, LinesFigure) and (
        lost := [row for row in shown.rows if number_along(row, shown.spec.x) is None]
    ):
        sentences.append(f"Not shown, for {shown.spec.x} is no number there: {len(lost)} of {len(shown.rows)}.")
    if len(drawn) < len(places):
        sentences.append("Marked places have no number, for the reason that they name.")
    if isinstance(shown.spec, BarsFigure) and any(len(place.cohorts) < place.planned for place in drawn):
        sentences.append("At the foot of a bar stands how many of its cohorts have a number, where not all have.")
    return " ".join(sentences)


def _front_caption(spec: TradeoffFigure) -> str:
    ends = " and ".join(f"{column.better} {column.header}" for column in spec.columns)
    gate = ", among those whose gate is PASS; the others are marked" if spec.gate else ""
    return f"The grey line is the front: no configuration is better ({ends}) in both than one on it{gate}."
