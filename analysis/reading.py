"""From files to cells: every planned cell of every sweep, its state, and the record that counts for it.

The record that counts is that of the newest attempt that answers the cell (measured, unsupported or out of memory),
else the newest record. A file that cannot be read or does not belong there is named in `problems` and passed over.
"""

import gc
import hashlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from scalerlt.analysis.series import SeriesRow
from scalerlt.errors import UserError
from scalerlt.records.base import Scalar, UnreadableDocument, read_file
from scalerlt.records.cell import FrozenCell
from scalerlt.records.plan import Plan, PlannedCell
from scalerlt.records.record import Metric, Record
from scalerlt.records.store import RECORD_FILE, Attempt, CellDirectory, SweepDirectory, standing, sweeps

PLACES_OF_A_SWEEP = ("plans", "submissions")


@dataclass(frozen=True)
class CellResult:
    """What became of one cell.

    Attributes:
        state: `measured` or another verdict, `running`, `not_run`, `skipped`, or a plan-time `unsupported`.
        reason: why it is in that state, where somebody recorded it.
        attempts: number of attempts that were begun.
        record: the record that counts, if there is one.
        file: where that record stands, relative to the sweep's directory.
        metrics: the figures of the record that counts, whatever its verdict.
        series: the rows of its training, where they were read.
        answers: for each held-out problem whether the answers to it are right, where they were read.
    """

    sweep: str
    cell_id: str
    axes: Mapping[str, Scalar]
    state: str
    reason: str | None = None
    attempts: int = 0
    record: Record | None = None
    file: str | None = None
    metrics: Mapping[str, Metric] = field(default_factory=dict)
    series: tuple[SeriesRow, ...] = ()
    answers: Mapping[str, tuple[bool, ...]] = field(default_factory=dict)


@dataclass(frozen=True)
class SweepResults:
    """One sweep: its cells in the order of its plans, and the files that were read for it.

    Attributes:
        swept: keys that its plans name as varying.
        plans: the plan files that were read, relative to `path`, each with its SHA-256.
        records: the record files that count for their cells, relative to `path`, each with the SHA-256 of what was
            read.
        superseded: the other valid record files, likewise.
        problems: one sentence per file that was passed over; paths are relative to `path`.
        sources: the series and samples files that were read, relative to `path`.
    """

    name: str
    path: Path
    cells: list[CellResult]
    swept: list[str]
    plans: dict[str, str]
    records: dict[str, str]
    superseded: dict[str, str]
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


@contextmanager
def no_cycle_search() -> Iterator[None]:
    """Keep the cyclic garbage collector off: among the millions of objects of many records it finds nothing.

    It takes half of the time of reading 10,000 records.
    """
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


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
    with no_cycle_search():
        return Runs([read_sweep(sweep) for sweep in found], problems)


def read_sweep(sweep: SweepDirectory) -> SweepResults:
    """Read one sweep: the union of its plans, and cells that have a directory but stand in no readable plan."""
    read = SweepResults(sweep.name, sweep.path, [], [], {}, {}, {}, [])
    planned: dict[str, PlannedCell] = {}
    swept: dict[str, None] = {}
    for file, plan in sweep.plans():
        name = f"plans/{file.name}"
        if isinstance(plan, Plan) and (digest := _digest(file)) is not None:
            read.plans[name] = digest
            swept.update(dict.fromkeys(plan.swept))
            planned.update((cell.cell_id, cell) for cell in plan.cells)  # the newest plan's word on a cell stands
        else:
            fault = _fault(plan, file) if isinstance(plan, UnreadableDocument) else "removed while it was read"
            read.problems.append(f"{name}: {fault}")
    read.swept.extend(swept)
    for cell in planned.values():
        read.cells.append(_result(read, cell, _attempts(read, sweep.cell(cell.cell_id))))
    for name in _visible(sweep.path):
        if name not in planned and name not in PLACES_OF_A_SWEEP:
            directory = sweep.cell(name)
            attempts = _attempts(read, directory)
            if attempts is not None and (unplanned := _unplanned(read, directory, attempts)) is not None:
                read.cells.append(_result(read, unplanned, attempts))
    return read


def _attempts(read: SweepResults, directory: CellDirectory) -> list[Attempt] | None:
    """The attempts at a cell; None where its directory cannot be listed, which is a problem then."""
    try:
        return directory.attempts()
    except UnreadableDocument as fault:
        read.problems.append(f"{directory.path.name}: {_fault(fault, directory.path)}")
        return None


def _result(read: SweepResults, planned: PlannedCell, attempts: list[Attempt] | None) -> CellResult:
    """One cell's result; adds its record files and what is wrong with its files to what was read."""
    if attempts is None:
        return CellResult(read.name, planned.cell_id, planned.axes, "lost", "its directory cannot be listed")
    valid: dict[str, Attempt] = {}
    for attempt in attempts:
        file = f"{planned.cell_id}/{attempt.path.name}/{RECORD_FILE}"
        if attempt.fault is not None:
            read.problems.append(f"{file}: {attempt.fault.removeprefix(f'{attempt.path / RECORD_FILE}: ')}")
        elif attempt.record is not None and attempt.record.cell_id != planned.cell_id:
            read.problems.append(f"{file}: is the record of another cell, {attempt.record.cell_id}")
        elif attempt.record is not None:
            valid[file] = attempt
    record = standing(valid.values())
    counting = next((file for file, attempt in valid.items() if attempt.record is record), None)
    for file, attempt in valid.items():
        place = read.records if file == counting else read.superseded
        place[file] = attempt.sha256 or ""

    state, reason = _state(planned, record, attempts)
    axes = planned.axes if record is None else {**planned.axes, **record.axes}
    metrics = {} if record is None else record.metrics
    return CellResult(read.name, planned.cell_id, axes, state, reason, len(attempts), record, counting, metrics)


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


def _unplanned(read: SweepResults, directory: CellDirectory, attempts: list[Attempt]) -> PlannedCell | None:
    """A cell that stands in no readable plan, from its records or its frozen configuration."""
    name = directory.path.name
    found: str | None = None
    axes: dict[str, Scalar] = {}
    records = [attempt.record for attempt in attempts if attempt.record is not None]
    if records:
        found, axes = records[-1].cell_id, records[-1].axes
    elif directory.cell_file.exists():
        try:
            frozen = FrozenCell.read(directory.cell_file)
            found, axes = frozen.cell_id, frozen.axes
        except UnreadableDocument as fault:
            read.problems.append(f"{name}/{directory.cell_file.name}: {_fault(fault, directory.cell_file)}")
            return None
    if found != name:
        read.problems.append(f"{name}: {'is not part of a sweep' if found is None else f'holds another cell, {found}'}")
        return None
    return PlannedCell(cell_id=name, axes=axes)


def _digest(file: Path) -> str | None:
    """SHA-256 of a file; None where it is gone."""
    try:
        return hashlib.sha256(read_file(file)).hexdigest()
    except OSError:
        return None


def _fault(fault: UnreadableDocument, file: Path) -> str:
    return str(fault).removeprefix(f"{file}: ")


def _visible(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir() if not path.name.startswith("."))
