"""Where the files of a run stand, and what state each cell is in.

runs/<sweep>/plans/NNN.json
runs/<sweep>/<cell_id>/cell.yaml
runs/<sweep>/<cell_id>/attempt-NNN/{lease,record,environment}.json, series.jsonl, stdout.log, stderr.log
"""

import re
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from scalerlt.records.base import NewerDocument, UnreadableDocument, write_exclusively
from scalerlt.records.lease import Lease
from scalerlt.records.plan import Plan
from scalerlt.records.record import Record

CELL_FILE = "cell.yaml"
RECORD_FILE = "record.json"
LEASE_FILE = "lease.json"
ENVIRONMENT_FILE = "environment.json"
_ATTEMPT = re.compile(r"attempt-(\d{3,})")
CLAIM_SECONDS = 30.0
"""For so long an attempt without a lease is one whose holder is about to write it."""


class CellClaimed(Exception):
    """Another process holds the cell, or took it at the same moment. The message says which attempt."""


@dataclass(frozen=True)
class Attempt:
    """One attempt's directory, with its record or the reason why there is none."""

    path: Path
    number: int
    record: Record | None
    fault: str | None
    """Why the record file, though it exists, does not count."""
    lease: Lease | None
    newer: bool = False
    """Whether the record does not count because a later version of ScaleRLT wrote it."""

    @property
    def is_running(self) -> bool:
        """Whether a living process holds the attempt and has not recorded it yet."""
        if self.record is not None or self.fault is not None:
            return False
        if self.lease is None:
            return time.time() - self.path.stat().st_mtime < CLAIM_SECONDS
        return self.lease.is_alive()


class CellDirectory:
    """runs/<sweep>/<cell_id>: its attempts and what they say."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @property
    def cell_file(self) -> Path:
        """The frozen configuration."""
        return self.path / CELL_FILE

    def attempts(self) -> list[Attempt]:
        """All attempts, oldest first."""
        if not self.path.is_dir():
            return []
        numbered = [
            (int(match[1]), path)
            for path in self.path.iterdir()
            if (match := _ATTEMPT.fullmatch(path.name)) and path.is_dir()
        ]
        return [_attempt(path, number) for number, path in sorted(numbered)]

    def claim(self) -> tuple[int, Path]:
        """Make the next attempt's directory; exclusive, so of two processes that want the cell one gets it.

        Raises:
            CellClaimed: a living process holds an attempt, or made the next one in this very moment.
        """
        attempts = self.attempts()
        running = next((attempt for attempt in attempts if attempt.is_running), None)
        if running is not None:
            raise CellClaimed(f"{running.path} is running{_holder(running.lease)}")
        number = max((attempt.number for attempt in attempts), default=0) + 1
        path = self.path / f"attempt-{number:03d}"
        try:
            path.mkdir()
        except FileExistsError:
            raise CellClaimed(f"{path} was made by another process in this moment") from None
        return number, path

    def answer(self) -> Record | None:
        """The newest record that answers the cell (measured, unsupported or out of memory)."""
        records = [attempt.record for attempt in self.attempts() if attempt.record is not None]
        return next((record for record in reversed(records) if record.verdict.answers), None)

    def last_record(self) -> Record | None:
        """The record that stands for the cell: its answer, else its newest record."""
        records = [attempt.record for attempt in self.attempts() if attempt.record is not None]
        return self.answer() or (records[-1] if records else None)


class SweepDirectory:
    """runs/<sweep>: its plans and its cells."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @property
    def name(self) -> str:
        """The sweep's name."""
        return self.path.name

    def cell(self, cell_id: str) -> CellDirectory:
        """The directory of one cell, whether it exists or not."""
        return CellDirectory(self.path / cell_id)

    def cells(self) -> list[CellDirectory]:
        """Every directory that holds a frozen cell, by name."""
        if not self.path.is_dir():
            return []
        return [CellDirectory(path.parent) for path in sorted(self.path.glob(f"*/{CELL_FILE}"))]

    def add_plan(self, plan: Plan) -> Path:
        """Write a plan under the next free number."""
        return write_exclusively(self.path / "plans", ".json", plan.to_json())

    def plans(self) -> Iterator[tuple[Path, Plan | UnreadableDocument]]:
        """Every plan, oldest first; an unreadable one as its fault."""
        for path in sorted((self.path / "plans").glob("[0-9]*.json")):
            try:
                yield path, Plan.read(path)
            except UnreadableDocument as fault:
                yield path, fault


def sweeps(runs: Path) -> list[SweepDirectory]:
    """The sweeps of a runs directory; `runs` may also be one sweep's own directory."""
    if (runs / "plans").is_dir():
        return [SweepDirectory(runs)]
    if not runs.is_dir():
        return []
    return [SweepDirectory(path) for path in sorted(runs.iterdir()) if (path / "plans").is_dir()]


def keep_aside(record_file: Path) -> Path:
    """Move a corrupt record out of the way without losing it: record.json becomes record.json.corrupt-N."""
    number = 1
    while (target := record_file.with_name(f"{record_file.name}.corrupt-{number}")).exists():
        number += 1
    return record_file.rename(target)


def _attempt(path: Path, number: int) -> Attempt:
    record: Record | None = None
    lease: Lease | None = None
    fault: str | None = None
    newer = False
    if (path / RECORD_FILE).exists():
        try:
            record = Record.read(path / RECORD_FILE)
        except UnreadableDocument as error:
            fault, newer = str(error), isinstance(error, NewerDocument)
    try:
        lease = Lease.read(path / LEASE_FILE)
    except UnreadableDocument:
        lease = None  # claimed a moment ago, or its holder died before it wrote one
    return Attempt(path, number, record, fault, lease, newer)


def _holder(lease: Lease | None) -> str:
    return "" if lease is None else f" on {lease.host} (pid {lease.pid})"
