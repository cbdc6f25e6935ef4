"""Tables: from a definition and cells to rows of entries, and from those to Markdown and CSV.

Markdown is for reading: units for people, rounded numbers, marks with footnotes. CSV is for computing: every digit,
the recorded units in the headers, and the state of each figure in a column of its own.
"""

import csv
import io
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from scalerlt.analysis.formatting import Scale, choose_scale, escape_markdown, format_error, format_number, one_line
from scalerlt.analysis.marks import MEASURED
from scalerlt.analysis.reading import CellResult
from scalerlt.analysis.rows import Entry, entry, group_rows, is_number, row_axes, unit_of
from scalerlt.analysis.specs import PHASES, Column, TableSpec
from scalerlt.records.base import Scalar


@dataclass(frozen=True)
class Line:
    """One row of a table: what names it, how many of its cohorts were measured, and its entries.

    Attributes:
        cohorts: (measured, planned); None in a table whose rows are not configurations.
    """

    labels: tuple[Scalar, ...]
    entries: tuple[Entry, ...]
    cohorts: tuple[int, int] | None = None


@dataclass(frozen=True)
class Table:
    """A table, ready to be written.

    Attributes:
        name: file name without its ending.
        names: headers of the labels.
        units: the recorded unit of each column.
    """

    name: str
    caption: str
    names: tuple[str, ...]
    columns: tuple[Column, ...]
    units: tuple[str, ...]
    lines: tuple[Line, ...]


def build_tables(spec: TableSpec, cells: Sequence[CellResult], swept: Sequence[str]) -> list[Table]:
    """The tables of one definition: none without a cell of its experiment, several with several kinds of device."""
    cells = [cell for cell in cells if cell.axes.get("experiment") == spec.experiment]
    if not spec.per_device:
        return [_build(spec, cells, swept, spec.columns)] if cells and _expand(spec.columns, cells) else []
    tables = []
    for device in sorted({device_of(cell) for cell in cells}):
        columns = tuple(column for column in spec.columns if column.device in (None, device))
        named = replace(spec, name=f"{spec.name}_{device}", caption=f"{spec.caption} Device: {device}.")
        tables.append(_build(named, [cell for cell in cells if device_of(cell) == device], swept, columns))
    return tables


def device_of(cell: CellResult) -> str:
    """The kind of device of a cell: cpu or cuda."""
    return str(cell.axes.get("device.type") or cell.axes.get("device") or "cpu")


def _build(spec: TableSpec, cells: list[CellResult], swept: Sequence[str], columns: Sequence[Column]) -> Table:
    columns = _expand(columns, cells)
    axes = row_axes(cells, spec.rows, swept)
    lines = []
    for row in group_rows(cells, axes):
        measured = sum(cell.state == MEASURED for cell in row.cells)
        entries = tuple(entry(row.cells, column.metric, column.over) for column in columns)
        lines.append(Line(tuple(row.labels.values()), entries, (measured, len(row.cells))))
    units = tuple(unit_of(cells, column.metric) for column in columns)
    return Table(spec.name, spec.caption, tuple(axes), tuple(columns), units, tuple(lines))


def _expand(columns: Sequence[Column], cells: Sequence[CellResult]) -> list[Column]:
    """The columns, with `name/*` replaced by the parts that any record of these cells holds."""
    recorded = {metric for cell in cells for metric in cell.metrics}
    expanded: list[Column] = []
    for column in columns:
        if not column.metric.endswith("/*"):
            expanded.append(column)
            continue
        prefix = column.metric[:-1]
        parts = [metric.removeprefix(prefix) for metric in recorded if metric.startswith(prefix)]
        parts.sort(key=lambda part: (PHASES.index(part) if part in PHASES else len(PHASES), part))
        expanded += [replace(column, metric=prefix + part, header=column.header + part) for part in parts]
    return expanded


def to_markdown(table: Table) -> str:
    """The table with its caption and footnotes, ending in a newline."""
    scales = _scales(table)
    notes: dict[str, int] = {}
    counted = any(line.cohorts for line in table.lines)
    header = [escape_markdown(name) for name in table.names] + (["n"] if counted else [])
    for column, scale in zip(table.columns, scales, strict=True):
        header.append(escape_markdown(column.header + (f" ({scale.unit})" if scale.unit else "")))
    body = []
    for line in table.lines:
        texts = [escape_markdown(label_text(label)) for label in line.labels]
        if line.cohorts is not None:
            measured, planned = line.cohorts
            texts.append(str(measured) if measured == planned else f"{measured} of {planned}")
        for column, scale, place in zip(table.columns, scales, line.entries, strict=True):
            marks = "".join(f" [{notes.setdefault(note, len(notes) + 1)}]" for note in place.notes)
            texts.append(_text(place, column, scale) + marks)
        body.append(texts)
    numeric = [False] * len(table.names) + [True] * (len(header) - len(table.names))
    rule = ["---:" if right else "---" for right in numeric]
    grid = "\n".join("| " + " | ".join(texts) + " |" for texts in [header, rule, *body])
    footnotes = "".join(f"- [{number}] {escape_markdown(note)}\n" for note, number in notes.items())
    return f"{escape_markdown(table.caption)}\n\n{grid}\n" + (f"\n{footnotes}" if footnotes else "")


def to_csv(table: Table) -> str:
    """The table as CSV: full precision; an empty value always has a state beside it that says why."""
    counted = any(line.cohorts for line in table.lines)
    header = [*table.names, *(["cohorts measured", "cohorts planned"] if counted else [])]
    for column, unit in zip(table.columns, table.units, strict=True):
        header += _csv_names(column, unit)
    if counted:
        header.append("notes")
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(header)
    for line in table.lines:
        cells: list[str] = [exact_text(label) for label in line.labels]
        cells += [str(number) for number in line.cohorts or ()]
        for column, place in zip(table.columns, line.entries, strict=True):
            cells += _csv_cells(column, place)
        if counted:
            cells.append("; ".join(dict.fromkeys(one_line(note) for place in line.entries for note in place.notes)))
        writer.writerow(cells)
    return file.getvalue()


def _csv_names(column: Column, unit: str) -> list[str]:
    unit = f" ({unit})" if unit else ""
    name = column.metric if column.over == "median" else f"{column.metric}, {column.over}"
    spread = [f"{name} minimum{unit}", f"{name} maximum{unit}", f"{name} repeats"]
    if column.form == "count":
        return [name]
    return [f"{name}{unit}", f"{name} state", *(spread if column.spread else [])]


def _csv_cells(column: Column, place: Entry) -> list[str]:
    if column.form == "count":
        return [exact_text(place.value)]
    state = place.state
    if 0 < place.measured < place.planned:
        state += f" ({place.measured} of {place.planned})"
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


def _scales(table: Table) -> list[Scale]:
    """One unit for all figures of a kind, so that the columns of a table compare."""
    values: dict[str, list[float]] = {unit: [] for unit in table.units}
    for line in table.lines:
        for unit, place in zip(table.units, line.entries, strict=True):
            if is_number(place.value):
                values[unit].append(place.value)
    chosen = {unit: choose_scale(unit, found) for unit, found in values.items()}
    return [chosen[unit] for unit in table.units]


def _text(place: Entry, column: Column, scale: Scale) -> str:
    if place.value is None:
        return escape_markdown(place.state)
    if not is_number(place.value):
        return escape_markdown(exact_text(place.value))
    match column.form:
        case "error":
            return format_error(scale.apply(place.value))
        case "one_minus":
            return format_error(1 - place.value)
        case "number" | "count":
            return format_number(scale.apply(place.value))


def plain_entries(values: Iterable[Scalar]) -> tuple[Entry, ...]:
    """The entries of a table that is not of metrics."""
    return tuple(Entry(value) for value in values)
