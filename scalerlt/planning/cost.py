"""What the cells of a plan will cost in time: from earlier records, else from the arithmetic that they have to do.

A cell that was measured before takes what it took (`measured`); one that differs from measured ones only in seed,
cohort and block takes their median (`similar`); any other the time of its floating-point operations (`estimated`), at
the rate of the records at hand that are most like it, else at a rate that is typical for its device.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from statistics import median
from typing import Literal

from scalerlt.errors import RequestErrors
from scalerlt.planning.resolve import ResolvedCell
from scalerlt.planning.workload import flops
from scalerlt.records.base import Scalar, UnreadableDocument
from scalerlt.records.cell import FrozenCell
from scalerlt.records.record import Record, Verdict
from scalerlt.records.store import CellDirectory, sweeps
from scalerlt.schema.cell import SCALAR_KEYS, Cell, load_cell

Earlier = tuple[CellDirectory, Record]
"""A cell and the record of one of its attempts."""
Source = Literal["measured", "similar", "estimated", "unknown"]

TYPICAL_RATE = {"cpu": 2e10, "cuda": 2e13}
"""Floating-point operations per second: of one CPU thread (20 GFLOP/s), and of one data-centre GPU at a fifth of the
100 TFLOP/s that such a GPU reaches in large matrix products. Small models and decoding reach much less."""
START_SECONDS = {"cpu": 2.0, "cuda": 20.0}
"""Until a cell's process has its model; added, with what a calibration takes, to an estimate at a typical rate."""


@dataclass(frozen=True)
class Cost:
    """What one cell costs.

    Attributes:
        seconds: wall time of one attempt; None where it cannot be told.
        gpu_hours: GPUs held times that; 0 on a CPU.
        source: where it comes from.
        about: which records, or which rate.
    """

    seconds: float | None
    gpu_hours: float | None
    source: Source
    about: str


@dataclass(frozen=True)
class Total:
    """What several cells cost together.

    Attributes:
        seconds, gpu_hours: of the cells whose cost is known.
        cells: how many those are, by source.
        unknown: how many the others are.
    """

    seconds: float
    gpu_hours: float
    cells: dict[str, int]
    unknown: int


@dataclass(frozen=True)
class _Run:
    """One measured attempt."""

    seconds: float
    directory: CellDirectory


class Costs:
    """The costs of cells, by the records of earlier ones."""

    def __init__(self, earlier: Iterable[Earlier]) -> None:
        self._by_cell: dict[str, list[_Run]] = {}
        self._alike: dict[tuple[tuple[str, Scalar], ...], list[_Run]] = {}
        self._axes: list[tuple[dict[str, Scalar], _Run]] = []
        self._flops: dict[str, float | None] = {}
        for cell, record in earlier:
            seconds = _seconds(record)
            if seconds <= 0:  # the clock was set back while it ran, or stood still
                continue
            run = _Run(seconds, cell)
            self._by_cell.setdefault(record.cell_id, []).append(run)
            self._alike.setdefault(beside_the_repetition(record.axes), []).append(run)
            self._axes.append((record.axes, run))
        self._rates: dict[tuple[Scalar, ...], float | None] = {}

    def of(self, resolved: ResolvedCell) -> Cost:
        """The cost of one attempt at a cell."""
        cell = resolved.cell
        if runs := self._by_cell.get(resolved.cell_id):
            return _of_records(cell, runs, "measured")
        if runs := self._alike.get(beside_the_repetition(resolved.axes)):
            return _of_records(cell, runs, "similar")
        work = flops(cell)
        if work is None:
            return Cost(None, None, "unknown", f"nothing is known of experiment={cell.experiment.name}")
        for keys in (("experiment", "device", "model", "precision"), ("experiment", "device", "model")):
            rate = self._rate(keys, resolved.axes)
            if rate is not None:
                alike = ", ".join(f"{key}={resolved.axes[key]}" for key in keys)
                about = f"{work:.2g} FLOP at {rate:.2g} FLOP/s, the rate of the records with {alike}"
                return _cost(cell, work / rate, "estimated", about)
        device = cell.device.type
        rate = TYPICAL_RATE[device] * (cell.device.threads if device == "cpu" else 1)
        about = f"{work:.2g} FLOP at {rate:.2g} FLOP/s, typical for {device}: no record tells the rate"
        start = START_SECONDS[device] + getattr(cell.checkpoint, "calibration_seconds", 0.0)
        return _cost(cell, start + work / rate, "estimated", about)

    def _rate(self, keys: Sequence[str], axes: dict[str, Scalar]) -> float | None:
        """Operations per second over the records that agree with these axes; None without one."""
        wanted = (*keys, *(axes.get(key) for key in keys))
        if wanted not in self._rates:
            runs = [run for known, run in self._axes if all(known.get(key) == axes.get(key) for key in keys)]
            work = [(self._flops_of(run.directory), run.seconds) for run in runs]
            done = [(operations, seconds) for operations, seconds in work if operations]
            self._rates[wanted] = sum(o for o, _ in done) / sum(s for _, s in done) if done else None
        return self._rates[wanted]

    def _flops_of(self, directory: CellDirectory) -> float | None:
        key = str(directory.path)
        if key not in self._flops:
            try:
                self._flops[key] = flops(load_cell(FrozenCell.read(directory.cell_file).config))
            except (UnreadableDocument, RequestErrors, OSError):
                self._flops[key] = None  # of another version, or its rollouts are gone
        return self._flops[key]


def total(costs: Iterable[Cost]) -> Total:
    """The sum of several costs."""
    listed = list(costs)
    sources = [cost.source for cost in listed if cost.seconds is not None]
    return Total(
        seconds=sum(cost.seconds or 0.0 for cost in listed),
        gpu_hours=sum(cost.gpu_hours or 0.0 for cost in listed),
        cells={source: sources.count(source) for source in dict.fromkeys(sources)},
        unknown=len(listed) - len(sources),
    )


def measured(runs: Path) -> list[Earlier]:
    """Every measured attempt of a runs directory, all its sweeps together."""
    found = []
    for cell in (cell for sweep in sweeps(runs) for cell in sweep.cells()):
        try:
            attempts = cell.attempts()
        except UnreadableDocument:
            continue
        records = [attempt.record for attempt in attempts if attempt.record is not None]
        found += [(cell, record) for record in records if record.verdict is Verdict.MEASURED]
    return found


def beside_the_repetition(axes: dict[str, Scalar]) -> tuple[tuple[str, Scalar], ...]:
    """The axes of a cell but for seed, cohort and block: the same for all repetitions of one setting."""
    kept = (item for item in axes.items() if item[0] not in SCALAR_KEYS)
    return tuple(sorted(kept, key=lambda item: item[0]))


def _of_records(cell: Cell, runs: list[_Run], source: Source) -> Cost:
    about = f"median of {len(runs)} record{'s' if len(runs) > 1 else ''}"
    return _cost(cell, median(run.seconds for run in runs), source, about)


def _cost(cell: Cell, seconds: float, source: Source, about: str) -> Cost:
    gpus = cell.parallel.ranks if cell.device.type == "cuda" else 0
    return Cost(seconds, gpus * seconds / 3600, source, about)


def _seconds(record: Record) -> float:
    return (datetime.fromisoformat(record.ended) - datetime.fromisoformat(record.started)).total_seconds()
