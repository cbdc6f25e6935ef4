"""Field types that several config groups share, and the marks that give a field its part in the identity."""

import importlib.resources
import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Annotated, Any

from pydantic import AfterValidator, BeforeValidator, Field, Strict

# Strict: no text is taken for a number, no truth value for an integer.
# The bounds are above what any machine does, and keep what a plan computes from sizes in the range of floats.
PositiveInt = Annotated[int, Strict(), Field(gt=0, le=2**40)]
NonNegativeInt = Annotated[int, Strict(), Field(ge=0, lt=2**63)]
PositiveFloat = Annotated[float, Strict(), Field(gt=0)]
NonNegativeFloat = Annotated[float, Strict(), Field(ge=0)]
UnitInterval = Annotated[float, Strict(), Field(ge=0, lt=1)]
"""A number in [0, 1)."""
Flag = Annotated[bool, Strict()]


@dataclass(frozen=True)
class IdentityDefault:
    """A key added after records existed: it is left out of the identity while it has this value."""

    value: Any


@dataclass(frozen=True)
class NotIdentity:
    """A key that cannot change a result: never part of the identity."""


@dataclass(frozen=True)
class FileInput:
    """A path whose content, not its name, is part of the identity.

    Attributes:
        patterns: of a directory, the files that count; `{key}` is the value of that key beside it.
    """

    patterns: tuple[str, ...] = ()


def resolve_path(value: str) -> Path:
    """The file or directory that a configured path names.

    `pkg://package.name/file` is a file that ships with the package; `CELL@step` the policy that a run saved at that
    step, CELL being the cell's directory.
    """
    if value.startswith("pkg://"):
        package, _, name = value.removeprefix("pkg://").partition("/")
        return _package_folder(package) / name
    path = Path(value).expanduser()
    cell, at, step = path.name.rpartition("@")
    if at and step.isdigit() and not path.exists():
        saved = sorted((path.parent / cell).glob(f"attempt-*/checkpoints/step-{int(step):06d}/policy"))
        return saved[-1].resolve() if saved else path.resolve()
    return path.resolve()


@cache
def _package_folder(package: str) -> Path:
    return Path(str(importlib.resources.files(package)))


def _dotted(value: str) -> str:
    if not re.fullmatch(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)+", value):
        raise ValueError(f"{value!r} is not a dotted name such as package.module.function")
    return value


Target = Annotated[str, AfterValidator(_dotted)]
"""The dotted name of an implementation; imported only where it runs."""

_UNITS = {"": 1, "B": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40}


def parse_bytes(value: int | str) -> int:
    """A size in bytes from a number or a text such as "512MiB"; ValueError for anything else."""
    if isinstance(value, int):
        size = value
    else:
        match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([KMGT]iB|B|)\s*", value)
        if match is None:
            raise ValueError(f"{value!r} is not a size; write bytes or a text such as 512MiB or 2GiB")
        size = int(float(match[1]) * _UNITS[match[2]])
    if size <= 0:
        raise ValueError(f"{value!r} is not a size above zero")
    if size >= 2**62:
        raise ValueError(f"{value!r} is more than any machine has")
    return size


def _check_bytes(value: int | str) -> int | str:
    parse_bytes(value)
    return value


def _size(value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int | str):
        raise ValueError(f"{value!r} is not a size; write bytes or a text such as 512MiB or 2GiB")
    return parse_bytes(value)


Size = Annotated[int, BeforeValidator(_size)]
"""Bytes, however they are written: 1MiB and 1048576 are the same."""
Bytes = Annotated[Annotated[int, Strict()] | str, AfterValidator(_check_bytes)]
