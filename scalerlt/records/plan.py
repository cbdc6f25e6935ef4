"""plans/NNN.json: what one invocation resolved to; every cell stays visible, those ruled out too."""

from typing import Any, Literal

from pydantic import Field

from scalerlt.records.base import Document, Part, Scalar


class PlannedCell(Part):
    """One cell of a plan.

    `state` is `planned` when it may run, `unsupported` when no machine of this kind can run it, `skipped` when the
    sweep itself rules it out or another cell's result implies that it cannot be measured; the latter two carry a reason
    and were not tried.
    """

    cell_id: str
    axes: dict[str, Scalar]
    state: Literal["planned", "unsupported", "skipped"] = "planned"
    reason: str | None = None
    order: int = 0
    bundle: str | None = None
    """The same for the cells of one comparison and one cohort, which run one after another."""
    inferred_from: str | None = None
    """Of a cell that is skipped because of another's result: that cell."""
    overrides: list[str] = Field(default_factory=list)
    """The overrides that, with the shipped configuration, make this cell."""


class Plan(Document):
    """One invocation's resolved list of cells. Made exclusively and never changed; later ones have the last word."""

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
    follows: str | None = None
    """Of a plan that only tells what a queue has inferred while it ran: the file name of the queue's own plan."""
    cells: list[PlannedCell]
