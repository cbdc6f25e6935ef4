"""plans/NNN.json: what one invocation resolved to; every cell stays visible, those ruled out too."""

from typing import Any, Literal

from pydantic import Field

from scalerlt.records.base import Document, Part, Scalar


class PlannedCell(Part):
    """One cell of a plan.

    `state` is `planned` when it may run, `unsupported` when no machine of this kind can run it, `skipped` when the
    sweep itself rules it out; the latter two carry a reason and have no directory.
    """

    cell_id: str
    axes: dict[str, Scalar]
    state: Literal["planned", "unsupported", "skipped"] = "planned"
    reason: str | None = None
    order: int = 0
    bundle: str | None = None
    overrides: list[str] = Field(default_factory=list)
    """The overrides that, with the shipped configuration, make this cell."""


class Plan(Document):
    """One invocation's resolved list of cells. Made exclusively and never changed."""

    schema_version: Literal[1] = 1
    sweep: str
    created: str
    overrides: list[str]
    """The command line's overrides."""
    definition: dict[str, Any] = Field(default_factory=dict)
    """The sweep file's content, as it was."""
    swept: list[str] = Field(default_factory=list)
    """Keys that vary between the cells."""
    provenance: dict[str, Any] = Field(default_factory=dict)
    cells: list[PlannedCell]
