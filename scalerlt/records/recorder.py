"""The recorder: what an experiment writes its measurements to, while it runs.

It writes each phase, pass, metric and note to the rank's journal and each row of a series to `series.jsonl`, flushed
line by line: a cell that is killed keeps what it had, and its record says where it was. What cannot be written ends the
cell: every method that writes raises UnwritableFile then.
"""

import json
import math
import os
import statistics
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from scalerlt.records.base import Scalar, finite, now, writing
from scalerlt.records.journal import PROGRESS_FILE, Ending
from scalerlt.records.record import Metric, Spread


class Recorder:
    """Collects one process's metrics, series, passes and notes.

    Args:
        attempt: the attempt's directory.
        rank: rank of this process; only rank 0 writes series.

    Attributes:
        preempted: whether the cell has been asked to end early. An experiment that can save its state looks at this
            where it could go on from, saves, and raises `Preempted`; others are ended.
    """

    def __init__(self, attempt: Path, rank: int = 0) -> None:
        self.attempt = attempt
        self.rank = rank
        self.metrics: dict[str, Metric] = {}
        self.passes: list[str] = []
        self.notes: list[str] = []
        self.phase_name = "start"
        self.preempted = False
        self._journal_file = attempt / PROGRESS_FILE.format(rank=rank)
        with writing(self._journal_file):
            self._journal = self._journal_file.open("a", encoding="utf-8")

    def close(self) -> None:
        """Close the files."""
        with writing(self._journal_file):
            self._journal.close()

    @contextmanager
    def measuring(self, name: str) -> Iterator[None]:
        """One pass of the process (warm_up, time, memory, reference): named in the record, in order."""
        self.passes.append(name)
        self._write({"pass": name})
        with self.phase(name):
            yield

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """A phase (load, generate, forward, ...); the record of a failure names the innermost one entered."""
        outer = self.phase_name
        self._enter(name)
        yield
        self._enter(outer)  # not in a finally: a failure leaves the phase that it happened in

    def progress(self, done: int, total: int, what: str = "") -> None:
        """Tell the supervisor how far the cell is; shown in the progress display."""
        self._write({"done": done, "total": total, "what": what})

    def metric(
        self,
        name: str,
        value: float | int | bool | str,
        unit: str = "",
        *,
        n: int | None = None,
        scope: str | None = None,
        method: str | None = None,
    ) -> None:
        """Record one measured figure. A name is recorded once."""
        self._add(name, Metric(value=value, unit=unit, n=n, scope=scope, method=method))

    def repeated(
        self,
        name: str,
        values: Sequence[float],
        unit: str,
        *,
        scope: str | None = None,
        method: str | None = None,
    ) -> None:
        """Record repeats of one figure: each is kept, and the median is its value (NaN when one is not finite)."""
        if not values:
            raise ValueError(f"metric {name} has no values; record it as not measured instead")
        floats = [float(value) for value in values]
        sample = floats if all(map(math.isfinite, floats)) else [math.nan]  # no order, no spread among NaNs
        self._add(
            name,
            Metric(
                value=statistics.median(sample),
                unit=unit,
                n=len(floats),
                values=floats,
                spread=Spread(
                    minimum=min(sample),
                    maximum=max(sample),
                    standard_deviation=statistics.stdev(sample) if len(sample) > 1 else None,
                ),
                scope=scope,
                method=method,
            ),
        )

    def not_measured(self, name: str, reason: str, unit: str = "") -> None:
        """Record that a figure was not measured, and why."""
        self._add(name, Metric(status="not_measured", unit=unit, reason=reason))

    def unsupported(self, name: str, reason: str, unit: str = "") -> None:
        """Record that a figure cannot be had in this configuration, and why."""
        self._add(name, Metric(status="unsupported", unit=unit, reason=reason))

    def continues(self, attempt: int) -> None:
        """This attempt goes on from where an earlier one, by its number, had saved its state."""
        self._write({"continues": attempt})

    def note(self, text: str) -> None:
        """Add a warning that a reader of the numbers should see."""
        self.notes.append(text)
        self._write({"note": text})

    def series(self, **values: Scalar) -> None:
        """Append one row to series.jsonl (rank 0 only), flushed at once."""
        if self.rank != 0:
            return
        row = json.dumps(finite(values), ensure_ascii=False, allow_nan=False) + "\n"
        _append(self.attempt / "series.jsonl", row.encode())

    def end(self, ending: Ending) -> None:
        """Say how the experiment ended: the rank's last word, written by the child and not by experiments."""
        self._write({"ending": ending.model_dump(mode="python", exclude_none=True)})

    def _add(self, name: str, metric: Metric) -> None:
        if name in self.metrics:
            raise ValueError(f"metric {name} is recorded twice")
        self.metrics[name] = metric
        self._write({"metric": name, "is": metric.model_dump(mode="python", exclude_none=True)})

    def _enter(self, phase: str) -> None:
        self.phase_name = phase
        self._write({"phase": phase})

    def _write(self, entry: Mapping[str, Any]) -> None:
        line = json.dumps(finite({"time": now(), **entry}), ensure_ascii=False, allow_nan=False) + "\n"
        with writing(self._journal_file):
            self._journal.write(line)
            self._journal.flush()


def _append(path: Path, line: bytes) -> None:
    """Add a line to a file, or nothing of it."""
    with writing(path), path.open("ab", buffering=0) as file:
        before = os.fstat(file.fileno()).st_size
        try:
            while line:
                line = line[file.write(line) :]
        except OSError:
            with suppress(OSError):  # why it could not be written is what is to be said
                file.truncate(before)
            raise
