"""What a command line asks for, composed."""

from dataclasses import dataclass
from typing import Any

from scalerlt.planning.sweep_file import SweepFile


@dataclass(frozen=True)
class ComposedCell:
    """One cell's configuration as plain data, interpolations resolved, and the overrides that made it."""

    overrides: list[str]
    config: dict[str, Any]


@dataclass(frozen=True)
class Request:
    """What one command line asks for."""

    sweep: SweepFile | None
    overrides: list[str]
    """The command line's overrides, but for the choice of the sweep."""
    swept: list[str]
    """Keys that vary."""
    cells: list[ComposedCell]
    runs_dir: str
    launcher: dict[str, Any]
    """The option of hydra/launcher, as plain data."""
