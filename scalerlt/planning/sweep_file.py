"""Sweep files: a name for a set of cells.

    description: one sentence
    grid:                      # every combination of the values
      precision: [fp32, bf16]
      seed: range(5)           # any sweep of Hydra's override grammar
      batch: small             # one value
    union:                     # or: the cells of several grids, each once
      - grid: {...}
      - grid: {...}

A key is a config group (`precision`) or a value (`batch.group_size`).
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from scalerlt.errors import RequestErrors, UserError

SHIPPED = Path(__file__).parent.parent / "sweeps"
Axis = tuple[str, str]
"""A key, and its values as the right-hand side of a Hydra override ("fp32,bf16")."""


@dataclass(frozen=True)
class SweepFile:
    """One sweep: its name, its text as plain data, and its grids in order."""

    name: str
    definition: dict[str, Any]
    grids: tuple[tuple[Axis, ...], ...]


def available() -> dict[str, Path]:
    """Every sweep by name: the shipped ones, and those in ./sweeps, which come first."""
    found = {path.stem: path for path in sorted(SHIPPED.glob("*.yaml"))}
    return found | {path.stem: path for path in sorted(Path("sweeps").glob("*.yaml"))}


def find(name: str) -> Path:
    """The file of a sweep given by name or by path; UserError naming the nearest names otherwise."""
    from scalerlt.planning.suggestions import nearest

    if name.endswith((".yaml", ".yml")) or "/" in name:
        if Path(name).is_file():
            return Path(name)
        raise UserError(f"{name}: there is no such sweep file")
    sweeps = available()
    if name not in sweeps:
        raise UserError(f"there is no sweep {name!r}{nearest(name, sweeps)}")
    return sweeps[name]


def read(path: Path) -> SweepFile:
    """Read and check one sweep file; RequestErrors names everything that is wrong with it."""
    try:
        definition = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise UserError(f"{path}: not a readable sweep file ({' '.join(str(error).split())})") from error
    problems: list[str] = []
    grids = _grids(definition, problems)
    if problems:
        raise RequestErrors([f"{path}: {problem}" for problem in problems])
    return SweepFile(name=path.stem, definition=definition, grids=grids)


def _grids(definition: Any, problems: list[str]) -> tuple[tuple[Axis, ...], ...]:
    if not isinstance(definition, dict):
        problems.append("a sweep file is a mapping with the key `grid` or `union`")
        return ()
    unknown = set(definition) - {"description", "grid", "union"}
    problems += [f"{key!r} is not a key of a sweep file; there are description, grid and union" for key in unknown]
    if ("grid" in definition) == ("union" in definition):
        problems.append("a sweep file has either `grid` or `union`")
        return ()
    if "grid" in definition:
        return (_axes(definition["grid"], "grid", problems),)
    union = definition["union"]
    if not isinstance(union, list) or not union:
        problems.append("`union` is a list of grids")
        return ()
    grids = []
    for number, part in enumerate(union, start=1):
        where = f"part {number} of the union"
        if not isinstance(part, dict) or set(part) != {"grid"}:
            problems.append(f"{where} is not a mapping with the one key `grid`")
            continue
        grids.append(_axes(part["grid"], where, problems))
    return tuple(grids)


def _axes(grid: Any, where: str, problems: list[str]) -> tuple[Axis, ...]:
    if not isinstance(grid, dict) or not grid:
        problems.append(f"{where}: a grid is a mapping from keys to values")
        return ()
    axes = []
    for key, value in grid.items():
        if not isinstance(key, str) or isinstance(value, dict):
            problems.append(f"{where}: {key!r} has the value {value!r}; give one value, a list, or a Hydra sweep")
        elif value == []:
            problems.append(f"{where}: {key} has no values")
        elif key in ("runs_dir", "sweeps") or key.startswith("hydra"):
            problems.append(f"{where}: {key} cannot be part of a sweep")
        else:
            axes.append((key, ",".join(map(_text, value)) if isinstance(value, list) else _text(value)))
    return tuple(axes)


def _text(value: Any) -> str:
    """One value in Hydra's override grammar."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list):
        return "[" + ",".join(map(_text, value)) + "]"
    if isinstance(value, dict):
        return "{" + ",".join(f"{key}:{_text(entry)}" for key, entry in value.items()) + "}"
    return str(value)
