"""Following an attempt by its files: what it is, the rows of its series, its evaluations' answers, its record."""

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from scalerlt.records.base import NON_FINITE, Scalar, UnreadableDocument, open_file, read_file
from scalerlt.records.cell import FrozenCell
from scalerlt.records.journal import Journal
from scalerlt.records.record import Record
from scalerlt.records.store import CELL_FILE, ENVIRONMENT_FILE, RECORD_FILE

SERIES_FILE = "series.jsonl"
MIRRORS = "mirrors"
"""The folder in an attempt that mirrors write to."""
SHOWN_PROBLEMS = 20
"""How many problems of an evaluation a table of answers holds: always the first."""

Row = dict[str, Scalar]


class Answers(NamedTuple):
    """The answers that a held-out evaluation gave to its first problems."""

    step: int
    rows: list[dict[str, Any]]


@dataclass(frozen=True)
class Link:
    """An attempt in a chain of attempts that went on from each other.

    Attributes:
        first_step: the step of its first row; None while it has none.
        last_step: of its last row.
        events: rows and evaluations that it has left.
    """

    number: int
    path: Path
    first_step: int | None
    last_step: int | None
    events: int


@dataclass(frozen=True)
class Mirrored:
    """What is mirrored: one attempt at a cell.

    Attributes:
        attempt: its directory.
        hurried: whether the attempt has ended already, so that a few seconds are all that there is.
    """

    attempt: Path
    hurried: bool = False

    @property
    def number(self) -> int:
        """The attempt's number."""
        return int(self.attempt.name.rpartition("-")[2])

    @property
    def folder(self) -> Path:
        """Where its mirrors write."""
        return self.attempt / MIRRORS

    @cached_property
    def frozen(self) -> FrozenCell:
        """The cell."""
        return FrozenCell.read(self.attempt.parent / CELL_FILE)

    @cached_property
    def chain(self) -> list[Link]:
        """The attempts that went on from each other, this one last; known once this one has a row or a record."""
        links = [_link(self.number, self.attempt)]
        while (earlier := _continues(links[0].path)) is not None and earlier < links[0].number:
            links.insert(0, _link(earlier, self.attempt.parent / f"attempt-{earlier:03d}"))
        return links

    def superseded(self) -> dict[str, int]:
        """By attempt, the first of its steps that a later attempt has done again."""
        found: dict[str, int] = {}
        begins: int | None = None
        for link in reversed(self.chain):
            if begins is not None and link.last_step is not None and link.last_step >= begins:
                found[link.path.name] = begins
            known = [step for step in (begins, link.first_step) if step is not None]
            begins = min(known, default=None)
        return dict(sorted(found.items()))

    def facts(self) -> dict[str, Any]:
        """The code, and the machine that it ran on, as the supervisor wrote them down."""
        try:
            content: dict[str, Any] = json.loads(read_file(self.attempt / ENVIRONMENT_FILE))
        except (OSError, ValueError):
            return {}
        return content

    def record(self) -> Record | None:
        """How the attempt ended, once it has."""
        try:
            return Record.read(self.attempt / RECORD_FILE)
        except UnreadableDocument:
            return None


class Mirror(Protocol):
    """What `_target_` of a tracker makes of a Mirrored and of the tracker's values; making it may take seconds.

    Nothing that it raises reaches the cell.

    Attributes:
        notes: what the record should say about it.
    """

    notes: list[str]

    def row(self, row: Row) -> None:
        """Take one row of the series."""
        ...

    def answers(self, answers: Answers) -> None:
        """Take the answers of one evaluation."""
        ...

    def end(self, record: Record | None) -> None:
        """Take the record and come to an end; None when the attempt was lost and has none."""
        ...


MakeMirror = Callable[[Mirrored, Mapping[str, Any]], Mirror]


@dataclass
class Follower:
    """Reads on in an attempt's series and samples as they grow."""

    attempt: Path
    _offset: int = 0
    _seen: set[str] = field(default_factory=set)

    def read_on(self) -> list[Row | Answers]:
        """What has come since the last call: rows first."""
        return [*self._rows(), *self._answers()]

    def _rows(self) -> Iterator[Row]:
        for row, behind in _rows(self.attempt / SERIES_FILE, self._offset):
            self._offset = behind
            yield row

    def _answers(self) -> Iterator[Answers]:
        for path in _evaluations(self.attempt):
            if path.name not in self._seen:
                self._seen.add(path.name)
                yield Answers(int(path.stem.rpartition("-")[2]), _first_answers(path))


def _link(number: int, path: Path) -> Link:
    steps = [_step(row) for row, _ in _rows(path / SERIES_FILE, 0)]
    known = [step for step in steps if step is not None]
    events = len(steps) + len(_evaluations(path))
    return Link(number, path, known[0] if known else None, known[-1] if known else None, events)


def _continues(attempt: Path) -> int | None:
    """The attempt that one goes on from, as its journal says, or its record, for which the journal is removed."""
    if (told := Journal.of(attempt, 0).continues) is not None:
        return told
    try:
        return Record.read(attempt / RECORD_FILE).continues
    except UnreadableDocument:
        return None


def _rows(path: Path, offset: int) -> Iterator[tuple[Row, int]]:
    """The whole lines of a series from a byte on, each with the byte behind it; what is no row is passed over."""
    try:
        with open_file(path) as file:
            file.seek(offset)
            added = file.read()
    except OSError:
        return
    for line in added[: added.rfind(b"\n") + 1].splitlines(keepends=True):
        offset += len(line)
        try:
            values = json.loads(line)
        except ValueError:
            continue
        if isinstance(values, dict):
            yield (
                {
                    name: NON_FINITE.get(value, value) if isinstance(value, str) else value
                    for name, value in values.items()
                    if not isinstance(value, dict | list)
                },
                offset,
            )


def _step(row: Row) -> int | None:
    step = row.get("step")
    return step if isinstance(step, int) else None


def _evaluations(attempt: Path) -> list[Path]:
    return sorted((attempt / "samples").glob("eval-*[0-9].jsonl"))


def _first_answers(path: Path) -> list[dict[str, Any]]:
    """The answers to the first problems of a samples file; no more of it is read, and nothing but JSON is asked for."""
    found: dict[str, dict[str, Any]] = {}
    try:
        with open_file(path) as file:
            next(file, None)  # the header
            for line in file:
                sample = json.loads(line)
                found.setdefault(sample["problem_id"], sample)
                if len(found) == SHOWN_PROBLEMS:
                    break
    except (OSError, ValueError, LookupError, TypeError):
        pass  # what was read before the fault stands
    return [_answer(sample) for sample in found.values()]


def _answer(sample: Mapping[str, Any]) -> dict[str, Any]:
    depths = sample.get("exit_depths")
    return {
        "problem": str(sample["problem_id"]),
        "question": sample.get("question") or "",
        "gold": sample.get("gold") or "",
        "answer": sample.get("text") or "",
        "read": sample.get("extracted") or "",
        "right": bool(sample.get("reward", 0) > 0),
        "tokens": len(sample.get("response_tokens", ())),
        "mean_depth": sum(depths) / len(depths) if depths else None,
    }
