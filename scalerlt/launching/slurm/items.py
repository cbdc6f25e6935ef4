"""What the jobs of a submission work through: items, one per bundle, apart by the resources that they need."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace

from scalerlt.errors import RequestErrors
from scalerlt.planning.launcher import SlurmSettings
from scalerlt.planning.resolve import ResolvedCell
from scalerlt.records.plan import PlannedCell
from scalerlt.records.queue import QueueItem

Seconds = Callable[[ResolvedCell], float | None]
"""What planning expects a cell to take."""


@dataclass(frozen=True)
class ResourceGroup:
    """Items whose jobs ask for the same.

    Attributes:
        nodes: of each job.
    """

    nodes: int
    items: list[QueueItem]


def resource_groups(
    due: Iterable[PlannedCell], resolved: Mapping[str, ResolvedCell], settings: SlurmSettings, seconds: Seconds
) -> list[ResourceGroup]:
    """The cells that are to run as items, in plan order, those of one bundle in one item.

    Args:
        due: in plan order.
        resolved: each of these cells, by its id.
    """
    bundles: dict[str, list[PlannedCell]] = {}
    for cell in due:
        bundles.setdefault(cell.bundle or cell.cell_id, []).append(cell)
    groups: dict[int, list[QueueItem]] = {}
    for cells in bundles.values():
        known = [resolved[cell.cell_id] for cell in cells]
        times = [seconds(cell) for cell in known]
        items = groups.setdefault(max(nodes_of(cell, settings) for cell in known), [])
        items.append(
            QueueItem(
                index=len(items),
                bundle=cells[0].bundle,
                cells=[cell.cell_id for cell in cells],
                seconds=sum(time for time in times if time is not None) if None not in times else None,
                timed=any(cell.cell.experiment.timed for cell in known),
            )
        )
    return [ResourceGroup(nodes, items) for nodes, items in groups.items()]


def check_nodes(resolved: Iterable[ResolvedCell], settings: SlurmSettings) -> None:
    """RequestErrors when a cell is spread over nodes that nobody would start it on."""
    spread = [cell for cell in resolved if nodes_of(cell, settings) > 1]
    if spread and not settings.use_srun:
        nodes = nodes_of(spread[0], settings)
        raise RequestErrors(
            [f"hydra.launcher.use_srun=false: {spread[0].cell_id} is spread over {nodes} nodes, and srun starts them"]
        )


def settings_of(group: ResourceGroup, settings: SlurmSettings) -> SlurmSettings:
    """The settings for one group: a job of several nodes runs one cell at a time."""
    return replace(settings, pack=replace(settings.pack, slots=1)) if group.nodes > 1 else settings


def nodes_of(cell: ResolvedCell, settings: SlurmSettings) -> int:
    """How many nodes a cell's job has: what the cell is spread over, or more where the launcher says so."""
    return max(cell.cell.parallel.nodes, settings.nodes)
