"""The one figure that a list of cells shows of each: how far its curve is, or what it measured."""

import json
import math
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from scalerlt.records.base import NON_FINITE, open_file
from scalerlt.records.record import Metric

IN_A_SERIES = ("accuracy", "reward", "loss")
"""Columns that a reader asks for first: held-out accuracy, else the training reward, else the loss."""
PLACES = ("step", "samples", "tokens", "seconds", "epoch", "update")
"""Columns that say where a row stands."""
IN_A_RECORD = (
    "accuracy_after",
    "accuracy",
    "tokens_per_second",
    "trained_tokens_per_second",
    "decode_tokens_per_second",
)
TAIL_BYTES = 2**16


@dataclass(frozen=True)
class Headline:
    """One figure.

    Attributes:
        step: of a series the step that it is from.
    """

    name: str
    value: float
    unit: str = ""
    step: int | None = None

    @property
    def text(self) -> str:
        """For a table: `reward 0.602 (step 20)`."""
        unit = "" if self.unit in ("", "fraction") else f" {self.unit}"
        step = "" if self.step is None else f" (step {self.step})"
        return f"{self.name} {self.value:.4g}{unit}{step}"


def of_series(attempt: Path) -> Headline | None:
    """From the newest row of an attempt's series; None without one."""
    row = newest_row(attempt / "series.jsonl")
    if row is None:
        return None
    figures = {name: value for name, entry in row.items() if (value := _number(entry)) is not None}
    step = figures.get("step")
    named = [name for name in IN_A_SERIES if name in figures]
    others = [name for name in figures if name not in PLACES and not name.startswith("timing_s/")]
    name = next(iter(named or others), None)
    if name is None:
        return None
    return Headline(name, figures[name], step=int(step) if step is not None and math.isfinite(step) else None)


def of_metrics(metrics: Mapping[str, Metric]) -> Headline | None:
    """From what a record, or the journal of a running cell, has measured.

    The first of a few, else the first timing, else the first figure that is no count of what was asked for.
    """
    found = {name: value for name, metric in metrics.items() if (value := _number(_value(metric))) is not None}
    named = [name for name in IN_A_RECORD if name in found]
    timings = [name for name in found if metrics[name].scope is not None]
    figures = [name for name in found if not isinstance(metrics[name].value, int)]
    name = next(iter([*named, *timings, *figures]), None)
    return None if name is None else Headline(name, found[name], metrics[name].unit)


def newest_row(series: Path) -> dict[str, Any] | None:
    """The last whole row; one that is still being written does not count."""
    try:
        with open_file(series) as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - TAIL_BYTES))
            tail = file.read()
    except OSError:
        return None
    for line in reversed(tail[: tail.rfind(b"\n") + 1].splitlines()):
        try:
            row = json.loads(line)
        except ValueError:
            continue  # cut off by an end of its writer, or by the tail
        if isinstance(row, dict):
            return row
    return None


def _value(metric: Metric) -> Any:
    return metric.value if metric.status == "measured" else None


def _number(value: Any) -> float | None:
    if isinstance(value, str):
        return NON_FINITE.get(value)
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None
