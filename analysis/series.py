"""The series of a cell: the rows of its attempts' series.jsonl, joined as the attempts went on from each other."""

import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from scalerlt.records.base import NON_FINITE, Scalar, UnreadableDocument, read_file
from scalerlt.records.journal import Journal
from scalerlt.records.store import Attempt, CellDirectory

SERIES_FILE = "series.jsonl"
SeriesRow = Mapping[str, Scalar]
"""One line: `step` and whatever the experiment measured there."""


@dataclass(frozen=True)
class Stretch:
    """The part of a cell's training that one attempt contributes.

    Attributes:
        until: the last step of it that counts: the one that a later attempt went on from; infinite for the last.
        rows: its rows up to there.
        problems: one sentence per line that could not be read.
    """

    attempt: Attempt
    until: float
    rows: list[SeriesRow]
    problems: list[str]


def stretches(cell: CellDirectory) -> list[Stretch]:
    """What the cell's attempts contribute to its series, oldest first.

    The last is the attempt that answered the cell; of a cell without an answer the newest that has come to a row, or
    goes on from another. An attempt that went on from an earlier one stands behind that one's part up to the step it
    took it up at; one that began from nothing replaces all before it. Nothing, where the directory cannot be listed.
    """
    try:
        attempts = {attempt.number: attempt for attempt in cell.attempts()}
    except UnreadableDocument:
        return []
    read = {number: read_rows(attempt.path / SERIES_FILE) for number, attempt in attempts.items()}
    rows = {number: found for number, (found, _) in read.items()}
    earlier = {number: _goes_on_from(attempt, rows) for number, attempt in attempts.items()}
    answered = [number for number, one in attempts.items() if one.record and one.record.verdict.answers]
    begun = [number for number in attempts if rows[number] or earlier[number] is not None]
    number = next(reversed(answered or begun), None)
    parts: list[Stretch] = []
    until = math.inf
    while number is not None:
        own = [row for row in rows[number] if _step(row) <= until]
        parts.append(Stretch(attempts[number], until, own, read[number][1]))
        if rows[number]:
            until = min(until, _step(rows[number][0]) - 1)
        number = earlier[number]
    return parts[::-1]


def kind_of(row: SeriesRow) -> Literal["train", "eval"]:
    """Whether a row is of a training step or of an evaluation, which alone measures a held-out accuracy."""
    return "eval" if "accuracy" in row else "train"


def read_rows(path: Path) -> tuple[list[SeriesRow], list[str]]:
    """The rows of a file, and what is wrong with the lines that were passed over.

    "NaN", "Infinity" and "-Infinity" become numbers. A last line that was cut off is passed over without a word: the
    file is being written, or its writer was killed. A missing file has no rows.
    """
    try:
        text = read_file(path).decode("utf-8", errors="replace")
    except FileNotFoundError:
        return [], []
    except OSError as error:
        return [], [f"cannot be read ({error.strerror})"]
    *lines, last = text.split("\n")
    rows: list[SeriesRow] = []
    problems: list[str] = []
    for number, line in enumerate(lines, 1):
        row = _row(line)
        if row is None:
            problems.append(f"line {number} is not a row of a series: {line[:60]!r}")
        else:
            rows.append(row)
    whole = _row(last)
    return (rows if whole is None else [*rows, whole]), problems


def _row(line: str) -> SeriesRow | None:
    try:
        values = json.loads(line, parse_constant=_refuse)
    except ValueError:
        return None
    if not isinstance(values, dict) or type(values.get("step")) is not int:
        return None
    if any(isinstance(value, dict | list) for value in values.values()):
        return None
    return dict(_numbers(values))


def _numbers(values: dict[str, Any]) -> Iterator[tuple[str, Scalar]]:
    for name, value in values.items():
        yield name, NON_FINITE.get(value, value) if isinstance(value, str) else value


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is not strict JSON")


def _goes_on_from(attempt: Attempt, rows: Mapping[int, list[SeriesRow]]) -> int | None:
    """The earlier attempt that this one went on from: as its record or its journal says, else as its rows show.

    A journal may be missing (it is a hidden file). Rows that begin behind step 1 then go on from the newest earlier
    attempt that came as far.
    """
    told = Journal.of(attempt.path, 0).continues if attempt.record is None else attempt.record.continues
    if told is None and rows[attempt.number]:
        before = _step(rows[attempt.number][0]) - 1
        reached = (number for number, found in rows.items() if found and _step(found[-1]) >= before)
        told = max((number for number in reached if number < attempt.number), default=None) if before > 0 else None
    return told if told is not None and told in rows and told < attempt.number else None


def _step(row: SeriesRow) -> int:
    step = row["step"]
    assert isinstance(step, int)
    return step
