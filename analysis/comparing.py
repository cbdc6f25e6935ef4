"""Comparing columns: a row against its baseline, cohort by cohort and block by block, or problem by problem."""

import json
import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import cast

from scalerlt.analysis.accuracy import paired_accuracy, paired_avg_at_k
from scalerlt.analysis.evidence import gpus_of, processor_of, revision_of
from scalerlt.analysis.marks import footnote
from scalerlt.analysis.multiple import holm
from scalerlt.analysis.ratios import RatioEstimator, paired_ratio
from scalerlt.analysis.reading import CellResult
from scalerlt.analysis.rows import (
    REPETITION,
    Entry,
    cohort_of,
    count_cohorts,
    entry,
    has_number,
    is_number,
    record_paths,
    typed,
)
from scalerlt.analysis.table_spec import RATIOS, Column
from scalerlt.records.base import Scalar
from scalerlt.records.record import Record


class Baseline:
    """The arm that the rows of a table are compared with.

    A row's baseline are the cells that agree with it in all axes except the arm's own, and seed, cohort and block. Of
    the axes below the arm's (`rollout.schedule` is below `rollout`), too, all have to agree but those that the option
    determines, of which each option has one value, and those that one of the two options does not have.
    """

    def __init__(self, arm: Mapping[str, Scalar], cells: Sequence[CellResult]) -> None:
        """The baseline among the cells of a table."""
        self.arm = arm
        self.cells = [cell for cell in cells if self.holds(cell)]
        self.partners: dict[frozenset[str], dict[str, list[CellResult]]] = {}
        self.below: dict[str, dict[str, set[str]]] = {}
        """Of each axis below one of the arm's: the options that have it, and the values it has with each."""
        for cell in cells:
            for key in cell.axes:
                if (axis := self._above(key)) is not None:
                    self.below.setdefault(key, {}).setdefault(typed(cell, axis), set()).add(typed(cell, key))

    def __str__(self) -> str:
        return " ".join(f"{axis}={'null' if value is None else value}" for axis, value in self.arm.items())

    def holds(self, cell: CellResult) -> bool:
        """Whether a cell is of this arm."""
        return all(typed(cell, axis) == json.dumps(value) for axis, value in self.arm.items())

    def of(self, cell: CellResult) -> list[CellResult]:
        """The cells that a cell's row is compared with."""
        free = self._free(cell)
        if free not in self.partners:
            partners = self.partners.setdefault(free, {})
            for one in self.cells:
                partners.setdefault(_beside(one, free), []).append(one)
        return self.partners[free].get(_beside(cell, free), [])

    def _above(self, key: str) -> str | None:
        """The axis of the arm that an axis is below."""
        return next((axis for axis in self.arm if key.startswith(f"{axis}.")), None)

    def _free(self, cell: CellResult) -> frozenset[str]:
        """The axes in which a cell may differ from its baseline."""
        free = {*REPETITION, *self.arm}
        for key, options in self.below.items():
            axis = self._above(key)
            assert axis is not None
            determined = all(len(values) == 1 for values in options.values())
            if determined or not {typed(cell, axis), json.dumps(self.arm[axis])} <= options.keys():
                free.add(key)
        return frozenset(free)


def _beside(cell: CellResult, free: frozenset[str]) -> str:
    """What tells a cell apart beside these axes, as text."""
    return json.dumps({key: value for key, value in sorted(cell.axes.items()) if key not in free})


def comparison(cells: Sequence[CellResult], column: Column, baseline: Baseline) -> Entry:
    """What stands in a comparing column for the cells of one row."""
    own = entry(cells, column.metric)
    if own.value is None:
        return own
    if baseline.holds(cells[0]):
        note = footnote("baseline", f"{baseline} is what the other rows are compared with")
        return Entry(None, "baseline", 0, own.planned, notes=(note,), sources=own.sources)
    others = baseline.of(cells[0])
    if not others:
        reason = f"no cell of this table has {baseline} and is otherwise as this row"
        return replace(_nothing(reason), planned=own.planned, sources=own.sources)
    if several := _several(others) or _several(cells):
        found = _nothing(f"{several}, so there is no telling which to compare with which ({baseline})")
        return replace(found, planned=own.planned, sources=own.sources)
    theirs = entry(others, column.metric)
    if theirs.value is None:
        notes = tuple(f"not_measured: of the baseline, {note}" for note in theirs.notes)
        return Entry(None, "not_measured", 0, own.planned, notes=notes, sources=own.sources + theirs.sources)
    compare = _ratio if column.estimator in RATIOS else _accuracy
    found = compare(cells, others, column)
    if column.per is not None:
        found = _divided(found, cells, column.per)
    return replace(found, planned=own.planned, sources=record_paths([*cells, *others]))


def _divided(found: Entry, cells: Sequence[CellResult], per: str) -> Entry:
    """A ratio and its interval as shares of a metric that is the same in all cells of the row."""
    if not is_number(found.value):
        return found
    own = entry(cells, per)
    if not is_number(own.value):
        return _nothing(f"the row has no number for {per}", *found.notes, *own.notes)
    values = [value for cell in cells if (value := _number(cell, per)) is not None]
    if not 0 < min(values) == max(values) < math.inf:
        return _nothing(f"{per} of the row is not one number above 0", *found.notes)
    low, high = (None if end is None else end / own.value for end in (found.low, found.high))
    return replace(found, value=found.value / own.value, low=low, high=high, p=None)


def _nothing(reason: str | None, *notes: str) -> Entry:
    return Entry(None, "not_measured", 0, notes=(*notes, footnote("not_measured", reason)))


def _several(cells: Sequence[CellResult]) -> str | None:
    """That cells of one arm stand in the same seed, cohort and block, and what they differ in; None if none do."""
    most = max(Counter(map(_place, cells)).values())
    if most == 1:
        return None
    keys = sorted({key for cell in cells for key in cell.axes if key not in REPETITION})
    apart = [key for key in keys if len({typed(cell, key) for cell in cells}) > 1]
    return f"{most} cells of one arm are of one seed, cohort and block" + (
        f", apart in {', '.join(apart)}" if apart else ""
    )


def corrected(column: Column, entries: Sequence[Entry]) -> list[Entry]:
    """The entries of a column, one per row, with their p-values corrected for their number if the column says so."""
    if column.correction is None:
        return list(entries)
    return [replace(place, p=p) for place, p in zip(entries, holm([place.p for place in entries]), strict=True)]


_EXPLAINED = {
    "geometric_mean_of_cohorts": "geometric mean of the cohorts' ratios",
    "geometric_mean_of_cohort_means": "geometric mean of the ratios of the cohorts' means",
    "matched_pair_mean": "mean of the matched ratios",
}


def explained(columns: Sequence[Column], baseline: Baseline | None) -> str:
    """The sentences of a caption that say how the estimates with an interval were made; empty where there are none."""
    headers: dict[str, list[str]] = {}
    for column in columns:
        if column.estimator in RATIOS:
            way = f"ratio of {baseline} to the row" if column.ratio == "baseline/row" else f"ratio to {baseline}"
            interval = "95 % Student t interval over cohorts"
            divided = f", both divided by {column.per} of the row" if column.per else ""
            text = f"{way}, paired by cohort: {_EXPLAINED[column.estimator]} with its {interval}{divided}"
        elif column.estimator == "paired_accuracy":
            text = f"difference to {baseline} over the same problems with its 95 % interval, and what it says"
        elif column.has_interval:
            text = f"{column.estimator.replace('_', ' ')} with its 95 % percentile bootstrap interval"
        else:
            continue
        corrected_by = "; p-values corrected by Holm's method" if column.correction else ""
        headers.setdefault(text + corrected_by, []).append(column.header)
    return "".join(f" Column {', '.join(names)}: {text}." for text, names in headers.items())


@dataclass(frozen=True)
class _Pairs:
    """The figures of two arms in the same cohorts and blocks, and what has to be said about the others."""

    ours: list[list[float]]
    theirs: list[list[float]]
    apart: bool
    notes: tuple[str, ...]


def _ratio(cells: Sequence[CellResult], others: Sequence[CellResult], column: Column) -> Entry:
    pairs = _pairs(cells, others, column.metric)
    if not pairs.ours:
        return _nothing("no cohort has a number both of its own and of the baseline", *pairs.notes)
    arms = (pairs.theirs, pairs.ours) if column.ratio == "baseline/row" else (pairs.ours, pairs.theirs)
    found = paired_ratio(*arms, estimator=cast(RatioEstimator, column.estimator))
    if found.estimate is None:
        return _nothing(found.note, *pairs.notes)
    if pairs.apart:
        unpaired = f"{found.estimator}, unpaired"
        return Entry(found.estimate, measured=found.n, notes=pairs.notes, n=found.n, estimator=unpaired)
    return Entry(
        found.estimate,
        measured=found.n,
        notes=(*pairs.notes, footnote("note", found.note)) if found.note and found.n > 1 else pairs.notes,
        low=found.low,
        high=found.high,
        n=found.n,
        estimator=found.estimator,
        p=found.p,
    )


def _pairs(cells: Sequence[CellResult], others: Sequence[CellResult], metric: str) -> _Pairs:
    """The pairs of cells by cohort: of the cohorts that ran on one host, of the rest only where there are none such."""
    partners = {_place(cell): cell for cell in others if _number(cell, metric) is not None}
    own = [cell for cell in cells if _number(cell, metric) is not None]
    cohorts: dict[str, list[tuple[CellResult, CellResult]]] = {}
    for cell in own:
        if (partner := partners.get(_place(cell))) is not None:
            cohorts.setdefault(cohort_of(cell), []).append((cell, partner))
    alone = count_cohorts(cell for cell in own if _place(cell) not in partners)
    notes = [f"{alone} of {count_cohorts(own)} cohorts: the baseline has no number there"] if alone else []
    hosts = {cohort: {host for pair in pairs for host in map(_host, pair)} for cohort, pairs in cohorts.items()}
    apart = [cohort for cohort in cohorts if len(hosts[cohort]) > 1]
    together = [cohort for cohort in cohorts if cohort not in apart]
    if apart:
        where = ", ".join(sorted({host for cohort in apart for host in hosts[cohort]}))
        what = "left out" if together else "so the ratio is unpaired and has no interval"
        notes.append(
            f"in {len(apart)} of {len(cohorts)} cohorts row and baseline ran on different hosts ({where}): {what}"
        )
    used = [cohorts[cohort] for cohort in together or apart]
    return _Pairs(
        ours=[[_sure(cell, metric) for cell, _ in pairs] for pairs in used],
        theirs=[[_sure(other, metric) for _, other in pairs] for pairs in used],
        apart=bool(apart) and not together,
        notes=(*notes, *_unlike([pair for pairs in used for pair in pairs])),
    )


def _unlike(pairs: Sequence[tuple[CellResult, CellResult]]) -> list[str]:
    """Where row and baseline are of different code or hardware, which the ratio then measures, too."""
    of = f" of {count_cohorts(cell for cell, _ in pairs)} cohorts row and baseline"
    notes = []
    for what, kind in _KINDS.items():
        apart = [pair for pair in pairs if kind(pair[0]) != kind(pair[1])]
        if apart:
            names = ", ".join(sorted({kind(cell) for pair in apart for cell in pair}))
            notes.append(f"in {count_cohorts(cell for cell, _ in apart)}{of} {what} ({names})")
    return notes


_KINDS: dict[str, Callable[[CellResult], str]] = {
    "are of different git revisions": lambda cell: _told(cell, revision_of),
    "ran on different processors": lambda cell: _told(cell, processor_of),
    "ran on different GPUs": lambda cell: _told(cell, lambda record: " + ".join(gpus_of(record)) or "none"),
}


def _told(cell: CellResult, by: Callable[[Record], str]) -> str:
    return "unknown" if cell.record is None else by(cell.record)


def _place(cell: CellResult) -> tuple[str, str]:
    return cohort_of(cell), typed(cell, "block")


def _number(cell: CellResult, metric: str) -> float | None:
    value = cell.metrics[metric].value if has_number(cell, metric) else None
    return value if is_number(value) else None


def _sure(cell: CellResult, metric: str) -> float:
    value = _number(cell, metric)
    assert value is not None, "only cells with a number are paired"
    return value


def _host(cell: CellResult) -> str:
    return "" if cell.record is None else str(cell.record.environment.get("host", ""))


def _accuracy(cells: Sequence[CellResult], others: Sequence[CellResult], column: Column) -> Entry:
    """The difference in points over the problems that both arms answered, and its verdict."""
    partners = {_place(cell): cell for cell in others if cell.answers}
    answered = [cell for cell in cells if cell.answers]
    pairs = [(cell, partners[_place(cell)]) for cell in answered if _place(cell) in partners]
    lacking = {
        "the row": [cell for cell in cells if not cell.answers],
        "the baseline": [cell for cell in answered if _place(cell) not in partners],
    }
    notes = [
        f"{count_cohorts(found)} of {count_cohorts(cells)} cohorts: {arm} has no samples there"
        for arm, found in lacking.items()
        if found
    ]
    if not pairs:
        return _nothing("no cohort has the samples both of its own answers and of the baseline's", *notes)
    if len({frozenset(cell.answers) for pair in pairs for cell in pair}) > 1:
        return _nothing("the row and its baseline did not answer the same problems", *notes)
    problems = sorted(pairs[0][0].answers)
    ours = [[right for mine, _ in pairs for right in mine.answers[problem]] for problem in problems]
    reference = [[right for _, other in pairs for right in other.answers[problem]] for problem in problems]
    margin = None if column.margin is None else column.margin / 100
    single = all(len(answers) == 1 for answers in (*ours, *reference))
    found = (
        paired_accuracy([right for [right] in reference], [right for [right] in ours], margin=margin)
        if single
        else paired_avg_at_k(reference, ours, margin=margin)
    )
    if found.difference is None:
        return _nothing(found.note, *notes)
    said = f"{found.verdict}: margin {100 * found.margin:g} points; {found.method}"
    return Entry(
        100 * found.difference,
        measured=count_cohorts(cell for cell, _ in pairs),
        notes=(f"{said}; {found.note}" if found.note else said, *notes, *_unlike(pairs)),
        low=None if found.low is None else 100 * found.low,
        high=None if found.high is None else 100 * found.high,
        n=found.n,
        estimator=column.estimator,
        p=found.p,
        verdict=found.verdict,
    )
