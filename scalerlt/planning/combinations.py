"""A sweep file and a command line become a list of cells, each as the overrides that make it.

The command line's values take the place of the sweep's for the same key and multiply with it otherwise. What would
make a sweep smaller without a word is an error: a key of a zip given another value, a value that stands twice in one
axis, a list whose cells collapse. Cells that only turn out to be the same when they are resolved are found there, by
the places that name them: the parts of a union may overlap, the cells of one part may not.
"""

import hashlib
from collections import Counter
from collections.abc import Callable, Sequence
from itertools import product
from math import prod

from scalerlt.errors import RequestErrors
from scalerlt.planning.overrides import as_written
from scalerlt.planning.parts import Axis, Dimension, Listing, Part, Product, Sample, key_of
from scalerlt.planning.sweep_file import SweepFile

Combination = tuple[str, ...]
"""One cell's overrides, key=value each."""
Place = tuple[int, ...]
"""Where a grid, zip or list stands in the unions around it; () where there is none."""
Places = dict[Combination, frozenset[Place]]
"""Cells in order, each with the places that name it: several where a union's parts overlap."""
ValuesOf = Callable[[Axis], list[str]]
"""The values that an axis names, each as the right-hand side of an override; RequestErrors when it does not parse."""
MAX_CELLS = 1_000_000


def combinations(sweep: SweepFile | None, own: Sequence[Axis], values_of: ValuesOf) -> Places:
    """Every cell of a request, in order, each once, with the parts of the sweep that name it.

    Args:
        sweep: the sweep file, or None.
        own: the command line's axes.

    Raises:
        RequestErrors: everything that contradicts itself.
    """
    if sweep is None:
        return _cells_of(Product(tuple((axis,) for axis in own)), [], values_of)
    given = {key_of(axis) for axis in own}
    if sweep.both_ways and "block" in given:
        raise RequestErrors([f"block: the sweep {sweep.name} has `blocks`, which set it; leave it to the sweep"])
    cohorts: Sequence[object] = range(sweep.cohorts or 0)
    if sweep.cohorts and "cohort" in given:
        cohorts = _distinct(next(axis for axis in own if key_of(axis) == "cohort"), values_of)
        own = [axis for axis in own if key_of(axis) != "cohort"]
    cells = _cells_of(sweep.cells, own, values_of)
    _check_arms(sweep, cells, given)
    if sweep.both_ways:
        cells = {(*cell, f"block={block}"): places for block in (0, 1) for cell, places in cells.items()}
    if not cohorts:
        return cells
    _check_total(len(cells) * len(cohorts))
    return {_in_cohort(cell, cohort): places for cohort in cohorts for cell, places in cells.items()}


def _distinct(axis: Axis, values_of: ValuesOf) -> list[str]:
    problems: list[str] = []
    rows = _rows((axis,), values_of, problems)
    if problems:
        raise RequestErrors(problems)
    return [text.partition("=")[2] for (text,) in rows]


def _check_total(total: int) -> None:
    if total > MAX_CELLS:
        raise RequestErrors([f"the sweep has {total:,} combinations; {MAX_CELLS:,} is the most that is listed"])


def _in_cohort(cell: Combination, cohort: object) -> Combination:
    """A cell of a cohort, whose seed is the cohort's number unless the sweep names seeds."""
    has_seed = any(text.lstrip("+").startswith("seed=") for text in cell)
    return (*cell, f"cohort={cohort}") if has_seed else (*cell, f"cohort={cohort}", f"seed={cohort}")


def _check_arms(sweep: SweepFile, cells: Places, given: set[str]) -> None:
    if sweep.compare is None or sweep.compare in given:
        return  # narrowed to one arm, for a look at it
    arms = {text for cell in cells for text in cell if text.partition("=")[0].lstrip("+") == sweep.compare}
    if len(arms) < 2:
        raise RequestErrors(
            [f"sweep {sweep.name}: `compare: {sweep.compare}` needs two or more values of {sweep.compare} in the sweep"]
        )


def _cells_of(part: Part, own: Sequence[Axis], values_of: ValuesOf, place: Place = ()) -> Places:
    problems: list[str] = []
    match part:
        case Product(dimensions):
            listed = _product(_overridden(dimensions, own, problems), values_of, problems)
            cells = _merged([(cell, frozenset({place})) for cell in listed])
        case Listing(written):
            listed = _listed(written, own, values_of, problems)
            cells = _merged([(cell, frozenset({place})) for cell in listed])
            if len(cells) < len(listed) and not problems:
                problems.append("two cells of a list are the same with the values of the command line")
        case _:
            named: list[tuple[Combination, frozenset[Place]]] = []
            for number, inner in enumerate(part.parts):
                try:
                    named += _cells_of(inner, own, values_of, (*place, number)).items()
                except RequestErrors as error:
                    problems += [problem for problem in error.problems if problem not in problems]
            cells = _merged(named)
    if not problems and part.sample is not None:
        cells = _sampled(cells, part.sample, problems)
    if problems:
        raise RequestErrors(problems)
    return cells


def _merged(named: list[tuple[Combination, frozenset[Place]]]) -> Places:
    """Each cell once, whatever the order of its overrides."""
    first: dict[frozenset[str], Combination] = {}
    cells: Places = {}
    for cell, places in named:
        known = first.setdefault(frozenset(cell), cell)
        cells[known] = cells.get(known, frozenset()) | places
    return cells


def _overridden(dimensions: Sequence[Dimension], own: Sequence[Axis], problems: list[str]) -> list[Dimension]:
    """A product's dimensions with the command line's: the same key is replaced where it stands, others follow."""
    replaced = {key_of(axis): axis for axis in own}
    merged: list[Dimension] = []
    for dimension in dimensions:
        bound = [key_of(axis) for axis in dimension]
        if len(bound) > 1:
            problems += [
                f"{key} is bound to {' and '.join(other for other in bound if other != key)} by a zip; "
                f"it cannot be given another value"
                for key in bound
                if key in replaced
            ]
            merged.append(dimension)
        else:
            merged.append((replaced.pop(bound[0]),) if bound[0] in replaced else dimension)
    return merged + [(axis,) for axis in replaced.values()]


def _product(dimensions: Sequence[Dimension], values_of: ValuesOf, problems: list[str]) -> list[Combination]:
    listed = [_rows(dimension, values_of, problems) for dimension in dimensions]
    _check_total(prod(map(len, listed)))
    return [tuple(text for row in rows for text in row) for rows in product(*listed)]


def _rows(dimension: Dimension, values_of: ValuesOf, problems: list[str]) -> list[Combination]:
    """The values of what varies together, as overrides; of a zip those of one position together."""
    columns: list[list[str]] = []
    for axis in dimension:
        try:
            columns.append([f"{axis[0]}={value}" for value in values_of(axis)])
        except RequestErrors as error:
            problems += error.problems
            return []
    if len({len(column) for column in columns}) > 1:
        lengths = ", ".join(f"{axis[0]} has {len(column)}" for axis, column in zip(dimension, columns, strict=True))
        problems.append(f"a zip needs lists of equal length: {lengths}")
        return []
    rows = list(zip(*columns, strict=True))
    problems += [
        f"{' with '.join(map(as_written, row))} stands twice" for row, times in Counter(rows).items() if times > 1
    ]
    return rows


def _listed(
    listed: Sequence[tuple[Axis, ...]], own: Sequence[Axis], values_of: ValuesOf, problems: list[str]
) -> list[Combination]:
    """The cells of a list, each with every combination of the command line's values."""
    given = [key_of(axis) for axis in own]
    named = [{key_of(axis): axis[1] for axis in cell} for cell in listed]
    apart = [key for key in given if len({cell[key] for cell in named if key in cell}) > 1]
    problems += [f"{key} tells the cells of a list apart; it cannot be given another value" for key in apart]
    for number, cell in enumerate(named, start=1):
        problems += [
            f"cell {number} of a list: {key}={text} has several values; a cell has one per key, a grid several"
            for key, text in cell.items()
            if _count((key, text), values_of, problems) > 1
        ]
        if (first := named.index(cell) + 1) < number:
            problems.append(f"cell {number} of a list is its cell {first} again")
    if problems:
        return []
    return [
        combination
        for cell in listed
        for combination in _product(_overridden([(axis,) for axis in cell], own, problems), values_of, problems)
    ]


def _count(axis: Axis, values_of: ValuesOf, problems: list[str]) -> int:
    try:
        return len(values_of(axis))
    except RequestErrors as error:
        problems += error.problems
        return 0


def _sampled(cells: Places, sample: Sample, problems: list[str]) -> Places:
    """The cells whose digest with the seed is smallest: the same on every platform and version, in their order."""
    if sample.size > len(cells):
        few = "1 cell" if len(cells) == 1 else f"{len(cells)} cells"
        problems.append(f"a sample of {sample.size} cannot be drawn from {few}")
        return {}
    drawn = set(sorted(cells, key=lambda cell: _rank(cell, sample.seed))[: sample.size])
    return {cell: places for cell, places in cells.items() if cell in drawn}


def _rank(cell: Combination, seed: int) -> bytes:
    return hashlib.sha256("\n".join([str(seed), *sorted(cell)]).encode()).digest()
