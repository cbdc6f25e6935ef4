"""Where the files of a run stand, and what state each cell is in.

runs/<sweep>/plans/NNN.json
runs/<sweep>/<cell_id>/cell.yaml
runs/<sweep>/<cell_id>/attempt-NNN/{lease,record,environment}.json, series.jsonl, stdout.log, stderr.log
"""

import hashlib
import os
import re
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from scalerlt.records.base import NewerDocument, UnreadableDocument, read_file, write_exclusively, writing
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
    record: Record | None = None
    sha256: str | None = None
    """Of the record's file, as it was read."""
    fault: str | None = None
    """Why the record file, though it exists, does not count."""
    newer: bool = False
    """Whether the record does not count because a later version of ScaleRLT wrote it."""

    @cached_property
    def lease(self) -> Lease | None:
        """Who holds it, read when first asked for; None of one just claimed, or whose holder died before it wrote."""
        try:
            return Lease.read(self.path / LEASE_FILE)
        except UnreadableDocument:
            return None

    @property
    def answers(self) -> bool:
        """Whether it has a record that answers the cell."""
        return self.record is not None and self.record.verdict.answers

    @property
    def is_running(self) -> bool:
        """Whether a living process holds the attempt and has not recorded it yet."""
        if self.record is not None or self.fault is not None:
            return False
        if self.lease is not None:
            return self.lease.is_alive()
        try:
            return time.time() - self.path.stat().st_mtime < CLAIM_SECONDS
        except FileNotFoundError:  # removed in this moment
            return False


def standing(attempts: Iterable[Attempt]) -> Record | None:
    """The record that stands for a cell: its newest answer (measured, unsupported or out of memory), else its newest.

    Args:
        attempts: at the cell, oldest first.
    """
    records = [attempt.record for attempt in attempts if attempt.record is not None]
    answers = [record for record in records if record.verdict.answers]
    return next(reversed(answers or records), None)


class CellDirectory:
    """runs/<sweep>/<cell_id>: its attempts and what they say."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @property
    def cell_file(self) -> Path:
        """The frozen configuration."""
        return self.path / CELL_FILE

    def attempts(self) -> list[Attempt]:
        """All attempts, oldest first. Raises UnreadableDocument when the directory cannot be listed."""
        try:
            names = os.listdir(self.path)
        except (FileNotFoundError, NotADirectoryError):
            return []
        except OSError as error:
            raise UnreadableDocument(f"{self.path}: cannot be listed ({error.strerror})") from error
        numbered = sorted((int(match[1]), name) for name in names if (match := _ATTEMPT.fullmatch(name)))
        paths = [(number, self.path / name) for number, name in numbered]
        return [_attempt(path, number) for number, path in paths if os.path.isdir(path)]

    def claim(self, seen: int | None = None) -> tuple[int, Path]:
        """Make the next attempt's directory; exclusive, so of two processes that want the cell one gets it.

        Args:
            seen: number of the newest attempt when it was decided that the cell is to run, 0 of none: what another
                process has tried since was not considered, and may answer it. None: it is to run in any case.

        Raises:
            CellClaimed: a living process holds an attempt, or one was made since it was decided.
            UnwritableFile: the directory cannot be made.
        """
        attempts = self.attempts()
        running = next((attempt for attempt in attempts if attempt.is_running), None)
        if running is not None:
            raise CellClaimed(f"{running.path} is running{_holder(running.lease)}")
        newest = max((attempt.number for attempt in attempts), default=0)
        if seen is not None and newest > seen:
            raise CellClaimed(f"{attempts[-1].path} was made by another process in the meantime")
        number = newest + 1
        path = self.path / f"attempt-{number:03d}"
        with writing(path):
            try:
                path.mkdir()
            except FileExistsError:
                raise CellClaimed(f"{path} was made by another process in this moment") from None
        return number, path

    def last_record(self) -> Record | None:
        """The record that stands for the cell (see `standing`)."""
        return standing(self.attempts())


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
    if os.path.isdir(runs / "plans"):  # unlike Path.is_dir, false where looking is not permitted
        return [SweepDirectory(runs)]
    if not runs.is_dir():
        return []
    return [SweepDirectory(path) for path in sorted(runs.iterdir()) if os.path.isdir(path / "plans")]


def keep_aside(record_file: Path) -> Path:
    """Move a corrupt record out of the way without losing it: record.json becomes record.json.corrupt-N.

    Raises:
        UnwritableFile: it cannot be moved.
    """
    number = 1
    while (target := record_file.with_name(f"{record_file.name}.corrupt-{number}")).exists():
        number += 1
    with writing(record_file):
        return record_file.rename(target)


def _attempt(path: Path, number: int) -> Attempt:
    file = path / RECORD_FILE
    try:
        content = read_file(file)
    except FileNotFoundError:
        return Attempt(path, number)
    except OSError as error:
        return Attempt(path, number, fault=f"{file}: cannot be read ({error.strerror})")
    try:
        record = Record.parse(content, file)
    except UnreadableDocument as error:
        return Attempt(path, number, fault=str(error), newer=isinstance(error, NewerDocument))
    return Attempt(path, number, record, hashlib.sha256(content).hexdigest())


def _holder(lease: Lease | None) -> str:
    return "" if lease is None else f" on {lease.host} (pid {lease.pid})"
