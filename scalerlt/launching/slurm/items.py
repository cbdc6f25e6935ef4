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
        gpus: whether they ask for GPUs: those that the settings name.
        cpus: on each node; None: the cluster's own default.
    """

    nodes: int
    gpus: bool
    cpus: int | None
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
    groups: dict[tuple[int, bool, int | None], list[QueueItem]] = {}
    for cells in bundles.values():
        known = [resolved[cell.cell_id] for cell in cells]
        times = [seconds(cell) for cell in known]
        nodes = max(nodes_of(cell, settings) for cell in known)
        items = groups.setdefault((nodes, _need_gpus(known, settings), _cpus_of(known, nodes, settings)), [])
        items.append(
            QueueItem(
                index=len(items),
                bundle=cells[0].bundle,
                cells=[cell.cell_id for cell in cells],
                seconds=sum(time for time in times if time is not None) if None not in times else None,
                timed=any(cell.cell.experiment.timed for cell in known),
            )
        )
    return [ResourceGroup(*asked, items) for asked, items in groups.items()]


def check_nodes(resolved: Iterable[ResolvedCell], settings: SlurmSettings) -> None:
    """RequestErrors when a cell is spread over nodes that nobody would start it on."""
    spread = [cell for cell in resolved if nodes_of(cell, settings) > 1]
    if spread and not settings.use_srun:
        nodes = nodes_of(spread[0], settings)
        raise RequestErrors(
            [f"hydra.launcher.use_srun=false: {spread[0].cell_id} is spread over {nodes} nodes, and srun starts them"]
        )


def settings_of(group: ResourceGroup, settings: SlurmSettings) -> SlurmSettings:
    """The settings for one group: what its cells need. A job of several nodes runs one cell at a time."""
    asked = settings if group.gpus else settings.without_gpus()
    pack = replace(settings.pack, slots=_slots(group.nodes, settings))
    return replace(asked, cpus_per_task=group.cpus, pack=pack)


def nodes_of(cell: ResolvedCell, settings: SlurmSettings) -> int:
    """How many nodes a cell's job has: what the cell is spread over, or more where the launcher says so."""
    return max(cell.cell.parallel.nodes, settings.nodes)


def _need_gpus(cells: Iterable[ResolvedCell], settings: SlurmSettings) -> bool:
    return settings.gpus > 0 and any(cell.cell.device.type == "cuda" for cell in cells)


def _cpus_of(cells: Iterable[ResolvedCell], nodes: int, settings: SlurmSettings) -> int | None:
    """The CPUs of a node: one for each thread of each rank of what runs there at once, or more where that is asked."""
    if settings.cpus_per_task is None:
        return None
    threads = max(cell.cell.device.threads * cell.cell.parallel.ranks_per_node for cell in cells)
    return max(settings.cpus_per_task, threads * _slots(nodes, settings))


def _slots(nodes: int, settings: SlurmSettings) -> int:
    return settings.pack.slots if nodes == 1 else 1
