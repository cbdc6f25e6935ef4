"""The cells of a sweep file, as it names them: grids, zips, lists, unions, and samples of these.

A value is kept as the right-hand side of a Hydra override, so that a text may be any sweep of Hydra's own grammar.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from scalerlt.schema.cell import REQUEST_KEYS

Axis = tuple[str, str]
"""A key, and its values as the right-hand side of a Hydra override ("fp32,bf16")."""
Dimension = tuple[Axis, ...]
"""What varies together: one key of a grid, or the keys of a zip."""
KINDS = ("grid", "zip", "list", "union")
NOT_SWEPT = (*REQUEST_KEYS, "sweeps")


@dataclass(frozen=True)
class Sample:
    """So many cells of a part, drawn by a seed."""

    size: int
    seed: int


@dataclass(frozen=True)
class Product:
    """Every combination of the dimensions' values, the last dimension varying fastest."""

    dimensions: tuple[Dimension, ...]
    sample: Sample | None = None


@dataclass(frozen=True)
class Listing:
    """Cells written out, each by its keys and their one value."""

    cells: tuple[tuple[Axis, ...], ...]
    sample: Sample | None = None


@dataclass(frozen=True)
class Union:
    """The cells of several parts, each once."""

    parts: tuple["Part", ...]
    sample: Sample | None = None


Part = Product | Listing | Union


def axes_of(part: Part) -> Iterator[tuple[Axis, ...]]:
    """The axes that may meet in one cell: of a product all, of a list each cell's."""
    match part:
        case Product(dimensions):
            yield tuple(axis for dimension in dimensions for axis in dimension)
        case Listing(cells):
            yield from cells
        case Union(parts):
            for inner in parts:
                yield from axes_of(inner)


def key_of(axis: Axis) -> str:
    """The key without the `+` of an addition."""
    return axis[0].lstrip("+")


def bound_to(part: Part, key: str) -> set[str]:
    """The keys that vary with a key: itself, and those of a zip that it stands in."""
    match part:
        case Product(dimensions):
            bound = [{key_of(axis) for axis in dimension} for dimension in dimensions]
            return {key}.union(*(keys for keys in bound if key in keys))
        case Listing():
            return {key}
    return {key}.union(*(bound_to(inner, key) for inner in part.parts))


def keys_of(part: Part) -> set[str]:
    """Every key that a part names."""
    return {key_of(axis) for axes in axes_of(part) for axis in axes}


def read_part(definition: dict[str, Any], where: str, problems: list[str]) -> Part:
    """The part of a mapping that has one of `grid`, `zip`, `list`, `union`, and perhaps `sample`.

    Args:
        where: names the part in messages.
        problems: what is wrong is added here; the part returned is then of no use.
    """
    kinds = [kind for kind in KINDS if kind in definition]
    if len(kinds) != 1:
        found = f"not both {' and '.join(kinds)}" if kinds else "this has none"
        problems.append(f"{where} has one of grid, zip, list and union; {found}")
        return Union(())
    sample = _sample(definition["sample"], where, problems) if "sample" in definition else None
    content = definition[kinds[0]]
    match kinds[0]:
        case "grid":
            return Product(_dimensions(content, where, problems), sample)
        case "zip":
            return Product((_zip(content, where, problems),), sample)
        case "list":
            return Listing(_cells(content, where, problems), sample)
    return Union(_parts(content, where, problems), sample)


def _parts(content: Any, where: str, problems: list[str]) -> tuple[Part, ...]:
    if not isinstance(content, list) or not content:
        problems.append(f"{where}: `union` is a list of parts, each a grid, zip, list or union")
        return ()
    parts = []
    for number, part in enumerate(content, start=1):
        named = f"part {number} of the union" if where == "the sweep" else f"{where}, part {number}"
        if not isinstance(part, dict):
            problems.append(f"{named} is not a mapping with one of the keys {', '.join(KINDS)}")
        elif surplus := sorted(map(str, set(part) - {*KINDS, "sample"})):
            problems.append(f"{named}: {surplus[0]!r} is not a key of a part; there are {', '.join(KINDS)} and sample")
        else:
            parts.append(read_part(part, named, problems))
    return tuple(parts)


def _dimensions(content: Any, where: str, problems: list[str]) -> tuple[Dimension, ...]:
    if not isinstance(content, dict) or not content:
        problems.append(f"{where}: a grid is a mapping from keys to values")
        return ()
    dimensions: list[Dimension] = []
    for key, value in content.items():
        if key == "zip":
            dimensions += [
                _zip(entry, f"{where}, zip", problems) for entry in (value if isinstance(value, list) else [value])
            ]
        elif key in KINDS:
            problems.append(f"{where}: a {key} cannot stand in a grid; use `union`, or a `zip` of keys in the grid")
        elif axis := _axis(key, value, where, problems):
            dimensions.append((axis,))
    _each_key_once([axis for dimension in dimensions for axis in dimension], where, problems)
    return tuple(dimensions)


def _zip(content: Any, where: str, problems: list[str]) -> Dimension:
    if not isinstance(content, dict) or len(content) < 2:
        problems.append(f"{where}: a zip is a mapping from two or more keys to lists of equal length")
        return ()
    axes = []
    for key, value in content.items():
        if key in KINDS:
            problems.append(f"{where}: a {key} cannot stand in a zip")
        elif axis := _axis(key, value, where, problems):
            axes.append(axis)
    return tuple(axes)


def _cells(content: Any, where: str, problems: list[str]) -> tuple[tuple[Axis, ...], ...]:
    if not isinstance(content, list) or not content:
        problems.append(f"{where}: a list is a list of cells, each a mapping from keys to one value")
        return ()
    cells = []
    for number, cell in enumerate(content, start=1):
        named = f"{where}, cell {number}"
        if not isinstance(cell, dict) or not cell:
            problems.append(f"{named} is not a mapping from keys to one value")
            continue
        axes = []
        for key, value in cell.items():
            if key in KINDS:
                problems.append(f"{named}: a {key} cannot stand in a cell of a list; use `union`")
            elif isinstance(value, list):
                problems.append(f"{named}: {key} has several values; a cell of a list has one per key, a grid several")
            elif axis := _axis(key, value, named, problems):
                axes.append(axis)
        cells.append(tuple(axes))
    return tuple(cells)


def _axis(key: Any, value: Any, where: str, problems: list[str]) -> Axis | None:
    if not isinstance(key, str) or isinstance(value, dict):
        problems.append(f"{where}: {key!r} has the value {value!r}; give one value, a list, or a Hydra sweep")
    elif value == []:
        problems.append(f"{where}: {key} has no values")
    elif key in NOT_SWEPT or re.split(r"[./]", key.lstrip("+~"))[0] == "hydra":
        problems.append(f"{where}: {key} cannot be part of a sweep")
    else:
        return key, ",".join(map(_text, value)) if isinstance(value, list) else _expression(value)
    return None


def _each_key_once(axes: list[Axis], where: str, problems: list[str]) -> None:
    keys = [key.lstrip("+") for key, _ in axes]
    problems += [
        f"{where}: {key} stands twice, in the grid and in a zip or in two zips; keep one of them"
        for key in dict.fromkeys(key for key in keys if keys.count(key) > 1)
    ]


def _sample(content: Any, where: str, problems: list[str]) -> Sample | None:
    if (
        not isinstance(content, dict)
        or set(content) != {"size", "seed"}
        or not all(isinstance(number, int) and not isinstance(number, bool) for number in content.values())
        or content["size"] < 1
    ):
        problems.append(f"{where}: a sample is {{size: N, seed: S}}, with whole numbers and a size above zero")
        return None
    return Sample(content["size"], content["seed"])


_PLAIN = re.compile(r"[\w./:$@%+-]+")
"""Texts that Hydra's grammar takes as they are."""


def _expression(value: Any) -> str:
    """A value that stands alone: a text may be a sweep of Hydra's grammar, such as range(5)."""
    return value if isinstance(value, str) else _text(value)


def _text(value: Any) -> str:
    """One value in Hydra's override grammar; a text that could mean more than itself is quoted."""
    if isinstance(value, str) and not _PLAIN.fullmatch(value):
        # Hydra reads a backslash as itself, unless a quote follows: there it has to be doubled.
        escaped = re.sub(r"(\\*)('|\Z)", lambda found: found[1] * 2 + (r"\'" if found[2] else ""), value)
        return f"'{escaped}'"
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list):
        return "[" + ",".join(map(_text, value)) + "]"
    if isinstance(value, dict):
        return "{" + ",".join(f"{key}:{_text(entry)}" for key, entry in value.items()) + "}"
    return str(value)
