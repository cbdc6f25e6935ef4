"""From cells to rows: which axes tell the cells of a table apart, and what stands at each place of a row.

Cells that differ only in seed or cohort are one row: its entries are medians over the cohorts, with their number, or
what else the definition of a column asks for.
Nothing else is ever combined.
"""

import json
import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import TypeGuard

from scalerlt.analysis.marks import MEASURED, footnote
from scalerlt.analysis.reading import CellResult
from scalerlt.analysis.seeds import Over, over_seeds
from scalerlt.errors import UserError
from scalerlt.records.base import Scalar
from scalerlt.records.record import Metric

REPETITION = ("seed", "cohort")
"""Axes whose values repeat a configuration."""


@dataclass(frozen=True)
class Row:
    """The cells of one configuration, and the values of the axes that name it."""

    labels: dict[str, Scalar]
    cells: list[CellResult]


@dataclass(frozen=True)
class Entry:
    """One place of a table: a number (or word), or the state that stands where there is none.

    Attributes:
        value: the cohorts' median, or what the column asks for instead; None where there is none.
        state: `measured`, or the states of the cells that have no number ("oom", "killed/oom").
        measured: number of cohorts with a number.
        planned: number of cohorts planned.
        minimum: smallest of all repeats in all cohorts; None where there is only one, or the figure is a word.
        maximum: largest of all repeats in all cohorts.
        repeats: number of repeats in all cohorts.
        notes: the footnotes of the entry.
    """

    value: Scalar
    state: str = MEASURED
    measured: int = 1
    planned: int = 1
    minimum: float | None = None
    maximum: float | None = None
    repeats: int | None = None
    notes: tuple[str, ...] = ()


def row_axes(cells: Sequence[CellResult], defining: Sequence[str], swept: Sequence[str]) -> list[str]:
    """The axes that name the rows of these cells.

    The defining ones that any cell has, and the others that vary, swept or not, unless their config group's option
    already says their value: a row must not hide that it differs from the next in its model, too.
    """
    present = sorted({key for cell in cells for key in cell.axes}, key=lambda key: (key.count("."), key))
    varying = [key for key in present if key not in REPETITION and len({_typed(cell, key) for cell in cells}) > 1]
    axes = [key for key in defining if key in present]
    ordered = [key for key in swept if key in varying] + [key for key in varying if key not in swept]
    for key in ordered:
        group = key.partition(".")[0]
        told = group != key and group in axes and _determined(cells, key, group)
        if key not in axes and not told:
            axes.append(key)
    return axes


def group_rows(cells: Sequence[CellResult], axes: Sequence[str]) -> list[Row]:
    """One row per combination of the axes' values, in nested order of the axes.

    Numbers are in numeric order, other values in the order in which the plan names them first, missing ones last.
    """
    groups: dict[tuple[str, ...], list[CellResult]] = {}
    for cell in cells:
        groups.setdefault(tuple(_typed(cell, axis) for axis in axes), []).append(cell)
    ranks = [_ranks([cell.axes.get(axis) for cell in cells]) for axis in axes]
    keys = sorted(groups, key=lambda key: [rank[value] for rank, value in zip(ranks, key, strict=True)])
    return [Row({axis: groups[key][0].axes.get(axis) for axis in axes}, groups[key]) for key in keys]


def entry(cells: Sequence[CellResult], metric: str, over: Over = "median") -> Entry:
    """What stands for a metric of one configuration's cells."""
    found = [cell.metrics[metric] for cell in cells if _has_number(cell, metric)]
    missing = Counter(_missing(cell, metric) for cell in cells if not _has_number(cell, metric))
    remarks = Counter((_word(figure.value), figure.reason) for figure in found if figure.reason)
    notes = tuple(
        footnote(word, reason, count, len(cells)) for (word, reason), count in [*missing.items(), *remarks.items()]
    )
    if not found:
        words = "/".join(sorted({word for word, _ in missing}))
        return Entry(None, words, 0, len(cells), notes=notes)
    numbers = [(cell.axes.get("seed"), value) for cell in cells if is_number(value := _value(cell, metric))]
    if over == "median" or not numbers:
        middle: Scalar = _middle([figure.value for figure in found])
    else:
        middle, said = over_seeds(over, numbers)
        if middle is None:
            return Entry(None, "not_measured", 0, len(cells), notes=(*notes, footnote("not_measured", said)))
        notes += (footnote("note", said),) if said else ()
    repeats = sum(figure.n or 1 for figure in found)
    low, high = _range(found) if repeats > 1 else (None, None)
    return Entry(
        middle,
        measured=len(found),
        planned=len(cells),
        minimum=low,
        maximum=high,
        repeats=repeats,
        notes=notes,
    )


def unit_of(cells: Sequence[CellResult], metric: str) -> str:
    """The unit of a metric in these cells. Raises UserError when two cells recorded it in different units."""
    seen: dict[str, str] = {}
    for cell in cells:
        if _has_number(cell, metric):
            seen.setdefault(cell.metrics[metric].unit, cell.cell_id)
    if len(seen) > 1:
        (one, first), (other, second) = sorted(seen.items())[:2]
        raise UserError(
            f"metric {metric} is in {one!r} in cell {first} and in {other!r} in cell {second}; "
            "figures in different units cannot stand in one table"
        )
    return next(iter(seen), "")


def _has_number(cell: CellResult, metric: str) -> bool:
    figure = cell.metrics.get(metric)
    measured = figure is not None and figure.status == MEASURED and figure.value is not None
    return measured and cell.state == MEASURED


def _value(cell: CellResult, metric: str) -> Scalar:
    return cell.metrics[metric].value if _has_number(cell, metric) else None


def _missing(cell: CellResult, metric: str) -> tuple[str, str | None]:
    """The word and the reason for a metric that has no number."""
    if cell.state != MEASURED:
        return cell.state, cell.reason
    figure = cell.metrics.get(metric)
    if figure is None:
        return "not_measured", "the record holds no such figure"
    return (figure.status if figure.status != MEASURED else "not_measured"), figure.reason


def _range(figures: list[Metric]) -> tuple[float | None, float | None]:
    """Smallest and largest repeat of all figures."""
    ends: list[float] = []
    for figure in figures:
        if figure.spread is not None:
            ends += [figure.spread.minimum, figure.spread.maximum]
        elif is_number(figure.value):
            ends.append(figure.value)
    return (min(ends), max(ends)) if ends else (None, None)


def _word(value: Scalar) -> str:
    return value if isinstance(value, str) else "note"


def is_number(value: Scalar) -> TypeGuard[int | float]:
    """Whether a value is a number (true and false are not)."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def _middle(values: list[Scalar]) -> Scalar:
    """The median of numbers, NaN if one of them is; of words the word, or how often each occurs."""
    numbers = [value for value in values if is_number(value)]
    if len(numbers) == len(values):
        return math.nan if any(math.isnan(number) for number in numbers) else median(numbers)
    counts = Counter(str(value) for value in values)
    if len(counts) == 1:
        return values[0]
    return ", ".join(f"{count} {word}" for word, count in sorted(counts.items()))


def _typed(cell: CellResult, axis: str) -> str:
    """A value as text that keeps 1, 1.0, True and "1" apart, and treats a missing key as null."""
    return json.dumps(cell.axes.get(axis))


def _determined(cells: Sequence[CellResult], key: str, by: str) -> bool:
    """Whether each value of the axis `by` leaves one value for `key`."""
    found: dict[str, set[str]] = {}
    for cell in cells:
        found.setdefault(_typed(cell, by), set()).add(_typed(cell, key))
    return all(len(values) == 1 for values in found.values())


def _ranks(values: Sequence[Scalar]) -> dict[str, int]:
    distinct = list({json.dumps(value): value for value in values}.values())
    named = [value for value in distinct if value is not None]
    numbers = [value for value in named if is_number(value)]
    if len(numbers) == len(named):
        named = sorted(numbers)
    ordered = [*named, *(value for value in distinct if value is None)]
    return {json.dumps(value): rank for rank, value in enumerate(ordered)}
