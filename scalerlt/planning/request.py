"""What a command line asks for, composed."""

from dataclasses import dataclass, field
from typing import Any

from scalerlt.planning.sweep_file import SweepFile
from scalerlt.records.base import Scalar


@dataclass(frozen=True)
class ComposedCell:
    """One cell's configuration as plain data, interpolations resolved, and the overrides that made it.

    Attributes:
        places: the parts of the sweep that name it (see planning.combinations).
    """

    overrides: list[str]
    config: dict[str, Any]
    places: frozenset[tuple[int, ...]] = frozenset()


@dataclass(frozen=True)
class RuledOut:
    """A combination that a rule of the sweep rules out.

    Attributes:
        position: the number of the request's cells that stand before it.
        cell_id: the cell's own where it is a valid one, else `invalid-` and a digest of its configuration.
        axes: of an invalid one, too, in the form of a valid cell's.
    """

    position: int
    cell_id: str
    axes: dict[str, Scalar]
    overrides: list[str]
    reason: str
    places: frozenset[tuple[int, ...]] = frozenset()


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
    retry: frozenset[str]
    """Which cells that have a record run again (see planning.retry)."""
    ruled_out: list[RuledOut] = field(default_factory=list)
    max_gpu_hours: float | None = None
    """Refuse a plan that is estimated to need more."""
    warnings: list[str] = field(default_factory=list)
    """What the user should see, though it stops nothing."""
