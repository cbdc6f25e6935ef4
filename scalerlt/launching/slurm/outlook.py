"""What a plan would submit, in sentences, before anything is written."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from scalerlt.launching.slurm.arrays import LARGEST_ARRAY, arrays
from scalerlt.launching.slurm.ask import Slurm
from scalerlt.launching.slurm.items import ResourceGroup, check_nodes, resource_groups, settings_of
from scalerlt.launching.slurm.submit import resources
from scalerlt.planning.forecast import TO_RUN, Forecast
from scalerlt.planning.launcher import SlurmSettings, read_launcher
from scalerlt.planning.resolve import ResolvedCell
from scalerlt.planning.show import duration


@dataclass(frozen=True)
class Outlook:
    """What one resource group becomes.

    Attributes:
        arrays: the number of jobs of each; one job alone is no array.
        resources: what each job asks for.
        at_once: how many jobs may run at the same time.
        warnings: what the user should see.
    """

    cells: int
    items: int
    arrays: list[int]
    resources: str
    at_once: int
    warnings: list[str]

    @property
    def jobs(self) -> int:
        """All jobs together."""
        return sum(self.arrays)

    @property
    def sentence(self) -> str:
        """One line for people."""
        many = f" in {len(self.arrays)} array{'s' if len(self.arrays) > 1 else ''}" if self.jobs > 1 else ""
        shared = f"{'they share a queue of' if self.jobs > 1 else 'it works through'} {self.items} items"
        each = "each has its own cells" if self.jobs == self.items else shared
        limit = f", at most {self.at_once} at once" if self.at_once < self.jobs else ""
        counted = (
            f"{self.jobs} job{'s' if self.jobs > 1 else ''}{many} for {self.cells} cell{'s' if self.cells > 1 else ''}"
        )
        return f"{counted} ({self.resources}){limit}" + (f"; {each}" if self.jobs > 1 or self.items > 1 else "")


def outlook(group: ResourceGroup, settings: SlurmSettings, largest_array: int) -> Outlook:
    """What submitting the group would do."""
    parts = arrays(len(group.items), settings, largest_array)
    chained = any(array.after_previous for array in parts)
    at_once = max(array.parallelism for array in parts) if chained else sum(array.parallelism for array in parts)
    return Outlook(
        cells=sum(len(item.cells) for item in group.items),
        items=len(group.items),
        arrays=[len(array.items) for array in parts],
        resources=resources(settings, group),
        at_once=at_once,
        warnings=list(_warnings(group, settings)),
    )


def of_forecast(seen: Forecast, cells: Iterable[ResolvedCell], launcher: Mapping[str, Any]) -> list[Outlook]:
    """What submitting a plan's cells would do, by resource groups; a cluster is asked for its MaxArraySize.

    Raises:
        RequestErrors: the settings are wrong.
    """
    settings = read_launcher(launcher)
    assert isinstance(settings, SlurmSettings)
    resolved = {cell.cell_id: cell for cell in cells}
    check_nodes(resolved.values(), settings)
    costs = {cell.planned.cell_id: cell.cost for cell in seen.cells}
    due = [cell.planned for cell in seen.cells if cell.state == TO_RUN]
    largest = Slurm(lambda text: None).largest_array() or LARGEST_ARRAY

    def seconds(cell: ResolvedCell) -> float | None:
        cost = costs[cell.cell_id]
        return None if cost is None else cost.seconds

    groups = resource_groups(due, resolved, settings, seconds)
    return [outlook(group, settings_of(group, settings), largest) for group in groups]


def _warnings(group: ResourceGroup, settings: SlurmSettings) -> Iterable[str]:
    limit = settings.timeout_min * 60 - settings.signal_delay_s
    long = [item for item in group.items if item.seconds is not None and item.seconds > limit]
    if long:
        longest = max(item.seconds or 0.0 for item in long)
        many = f"{len(long)} items are" if len(long) > 1 else "one item is"
        yield (
            f"{many} expected to take longer than a job lasts before its signal ({duration(limit)}, from "
            f"hydra.launcher.timeout_min={settings.timeout_min} and signal_delay_s={settings.signal_delay_s}), "
            f"the longest {duration(longest)}: such jobs are requeued, and go on where the cell saves checkpoints"
        )
