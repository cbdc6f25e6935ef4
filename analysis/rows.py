"""From cells to rows: which axes tell the cells of a table apart, and what stands at each place of a row.

Cells that differ only in seed, cohort or block are one row: its entries are medians over the cohorts, with their
number, or what else the definition of a column asks for. Blocks of one cohort are averaged first.
Nothing else is ever combined.
"""

import json
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal, TypeGuard

from scalerlt.analysis.bootstrap import bootstrap_interval
from scalerlt.analysis.marks import MEASURED, footnote
from scalerlt.analysis.reading import CellResult
from scalerlt.analysis.seeds import Over, averaged, over_seeds
from scalerlt.errors import UserError
from scalerlt.records.base import Scalar
from scalerlt.records.record import Metric

REPETITION = ("seed", "cohort", "block")
"""Axes whose values repeat a configuration."""
Estimate = Literal[Over, "interquartile_mean"]
"""How the cells of one row become one entry."""


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
        sources: the records behind it, as paths relative to the sweep.
        low: lower end of the interval, where the estimate has one.
        high: upper end.
        n: size of the sample behind an estimate with an interval: cohorts, seeds, or problems.
        estimator: how such an estimate was made.
        p: p-value of no difference from the baseline, corrected where the column says so.
        verdict: of a comparison with a margin.
    """

    value: Scalar
    state: str = MEASURED
    measured: int = 1
    planned: int = 1
    minimum: float | None = None
    maximum: float | None = None
    repeats: int | None = None
    notes: tuple[str, ...] = ()
    sources: tuple[str, ...] = ()
    low: float | None = None
    high: float | None = None
    n: int | None = None
    estimator: str | None = None
    p: float | None = None
    verdict: str | None = None


def row_axes(cells: Sequence[CellResult], defining: Sequence[str], swept: Sequence[str]) -> list[str]:
    """The axes that name the rows of these cells.

    The defining ones that any cell has, and the others that vary, swept or not, unless their config group's option
    already says their value: a row must not hide that it differs from the next in its model, too.
    """
    present = sorted({key for cell in cells for key in cell.axes}, key=lambda key: (key.count("."), key))
    varying = [key for key in present if key not in REPETITION and len({typed(cell, key) for cell in cells}) > 1]
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
        groups.setdefault(tuple(typed(cell, axis) for axis in axes), []).append(cell)
    ranks = [_ranks([cell.axes.get(axis) for cell in cells]) for axis in axes]
    keys = sorted(groups, key=lambda key: [rank[value] for rank, value in zip(ranks, key, strict=True)])
    return [Row({axis: groups[key][0].axes.get(axis) for axis in axes}, groups[key]) for key in keys]


def entry(
    cells: Sequence[CellResult], metric: str, estimator: Estimate = "median", over: Literal["cohort", "seed"] = "cohort"
) -> Entry:
    """What stands for a metric of one configuration's cells."""
    found: list[CellResult] = []
    missing: dict[tuple[str, str | None], list[CellResult]] = {}
    remarks: dict[tuple[str, str | None], list[CellResult]] = {}
    for cell in cells:
        if not has_number(cell, metric):
            missing.setdefault(missing_word(cell, metric), []).append(cell)
            continue
        found.append(cell)
        figure = cell.metrics[metric]
        if figure.reason or figure.value in ("FAIL", "NOT_RESOLVED"):
            remarks.setdefault((_word(figure.value), figure.reason), []).append(cell)
    planned = count_cohorts(cells)
    notes = tuple(
        footnote(word, reason, count_cohorts(some), planned)
        if planned > 1
        else footnote(word, reason, len(some), len(cells), "blocks")
        for (word, reason), some in [*missing.items(), *remarks.items()]
    )
    if not found:
        words = "/".join(sorted({word for word, _ in missing}))
        return Entry(None, words, 0, planned, notes=notes, sources=record_paths(cells))
    sample = sample_of(found, metric, over)
    figures = [cell.metrics[metric] for cell in found]
    value, said, more = _estimate(estimator, sample, [figure.value for figure in figures])
    if value is None:
        notes = (*notes, footnote("not_measured", said))
        return Entry(None, "not_measured", 0, planned, notes=notes, sources=record_paths(cells))
    repeats = sum(figure.n or 1 for figure in figures)
    low, high = _range(figures) if repeats > 1 else (None, None)
    return Entry(
        value,
        measured=count_cohorts(found),
        planned=planned,
        minimum=low,
        maximum=high,
        repeats=repeats,
        notes=(*notes, footnote("note", said)) if said else notes,
        sources=record_paths(found),
        **more,
    )


def _estimate(
    estimator: Estimate, sample: Sequence[tuple[Scalar, float]], values: Sequence[Scalar]
) -> tuple[Scalar, str | None, dict[str, Any]]:
    """The value, what has to be said about it, and the further attributes of its entry."""
    if not sample:
        return _word_of(values), None, {}
    if estimator == "interquartile_mean":
        found = bootstrap_interval([averaged(sample)], statistic=estimator)
        return found.estimate, found.note, {"low": found.low, "high": found.high, "n": found.n, "estimator": estimator}
    return *over_seeds(estimator, sample), {}


def sample_of(cells: Sequence[CellResult], metric: str, over: Literal["cohort", "seed"]) -> list[tuple[Scalar, float]]:
    """Each number and what it is a draw of: its seed, or its cohort, of which the blocks are averaged.

    Empty where a figure is no number.
    """
    values = [(cell, value) for cell in cells if is_number(value := cell.metrics[metric].value)]
    if len(values) < len(cells):
        return []
    if over == "seed":
        return [(cell.axes.get("seed"), value) for cell, value in values]
    cohorts = dict.fromkeys(cohort_of(cell) for cell, _ in values)
    return list(zip(cohorts, averaged([(cohort_of(cell), value) for cell, value in values]), strict=True))


def cohort_of(cell: CellResult) -> str:
    """The cohort of a cell: one seed in one cohort."""
    return _cohort(cell.axes.get("seed"), cell.axes.get("cohort"))


def count_cohorts(cells: Iterable[CellResult]) -> int:
    """How many cohorts these cells are of."""
    return len(set(map(cohort_of, cells)))


@lru_cache(maxsize=2**16, typed=True)
def _cohort(seed: Scalar, cohort: Scalar) -> str:
    return f"seed {json.dumps(seed)}, cohort {json.dumps(cohort)}"


def record_paths(cells: Sequence[CellResult]) -> tuple[str, ...]:
    """The records that count for these cells, relative to the sweep."""
    return tuple(cell.file for cell in cells if cell.file is not None)


def unit_of(cells: Sequence[CellResult], metric: str) -> str:
    """The unit of a metric in these cells. Raises UserError when two cells recorded it in different units."""
    seen: dict[str, str] = {}
    for cell in cells:
        figure = cell.metrics.get(metric)
        if figure is not None and figure.unit not in seen and has_number(cell, metric):
            seen[figure.unit] = cell.cell_id
    if len(seen) > 1:
        (one, first), (other, second) = sorted(seen.items())[:2]
        raise UserError(
            f"metric {metric} is in {one!r} in cell {first} and in {other!r} in cell {second}; "
            "figures in different units cannot stand in one table"
        )
    return next(iter(seen), "")


def has_number(cell: CellResult, metric: str) -> bool:
    """Whether a cell is measured, and the metric too. (It may be a word, such as a verdict.)"""
    if cell.state != MEASURED:
        return False
    figure = cell.metrics.get(metric)
    return figure is not None and figure.value is not None and figure.status == MEASURED


def missing_word(cell: CellResult, metric: str) -> tuple[str, str | None]:
    """The word that stands for a metric that has no number, and the reason."""
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


def _word_of(values: Sequence[Scalar]) -> Scalar:
    """Of words the word, or how often each occurs."""
    counts = Counter(str(value) for value in values)
    if len(counts) == 1:
        return values[0]
    return ", ".join(f"{count} {word}" for word, count in sorted(counts.items()))


def typed(cell: CellResult, axis: str) -> str:
    """A value as text that keeps 1, 1.0, True and "1" apart, and treats a missing key as null."""
    return _as_text(cell.axes.get(axis))


_as_text = lru_cache(maxsize=2**16, typed=True)(json.dumps)
"""Of ten thousand cells the same few values are asked for millions of times."""


def _determined(cells: Sequence[CellResult], key: str, by: str) -> bool:
    """Whether each value of the axis `by` leaves one value for `key`."""
    found: dict[str, set[str]] = {}
    for cell in cells:
        found.setdefault(typed(cell, by), set()).add(typed(cell, key))
    return all(len(values) == 1 for values in found.values())


def _ranks(values: Sequence[Scalar]) -> dict[str, int]:
    distinct = list({_as_text(value): value for value in values}.values())
    named = [value for value in distinct if value is not None]
    numbers = [value for value in named if is_number(value)]
    if len(numbers) == len(named):
        named = sorted(numbers)
    ordered = [*named, *(value for value in distinct if value is None)]
    return {_as_text(value): rank for rank, value in enumerate(ordered)}
