"""A request becomes a plan: every cell listed with its reason, and a frozen cell.yaml for each that may run."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from scalerlt.errors import RequestErrors, UserError
from scalerlt.planning.bundles import arranged
from scalerlt.planning.launcher import machine_of
from scalerlt.planning.request import ComposedCell, Request, RuledOut
from scalerlt.planning.resolve import ResolvedCell, named_twice
from scalerlt.records.base import UnreadableDocument, UnwritableFile, now
from scalerlt.records.cell import FrozenCell
from scalerlt.records.plan import Plan, PlannedCell
from scalerlt.records.store import CellDirectory, SweepDirectory
from scalerlt.schema.cell import load_cell
from scalerlt.schema.frozen import is_intact
from scalerlt.schema.identity import IDENTITY_VERSION


def sweep_name(request: Request, cells: list[ResolvedCell]) -> str:
    """The name of the sweep's directory: the sweep file's, else `adhoc-<experiment>`."""
    return request.sweep.name if request.sweep else f"adhoc-{cells[0].cell.experiment.name}"


def make_plan(request: Request, cells: list[ResolvedCell], provenance: dict[str, Any]) -> Plan:
    """The plan of a request, in the order in which its cells run; nothing is written.

    Args:
        cells: the request's cells, resolved.

    Raises:
        RequestErrors: two cells of one part of the sweep are the same, a rule ruling out one of them at least.
    """
    places = {tuple(cell.overrides): place for place, cell in enumerate(request.cells)}
    placed = [(entry.position, 0, _skipped(entry)) for entry in request.ruled_out]
    placed += [(places[tuple(cell.overrides)], 1, _planned(cell)) for cell in cells]
    named: dict[str, list[ComposedCell | RuledOut]] = {}
    for entry in request.ruled_out:
        named.setdefault(entry.cell_id, []).append(entry)
    for cell in cells:
        named.setdefault(cell.cell_id, []).append(request.cells[places[tuple(cell.overrides)]])
    if problems := named_twice(named.values(), machine_of(request.launcher)):
        raise RequestErrors(problems)
    each_once: dict[str, PlannedCell] = {}
    for *_, planned in sorted(placed, key=lambda entry: entry[:2]):
        each_once.setdefault(planned.cell_id, planned)
    return Plan(
        sweep=sweep_name(request, cells),
        created=now(),
        overrides=request.overrides,
        definition=request.sweep.definition if request.sweep else {},
        swept=request.swept,
        provenance=provenance,
        cells=arranged(list(each_once.values()), request.sweep),
    )


def freeze(
    plan: Plan, cells: list[ResolvedCell], runs_dir: Path, is_settled: Callable[[CellDirectory], bool] = lambda _: False
) -> tuple[SweepDirectory, str]:
    """Write the plan, and a cell.yaml for each cell that may run.

    One that stands there already is kept, unless it is damaged or was changed by hand, or the request now asks for
    other limits, gates or paths: these are no part of the identity, and the next attempt is to go by the newest. Of a
    cell that runs, waits for a job, or is not run again it is kept even then: nothing changes what was submitted or
    measured.

    Args:
        is_settled: whether a cell is such a one; asked of cells that the request would change.

    Returns:
        The sweep's directory and the plan's file name.

    Raises:
        UserError: `runs_dir` cannot be written to.
    """
    sweep = SweepDirectory(runs_dir / plan.sweep)
    try:
        for cell in cells:
            if cell.unsupported is not None:
                continue
            directory = sweep.cell(cell.cell_id)
            frozen = _frozen_before(directory.cell_file, cell)
            if frozen is not None and (frozen.config, frozen.axes) == (cell.config, cell.axes):
                continue
            if frozen is not None and is_settled(directory):
                continue
            directory.path.mkdir(parents=True, exist_ok=True)
            _frozen(cell, plan.sweep).write(directory.cell_file)
        return sweep, sweep.add_plan(plan).name
    except OSError as error:
        raise UserError(f"runs_dir={runs_dir}: records cannot be written there ({error.strerror})") from error
    except UnwritableFile as fault:
        raise UserError(f"runs_dir={runs_dir}: {fault}") from fault


def _planned(cell: ResolvedCell) -> PlannedCell:
    return PlannedCell(
        cell_id=cell.cell_id,
        axes=cell.axes,
        state="planned" if cell.unsupported is None else "unsupported",
        reason=cell.unsupported,
        overrides=cell.overrides,
    )


def _skipped(entry: RuledOut) -> PlannedCell:
    return PlannedCell(
        cell_id=entry.cell_id, axes=entry.axes, state="skipped", reason=entry.reason, overrides=entry.overrides
    )


def _frozen(cell: ResolvedCell, sweep: str) -> FrozenCell:
    return FrozenCell(
        identity_version=IDENTITY_VERSION,
        identity=cell.identity,
        cell_id=cell.cell_id,
        sweep=sweep,
        axes=cell.axes,
        overrides=cell.overrides,
        inputs=cell.inputs,
        config=cell.config,
    )


def _frozen_before(file: Path, cell: ResolvedCell) -> FrozenCell | None:
    """The cell as an earlier request froze it; None where there is no whole file of it, or it was changed since."""
    try:
        frozen = FrozenCell.read(file)
        intact = is_intact(frozen, load_cell(frozen.config))
    except UnreadableDocument:
        return None
    except RequestErrors:
        intact = True  # as far as can be told: another version has frozen it
    return frozen if intact and frozen.identity == cell.identity else None
