"""Tables: from a definition and cells to rows of entries, and from those to Markdown and CSV.

Markdown is for reading: units for people, rounded numbers, marks with footnotes. CSV is for computing: every digit,
the recorded units in the headers, and the state of each figure in a column of its own. LaTeX has a module of its own.
"""

import csv
import io
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import cast

from scalerlt.analysis.comparing import Baseline, comparison, corrected, explained
from scalerlt.analysis.evidence import device_of, evidence
from scalerlt.analysis.formatting import (
    SCALES,
    Scale,
    choose_scale,
    escape_markdown,
    format_error,
    format_number,
    one_line,
)
from scalerlt.analysis.marks import MEASURED, footnote
from scalerlt.analysis.not_fallen import not_fallen
from scalerlt.analysis.phases import in_order
from scalerlt.analysis.reading import CellResult
from scalerlt.analysis.rows import Entry, Estimate, count_cohorts, entry, group_rows, is_number, row_axes, unit_of
from scalerlt.analysis.table_spec import RATIOS, Column, TableSpec
from scalerlt.errors import UserError
from scalerlt.records.base import Scalar

INTERVAL_DIGITS = 3
"""Of an estimate that stands with its interval."""


@dataclass(frozen=True)
class Line:
    """One row of a table: what names it, how many of its cohorts were measured, and its entries.

    Attributes:
        cohorts: (measured, planned); None in a table whose rows are not configurations.
        evidence: the kinds of machine behind its records; None in such a table.
        notes: footnotes of all its figures: the verdicts of the table's gates that are not PASS.
    """

    labels: tuple[Scalar, ...]
    entries: tuple[Entry, ...]
    cohorts: tuple[int, int] | None = None
    evidence: str | None = None
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Table:
    """A table, ready to be written.

    Attributes:
        name: file name without its ending.
        names: headers of the labels.
        units: the recorded unit of each column.
        label: what LaTeX refers to it by; `tab:NAME` if it is None.
        records: what its rows are made of where their entries do not say it, relative to the sweep.
    """

    name: str
    caption: str
    names: tuple[str, ...]
    columns: tuple[Column, ...]
    units: tuple[str, ...]
    lines: tuple[Line, ...]
    label: str | None = None
    records: tuple[str, ...] = ()

    @property
    def sources(self) -> list[str]:
        """The records behind it, relative to the sweep."""
        behind = {source for line in self.lines for place in line.entries for source in place.sources}
        return sorted(behind.union(self.records))

    @cached_property
    def counted(self) -> bool:
        """Whether its rows are configurations, with a number of cohorts."""
        return any(line.cohorts for line in self.lines)


def build_all(specs: Iterable[TableSpec], cells: Sequence[CellResult], swept: Sequence[str]) -> list[Table]:
    """The tables of all definitions, in their order. Raises UserError where two would have one name."""
    tables = [table for spec in specs for table in build_tables(spec, cells, swept)]
    names = [table.name.lower() for table in tables]
    if twice := next((name for name in names if names.count(name) > 1), None):
        raise UserError(f"two tables are called {twice} (one of them with its device); rename the definition of one")
    return tables


def build_tables(spec: TableSpec, cells: Sequence[CellResult], swept: Sequence[str]) -> list[Table]:
    """The tables of one definition: none without a cell of its experiments, several with several kinds of device."""
    cells = [
        cell
        for cell in cells
        if cell.axes.get("experiment") in spec.experiment and (not spec.sweeps or cell.sweep in spec.sweeps)
    ]
    if not spec.per_device:
        return [_build(spec, cells, swept, spec.columns)] if cells and _expand(spec.columns, cells) else []
    tables = []
    for device in sorted({device_of(cell) for cell in cells}):
        columns = tuple(column for column in spec.columns if column.device in (None, device))
        named = {"name": f"{spec.name}_{device}", "caption": f"{spec.caption} Device: {device}."}
        if spec.label is not None:
            named["label"] = f"{spec.label}_{device}"
        there = [cell for cell in cells if device_of(cell) == device]
        tables.append(_build(spec.model_copy(update=named), there, swept, columns))
    return tables


def _build(spec: TableSpec, cells: list[CellResult], swept: Sequence[str], columns: Sequence[Column]) -> Table:
    axes = row_axes(cells, spec.rows, swept)
    rows = group_rows(cells, axes)
    baseline = None if spec.baseline is None else Baseline(spec.baseline, cells)
    columns = _expand(columns, cells)
    if baseline is not None and all(map(baseline.holds, cells)):
        columns = [column for column in columns if not column.compares]  # there is nothing else to compare with it
    units = tuple(_unit(cells, column) for column in columns)
    by_column = [_entries([row.cells for row in rows], column, baseline) for column in columns]
    lines = tuple(
        Line(
            tuple(row.labels.values()),
            entries,
            _cohorts(row.cells),
            evidence(row.cells),
            _gate_notes(row.cells, spec.gates),
        )
        for row, entries in zip(rows, zip(*by_column, strict=True), strict=True)
    )
    caption = spec.caption + explained(columns, baseline)
    return Table(spec.name, caption, tuple(axes), tuple(columns), units, lines, spec.label)


def _entries(rows: Sequence[Sequence[CellResult]], column: Column, baseline: Baseline | None) -> list[Entry]:
    if column.compares:
        assert baseline is not None, "a definition with a comparing column has a baseline"
        return corrected(column, [comparison(cells, column, baseline) for cells in rows])
    places = [entry(cells, column.metric, cast(Estimate, column.estimator), column.over) for cells in rows]
    if column.follows is None or baseline is None:
        return places
    said = [not_fallen(cells, column, baseline) for cells in rows]
    return [
        place if note is None else replace(place, notes=(*place.notes, note))
        for place, note in zip(places, said, strict=True)
    ]


def _unit(cells: Sequence[CellResult], column: Column) -> str:
    unit = unit_of(cells, column.metric)
    if column.compares:
        return "" if column.estimator in RATIOS else "point"
    return unit


def _cohorts(cells: Sequence[CellResult]) -> tuple[int, int]:
    return count_cohorts(cell for cell in cells if cell.state == MEASURED), count_cohorts(cells)


def _gate_notes(cells: Sequence[CellResult], gates: Sequence[str]) -> tuple[str, ...]:
    notes: dict[str, None] = {}
    for gate in gates:
        place = entry(cells, gate)
        if place.value is not None and place.value != "PASS":
            notes |= dict.fromkeys(place.notes or (footnote(str(place.value), None),))
    return tuple(notes)


def _expand(columns: Sequence[Column], cells: Sequence[CellResult]) -> list[Column]:
    """The columns, with `name/*` replaced by the parts that any record of these cells holds."""
    recorded = {metric for cell in cells for metric in cell.metrics}
    expanded: list[Column] = []
    for column in columns:
        if not column.metric.endswith("/*"):
            expanded.append(column)
            continue
        prefix = column.metric[:-1]
        parts = in_order({metric.removeprefix(prefix) for metric in recorded if metric.startswith(prefix)})
        expanded += [
            column.model_copy(update={"metric": prefix + part, "header": column.header + part}) for part in parts
        ]
    return expanded


def to_markdown(table: Table) -> str:
    """The table with its caption and footnotes, ending in a newline."""
    scales = scales_of(table)
    notes: dict[str, int] = {}

    def marks(found: Iterable[str]) -> str:
        return "".join(f" [{notes.setdefault(note, len(notes) + 1)}]" for note in found)

    header = [*map(escape_markdown, headers(table, scales))]
    body = []
    for line in table.lines:
        texts = [escape_markdown(label_text(label)) for label in line.labels]
        if line.cohorts is not None:
            texts.append(cohorts_text(line.cohorts) + marks(line.notes))
        texts += [
            escape_markdown(entry_text(place, column, scale)) + marks(place.notes)
            for column, scale, place in zip(table.columns, scales, line.entries, strict=True)
        ]
        if line.evidence is not None:
            texts.append(escape_markdown(line.evidence))
        body.append(texts)
    rule = ["---"] * len(table.names)
    rule += ["---:"] * (len(header) - len(rule) - table.counted) + ["---"] * table.counted
    grid = "\n".join("| " + " | ".join(texts) + " |" for texts in [header, rule, *body])
    footnotes = "".join(f"- [{number}] {escape_markdown(note)}\n" for note, number in notes.items())
    return f"{escape_markdown(table.caption)}\n\n{grid}\n" + (f"\n{footnotes}" if footnotes else "")


def headers(table: Table, scales: Sequence[Scale]) -> list[str]:
    """What stands above each place of a row: the names, n, the figures with their units, and the evidence."""
    figures = [
        column.header + (f" ({scale.unit})" if scale.unit else "")
        for column, scale in zip(table.columns, scales, strict=True)
    ]
    return [*table.names, *(["n"] if table.counted else []), *figures, *(["evidence"] if table.counted else [])]


def cohorts_text(cohorts: tuple[int, int]) -> str:
    """How many cohorts were measured, and of how many if not of all."""
    measured, planned = cohorts
    return str(measured) if measured == planned else f"{measured} of {planned}"


def to_csv(table: Table) -> str:
    """The table as CSV: full precision; an empty value always has a state beside it that says why."""
    counted = table.counted
    header = [*table.names, *(["cohorts measured", "cohorts planned"] if counted else [])]
    for column, unit in zip(table.columns, table.units, strict=True):
        header += _csv_names(column, unit)
    if counted:
        header += ["evidence", "notes"]
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(header)
    for line in table.lines:
        cells: list[str] = [exact_text(label) for label in line.labels]
        cells += [str(number) for number in line.cohorts or ()]
        for column, place in zip(table.columns, line.entries, strict=True):
            cells += _csv_cells(column, place)
        if counted:
            notes = [*line.notes, *(note for place in line.entries for note in place.notes)]
            cells += [line.evidence or "", "; ".join(dict.fromkeys(map(one_line, notes)))]
        writer.writerow(cells)
    return file.getvalue()


def _csv_names(column: Column, unit: str) -> list[str]:
    unit = f" ({unit})" if unit else ""
    name = column.metric if column.estimator == "median" else f"{column.metric}, {column.estimator}"
    if column.estimator in RATIOS:
        divided_by = f" / {column.per}" if column.per else ""
        name = f"{column.metric} {column.ratio or 'row/baseline'}{divided_by}, {column.estimator}"
    if column.form == "count":
        return [name]
    if column.has_interval:
        corrected_by = f", {column.correction}" if column.correction else ""
        return [
            *(f"{name} {part}{unit}" for part in ("estimate", "low", "high")),
            *(f"{name} {part}" for part in ("n", "estimator", "state")),
            *([f"{name} p{corrected_by}"] if column.compares and not column.per else []),
            *([f"{name} verdict"] if column.estimator == "paired_accuracy" else []),
        ]
    spread = [f"{name} minimum{unit}", f"{name} maximum{unit}", f"{name} repeats"]
    return [f"{name}{unit}", f"{name} state", *(spread if column.spread else [])]


def _csv_cells(column: Column, place: Entry) -> list[str]:
    if column.form == "count":
        return [exact_text(place.value)]
    state = place.state
    if 0 < place.measured < place.planned:
        state += f" ({place.measured} of {place.planned})"
    if column.has_interval:
        return [
            *map(exact_text, (place.value, place.low, place.high, place.n, place.estimator, state)),
            *([exact_text(place.p)] if column.compares and not column.per else []),
            *([exact_text(place.verdict)] if column.estimator == "paired_accuracy" else []),
        ]
    spread = [exact_text(value) for value in (place.minimum, place.maximum, place.repeats)]
    return [exact_text(place.value), state, *(spread if column.spread else [])]


def exact_text(value: Scalar) -> str:
    """A value with every digit; nothing for None."""
    if value is None:
        return ""
    return str(value).lower() if isinstance(value, bool) else str(value)


def label_text(value: Scalar) -> str:
    """The value of an axis as people read it; a dash where the axis has none."""
    return "–" if value is None else exact_text(value)


def scales_of(table: Table) -> list[Scale]:
    """The unit of each column: what its definition asks for, else one for all figures of a kind, so that they compare.

    Raises:
        UserError: a definition asks for a unit that the recorded one does not have.
    """
    values: dict[str, list[float]] = {unit: [] for unit in table.units}
    for line in table.lines:
        for column, unit, place in zip(table.columns, table.units, line.entries, strict=True):
            if is_number(place.value) and column.unit is None:
                values[unit].append(place.value)
    chosen = {unit: choose_scale(unit, found) for unit, found in values.items()}
    return [
        chosen[unit] if column.unit is None else _asked_for(table.name, column, unit)
        for column, unit in zip(table.columns, table.units, strict=True)
    ]


def _asked_for(name: str, column: Column, recorded: str) -> Scale:
    assert column.unit is not None
    if column.scale is not None or not recorded:
        return Scale(column.unit, 1.0 if column.scale is None else column.scale)
    known = {step.unit: step for step in SCALES.get(recorded, [])}
    if column.unit not in known:
        there = f"it has {', '.join(known)}" if known else "give the column a scale"
        raise UserError(
            f"table {name}: column {column.header!r} is to be in {column.unit}, but {column.metric} is recorded in "
            f"{recorded}; {there}"
        )
    return known[column.unit]


def entry_text(place: Entry, column: Column, scale: Scale) -> str:
    """What people read at one place of a table, without its marks."""
    return number_text(place, column, scale) + after_number(place, column, scale)


def number_text(place: Entry, column: Column, scale: Scale) -> str:
    """The number (or word) of an entry, without its interval."""
    if place.value is None:
        return place.state
    if not is_number(place.value):
        return exact_text(place.value)
    match column.form:
        case "error":
            return format_error(scale.apply(place.value))
        case "one_minus":
            return format_error(1 - place.value)
        case "number" | "count":
            number = scale.apply(place.value)
            return format_number(number, INTERVAL_DIGITS) if column.has_interval else format_number(number)


def after_number(place: Entry, column: Column, scale: Scale) -> str:
    """What follows the number of an estimate: interval, size of sample, and p-value and verdict where asked for."""
    if place.value is None or not column.has_interval:
        return ""
    text = ""
    if place.low is not None and place.high is not None:
        low, high = (format_number(scale.apply(end), INTERVAL_DIGITS) for end in (place.low, place.high))
        text = f" [{low}, {high}]"
    text += f", n={place.n}"
    if column.correction is not None and place.p is not None:
        text += f", p={format_number(place.p, 2)}"
    return text + (f", {place.verdict}" if place.verdict else "")


def plain_entries(values: Iterable[Scalar]) -> tuple[Entry, ...]:
    """The entries of a table that is not of metrics."""
    return tuple(Entry(value) for value in values)
