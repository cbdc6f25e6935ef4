"""The files that cells read: found, checked before any work starts, and known by the digest of their content."""

import hashlib
import importlib
from dataclasses import fields, is_dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from scalerlt.errors import RequestErrors
from scalerlt.records.cell import FileInput as FrozenInput
from scalerlt.schema.cell import Cell
from scalerlt.schema.fields import FileInput, resolve_path
from scalerlt.schema.identity import marked
from scalerlt.schema.registry import GROUPS, key_of

LOOKED_AT = ("experiment", "model", "batch", "rollout", "prompt", "task")
"""The groups that a check may depend on."""


def file_inputs(cell: Cell) -> dict[str, FrozenInput]:
    """Every file input that the cell names, by full key, with its digest.

    Raises:
        RequestErrors: the files that are missing, and whatever the groups' own checks find wrong with them.
    """
    problems: list[str] = []
    found = found_inputs(cell, problems)
    if problems:
        raise RequestErrors(problems)
    return found


def found_inputs(cell: Cell, problems: list[str]) -> dict[str, FrozenInput]:
    """The file inputs that are there and can be read; what is wrong with the others is added to `problems`."""
    found: dict[str, FrozenInput] = {}
    for group in GROUPS:
        part = getattr(cell, group)
        described: type[Any] = type(part)
        for name, mark in marked(described, FileInput).items():
            key, value = f"{group}.{key_of(described, name)}", getattr(part, name)
            if value is None:
                continue
            patterns = [pattern.format(**vars(part)) for pattern in mark.patterns]
            try:
                path = resolve_path(value)
                found_in = (file for pattern in patterns for file in path.glob(pattern))
                files = [path] if path.is_file() else sorted(found_in)
                if not files:
                    wanted = f" or directory with {' or '.join(patterns)}" if patterns else ""
                    problems.append(f"{key}={value}: there is no such file{wanted}")
                    continue
                digest = _digest(files)
            except (OSError, ImportError, RuntimeError, ValueError) as error:  # no permission, no package, no home, ...
                problems.append(f"{key}={value}: cannot be read ({error})")
                continue
            stored = value if value.startswith("pkg://") else str(path)
            found[key] = FrozenInput(path=stored, sha256=digest)
    return found


def check_inputs(cell: Cell, seen: dict[Any, list[str]]) -> list[str]:
    """What the groups' own checks (`_check_`) find wrong, each asked once per distinct setting.

    Args:
        seen: answers of earlier cells of the same request; extended here.
    """
    problems: list[str] = []
    setting: tuple[Any, ...] | None = None
    for group in GROUPS:
        part = getattr(cell, group)
        target = getattr(part, "check", None)
        if target is None:
            continue
        setting = setting or tuple(_frozen(getattr(cell, needed)) for needed in LOOKED_AT)
        key = (target, setting)
        if key not in seen:
            module, _, function = target.rpartition(".")
            try:
                check = getattr(importlib.import_module(module), function)
            except (ImportError, AttributeError) as error:
                raise RequestErrors([f"{group}._check_={target}: cannot be imported ({error})"]) from error
            seen[key] = list(check(cell))
        problems += seen[key]
    return problems


def _digest(files: list[Path]) -> str:
    """Of one file its own SHA-256; of several, of their names and digests."""
    digests = [_file_digest(file, *_stamp(file)) for file in files]
    if len(files) == 1:
        return digests[0]
    lines = [f"{file.name}\0{digest}\n" for file, digest in zip(files, digests, strict=True)]
    return hashlib.sha256("".join(lines).encode()).hexdigest()


def _stamp(path: Path) -> tuple[int, int]:
    status = path.stat()
    return status.st_size, status.st_mtime_ns


@lru_cache(maxsize=4096)
def _file_digest(path: Path, size: int, modified_ns: int) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _frozen(part: Any) -> Any:
    if is_dataclass(part):
        return tuple((field.name, _frozen(getattr(part, field.name))) for field in fields(part))
    if isinstance(part, dict):
        return tuple(sorted(part.items()))
    return tuple(part) if isinstance(part, list) else part
