"""The journal: what a rank has recorded so far, one JSON line after the other, and the reading of it.

The recorder appends a line for each phase, step of progress, pass, metric and note as it happens, and the rank's last
line says how it ended. The supervisor needs no other word from a rank, and one that is killed keeps what it had.
"""

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from scalerlt.records.base import Part, open_file
from scalerlt.records.record import Failure, Metric, Verdict

PROGRESS_FILE = ".progress-rank{rank}"


class Ending(Part):
    """A rank's last word: how its experiment ended."""

    verdict: Verdict
    reason: str | None = None
    failure: Failure | None = None
    experiment_seconds: float | None = None
    """Wall time of the experiment's function; None when it was never called."""


@dataclass
class Journal:
    """One rank's journal, read as it grows.

    Attributes:
        path: the attempt's `.progress-rank{rank}`.
        phase: the innermost phase entered.
        done, total, what: how far that phase is.
        ended_at: when the ending was written, in UTC, ISO 8601.
        continues: the attempt that this one goes on from.
    """

    path: Path
    phase: str | None = None
    done: int | None = None
    total: int | None = None
    what: str = ""
    passes: list[str] = field(default_factory=list)
    metrics: dict[str, Metric] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    ending: Ending | None = None
    ended_at: str = ""
    continues: int | None = None
    _offset: int = 0

    @classmethod
    def of(cls, attempt: Path, rank: int) -> "Journal":
        """The journal of one rank, read as far as it goes."""
        journal = cls(attempt / PROGRESS_FILE.format(rank=rank))
        journal.read_on()
        return journal

    def read_on(self) -> None:
        """Take in the lines added since the last call; one that is still being written waits for the next."""
        try:
            with open_file(self.path) as file:
                file.seek(self._offset)
                added = file.read()
        except OSError:
            return  # the rank has not come so far, or what stands there is no journal
        whole = added[: added.rfind(b"\n") + 1]
        self._offset += len(whole)
        for line in whole.splitlines():
            try:
                self._take(json.loads(line))
            except (ValueError, ValidationError):
                self.notes.append(f"a line of the journal cannot be read: {line[:80]!r}")

    def _take(self, entry: dict[str, Any]) -> None:
        match entry:
            case {"phase": str(phase)}:
                self.phase, self.done, self.total, self.what = phase, None, None, ""
            case {"done": int(done), "total": int(total), "what": str(what)}:
                self.done, self.total, self.what = done, total, what
            case {"pass": str(name)}:
                self.passes.append(name)
            case {"metric": str(name), "is": metric}:
                self.metrics[name] = Metric.model_validate(metric)
            case {"note": str(text)}:
                self.notes.append(text)
            case {"continues": int(attempt)}:
                self.continues = attempt
            case {"ending": ending, "time": str(time)}:
                self.ending, self.ended_at = Ending.model_validate(ending), time
            case _:
                raise ValueError("not an entry of a journal")
