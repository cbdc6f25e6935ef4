"""What follows from a cell that is out of memory: those that differ from it only in a larger batch would be, too.

They are skipped and marked as inferred, with the cell that implies it. Only a cell that was never tried is skipped,
and only while the record that implies it stands: when it is measured after all, the inference is gone.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from scalerlt.errors import UserError
from scalerlt.planning.retry import why_again
from scalerlt.records.base import Scalar, UnreadableDocument
from scalerlt.records.plan import Plan, PlannedCell
from scalerlt.records.record import Verdict
from scalerlt.records.store import SweepDirectory


def infers_oom(launcher: Mapping[str, Any]) -> bool:
    """Whether the launcher's settings ask for it: `hydra.launcher.infer_oom`; UserError when it is neither."""
    value = launcher.get("infer_oom", True)
    if not isinstance(value, bool):
        raise UserError(f"hydra.launcher.infer_oom={value}: give true or false")
    return value


def with_inferred(plan: Plan, sweep: SweepDirectory, retry: Iterable[str]) -> Plan:
    """The plan with the cells skipped that earlier records of `oom` imply; those of cells that run again imply none."""
    words, revision = frozenset(retry), plan.provenance.get("git_revision")

    def is_out_of_memory(cell: PlannedCell) -> bool:
        try:
            record = sweep.cell(cell.cell_id).last_record()
        except UnreadableDocument:
            return False
        return record is not None and record.verdict is Verdict.OOM and not why_again(record, words, revision)

    inferred = {cell.cell_id: cell for cell in implied(plan.cells, is_out_of_memory, sweep)}
    return plan.model_copy(update={"cells": [inferred.get(cell.cell_id, cell) for cell in plan.cells]})


def implied(
    cells: Iterable[PlannedCell], is_out_of_memory: Callable[[PlannedCell], bool], sweep: SweepDirectory
) -> list[PlannedCell]:
    """The cells that were never tried and that one which is out of memory implies, as they then stand in a plan."""
    alike: dict[tuple[tuple[str, Scalar], ...], list[PlannedCell]] = {}
    for cell in cells:
        if cell.state == "planned":
            alike.setdefault(_beside_the_batch(cell.axes), []).append(cell)
    found: dict[str, PlannedCell] = {}
    for group in alike.values():
        if len({_batch(cell.axes) for cell in group}) < 2:
            continue
        for small in filter(is_out_of_memory, group):
            for large in group:
                if large.cell_id not in found and is_larger(large.axes, small.axes) and not _was_tried(large, sweep):
                    found[large.cell_id] = _skipped(large, small)
    return list(found.values())


def no_longer_implied(cell_id: str, sweep: SweepDirectory) -> list[PlannedCell]:
    """The cells that the sweep's plans skip because of one that is measured by now, as they then stand in a plan."""
    stands = {cell.cell_id: cell for _, plan in sweep.plans() if isinstance(plan, Plan) for cell in plan.cells}
    return [
        cell.model_copy(update={"state": "planned", "reason": None, "inferred_from": None})
        for cell in stands.values()
        if cell.inferred_from == cell_id
    ]


def is_larger(axes: Mapping[str, Scalar], than: Mapping[str, Scalar]) -> bool:
    """Whether one batch is larger than another in at least one of its sizes and smaller in none."""
    sizes = [(value, than.get(key)) for key, value in axes.items() if key.startswith("batch.")]
    if not all(isinstance(one, int) and isinstance(other, int) for one, other in sizes):
        return False
    differences = [one - other for one, other in sizes if isinstance(one, int) and isinstance(other, int)]
    return all(difference >= 0 for difference in differences) and any(differences)


def _skipped(large: PlannedCell, small: PlannedCell) -> PlannedCell:
    named = [
        key for key in sorted(large.axes) if key.split(".")[0] == "batch" and large.axes[key] != small.axes.get(key)
    ]
    key = named[0]
    reason = (
        f"inferred: {small.cell_id} is out of memory, and this cell differs from it only in a larger batch "
        f"({key}={large.axes[key]} instead of {small.axes.get(key)})"
    )
    return large.model_copy(update={"state": "skipped", "reason": reason, "inferred_from": small.cell_id})


def _was_tried(cell: PlannedCell, sweep: SweepDirectory) -> bool:
    try:
        return bool(sweep.cell(cell.cell_id).attempts())
    except UnreadableDocument:
        return True  # the queue says what is wrong with it


def _beside_the_batch(axes: Mapping[str, Scalar]) -> tuple[tuple[str, Scalar], ...]:
    return tuple(sorted((item for item in axes.items() if item[0].split(".")[0] != "batch"), key=lambda item: item[0]))


def _batch(axes: Mapping[str, Scalar]) -> tuple[tuple[str, Scalar], ...]:
    return tuple(item for item in axes.items() if item[0].split(".")[0] == "batch")
