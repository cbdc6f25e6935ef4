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

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from yaml.constructor import ConstructorError

from scalerlt.errors import RequestErrors, UserError

SHIPPED = Path(__file__).parent.parent / "sweeps"
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*")
Axis = tuple[str, str]
"""A key, and its values as the right-hand side of a Hydra override ("fp32,bf16")."""


@dataclass(frozen=True)
class SweepFile:
    """One sweep: its name, its text as plain data, and its grids in order."""

    name: str
    definition: dict[str, Any]
    grids: tuple[tuple[Axis, ...], ...]


class _EachKeyOnce(yaml.SafeLoader):
    """YAML in which a key that stands twice is an error: the first one's values would be dropped without a word."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        keys = [key.value for key, _ in node.value if isinstance(key, yaml.ScalarNode)]
        if twice := next((key for key in keys if keys.count(key) > 1), None):
            raise ConstructorError(None, None, f"the key {twice} stands twice", node.start_mark)
        return super().construct_mapping(node, deep)


def available() -> dict[str, Path]:
    """Every sweep by name: the shipped ones, and those in ./sweeps, which come first."""
    files = [*sorted(SHIPPED.glob("*.yaml")), *sorted(Path("sweeps").glob("*.yaml"))]
    return {path.stem: path for path in files if path.is_file()}


def find(name: str) -> Path:
    """The file of a sweep given by name or by path; UserError naming the nearest names otherwise."""
    from scalerlt.planning.suggestions import nearest

    if is_path(name):
        path = Path(name)
        if not path.is_file():
            raise UserError(f"{name}: there is no such sweep file")
    else:
        sweeps = available()
        if name not in sweeps:
            raise UserError(f"there is no sweep {name!r}{nearest(name, sweeps)}")
        path = sweeps[name]
    if not _NAME.fullmatch(path.stem):
        raise UserError(
            f"{path}: a sweep goes by its file's name; rename it to ASCII letters, digits, `_`, `-` and `.`"
        )
    return path


def is_path(name: str) -> bool:
    """Whether a sweep is given by its file and not by its name."""
    return name.endswith((".yaml", ".yml")) or "/" in name


def read(path: Path) -> SweepFile:
    """Read and check one sweep file; RequestErrors names everything that is wrong with it."""
    try:
        definition = yaml.load(path.read_text(encoding="utf-8"), _EachKeyOnce)
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
    problems += [
        f"{key!r} is not a key of a sweep file; there are description, grid and union"
        for key in sorted(map(str, unknown))
    ]
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


_PLAIN = re.compile(r"[\w./:$@%+-]+")
"""Texts that Hydra's grammar takes as they are."""


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
            axes.append((key, ",".join(map(_text, value)) if isinstance(value, list) else _expression(value)))
    return tuple(axes)


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
