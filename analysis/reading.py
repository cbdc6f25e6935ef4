"""From files to cells: every planned cell of every sweep, its state, and the record that counts for it.

The record that counts is that of the newest attempt that answers the cell (measured, unsupported or out of memory),
else the newest record. A file that cannot be read or does not belong there is named in `problems` and passed over.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from scalerlt.analysis.series import SeriesRow
from scalerlt.errors import UserError
from scalerlt.records.base import Scalar, UnreadableDocument
from scalerlt.records.cell import FrozenCell
from scalerlt.records.plan import Plan, PlannedCell
from scalerlt.records.record import Metric, Record
from scalerlt.records.store import RECORD_FILE, Attempt, CellDirectory, SweepDirectory, sweeps

PLACES_OF_A_SWEEP = ("plans", "submissions")


@dataclass(frozen=True)
class CellResult:
    """What became of one cell.

    Attributes:
        state: `measured` or another verdict, `running`, `not_run`, `skipped`, or a plan-time `unsupported`.
        reason: why it is in that state, where somebody recorded it.
        attempts: number of attempts that were begun.
        record: the record that counts, if there is one.
        metrics: the figures of the record that counts, whatever its verdict.
        series: the rows of its training, where they were read.
    """

    sweep: str
    cell_id: str
    axes: Mapping[str, Scalar]
    state: str
    reason: str | None = None
    attempts: int = 0
    record: Record | None = None
    metrics: Mapping[str, Metric] = field(default_factory=dict)
    series: tuple[SeriesRow, ...] = ()


@dataclass(frozen=True)
class SweepResults:
    """One sweep: its cells in the order of its plans, and the files that were read for it.

    Attributes:
        swept: keys that its plans name as varying.
        plans: the plan files that were read, relative to `path`.
        records: every valid record file, relative to `path`, and whether it is the one that counts for its cell.
        problems: one sentence per file that was passed over; paths are relative to `path`.
        sources: the series and samples files that were read, relative to `path`.
    """

    name: str
    path: Path
    cells: list[CellResult]
    swept: list[str]
    plans: list[str]
    records: dict[str, bool]
    problems: list[str]
    sources: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Runs:
    """All sweeps under a path, by name, and what in it belongs to none of them."""

    sweeps: list[SweepResults]
    problems: list[str]

    @property
    def cells(self) -> list[CellResult]:
        """The cells of all sweeps."""
        return [cell for sweep in self.sweeps for cell in sweep.cells]

    @property
    def all_problems(self) -> list[str]:
        """The problems of all sweeps, each with its sweep's name, and those outside of them."""
        return [*self.problems, *(f"{sweep.name}/{problem}" for sweep in self.sweeps for problem in sweep.problems)]


def read_runs(path: str | Path) -> Runs:
    """Read a runs directory, or the directory of one sweep. Raises UserError when there is no such directory."""
    runs = Path(path).resolve()
    if not runs.is_dir():
        raise UserError(f"{path} is not a directory; name a runs directory or one sweep's directory in it")
    found = sweeps(runs)
    problems: list[str] = []
    if [sweep.path for sweep in found] != [runs]:
        known = {sweep.name for sweep in found}
        problems = [f"{name}: not a sweep (it has no plans)" for name in _visible(runs) if name not in known]
    return Runs([read_sweep(sweep) for sweep in found], problems)


def read_sweep(sweep: SweepDirectory) -> SweepResults:
    """Read one sweep: the union of its plans, and cells that have a directory but stand in no readable plan."""
    problems: list[str] = []
    planned: dict[str, PlannedCell] = {}
    swept: dict[str, None] = {}
    plans: list[str] = []
    for file, plan in sweep.plans():
        if isinstance(plan, Plan):
            plans.append(f"plans/{file.name}")
            swept.update(dict.fromkeys(plan.swept))
            planned.update((cell.cell_id, cell) for cell in plan.cells)  # the newest plan's word on a cell stands
        else:
            problems.append(f"plans/{file.name}: {_fault(plan, file)}")
    for name in _visible(sweep.path):
        if name in planned or name in PLACES_OF_A_SWEEP:
            continue
        unplanned = _unplanned(sweep.cell(name), problems)
        if unplanned is not None:
            planned[name] = unplanned
    records: dict[str, bool] = {}
    cells = [_result(sweep, cell, records, problems) for cell in planned.values()]
    return SweepResults(sweep.name, sweep.path, cells, list(swept), plans, dict(sorted(records.items())), problems)


def _result(sweep: SweepDirectory, planned: PlannedCell, records: dict[str, bool], problems: list[str]) -> CellResult:
    """One cell's result; adds its record files and what is wrong with its files to `records` and `problems`."""
    attempts = sweep.cell(planned.cell_id).attempts()
    valid: list[tuple[str, Record]] = []
    for attempt in attempts:
        file = f"{planned.cell_id}/{attempt.path.name}/{RECORD_FILE}"
        if attempt.fault is not None:
            problems.append(f"{file}: {attempt.fault.removeprefix(f'{attempt.path / RECORD_FILE}: ')}")
        elif attempt.record is not None and attempt.record.cell_id != planned.cell_id:
            problems.append(f"{file}: is the record of another cell, {attempt.record.cell_id}")
        elif attempt.record is not None:
            valid.append((file, attempt.record))
    answers = [entry for entry in valid if entry[1].verdict.answers]
    counting = next(reversed(answers or valid), None)
    records.update((file, counting is not None and file == counting[0]) for file, _ in valid)

    record = None if counting is None else counting[1]
    state, reason = _state(planned, record, attempts)
    axes = planned.axes if record is None else {**planned.axes, **record.axes}
    metrics = {} if record is None else record.metrics
    return CellResult(sweep.name, planned.cell_id, axes, state, reason, len(attempts), record, metrics)


def _state(planned: PlannedCell, record: Record | None, attempts: list[Attempt]) -> tuple[str, str | None]:
    if record is not None and record.verdict.answers:
        return record.verdict.value, _reason(record)
    if any(attempt.is_running for attempt in attempts):
        return "running", None
    if record is not None:
        return record.verdict.value, _reason(record)
    if attempts:
        return "lost", f"attempt {attempts[-1].number} left no readable record, and no process runs it"
    return ("not_run", None) if planned.state == "planned" else (planned.state, planned.reason)


def _reason(record: Record) -> str | None:
    if record.reason is None and record.failure is not None:
        return f"{record.failure.type}: {record.failure.message}"
    return record.reason


def _unplanned(directory: CellDirectory, problems: list[str]) -> PlannedCell | None:
    """A cell that stands in no readable plan, from its records or its frozen configuration."""
    name = directory.path.name
    axes: dict[str, Scalar] | None = None
    found: str | None = None
    if (record := directory.last_record()) is not None:
        found, axes = record.cell_id, record.axes
    elif directory.cell_file.exists():
        try:
            frozen = FrozenCell.read(directory.cell_file)
            found, axes = frozen.cell_id, frozen.axes
        except UnreadableDocument as fault:
            problems.append(f"{name}/{directory.cell_file.name}: {_fault(fault, directory.cell_file)}")
            return None
    if axes is None or found != name:
        problems.append(f"{name}: {'is not part of a sweep' if found is None else f'holds another cell, {found}'}")
        return None
    return PlannedCell(cell_id=name, axes=axes)


def _fault(fault: UnreadableDocument, file: Path) -> str:
    return str(fault).removeprefix(f"{file}: ")


def _visible(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir() if not path.name.startswith("."))
