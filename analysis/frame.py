"""Records as pandas frames, for a notebook or a script: a row per cell, per metric of a cell, or per step."""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from scalerlt.analysis.marks import MEASURED
from scalerlt.analysis.reading import CellResult, Runs, no_cycle_search, read_runs
from scalerlt.analysis.rows import unit_of
from scalerlt.analysis.series import SERIES_FILE, kind_of, stretches
from scalerlt.records.base import Scalar
from scalerlt.records.record import Metric
from scalerlt.records.store import CellDirectory

CELL_COLUMNS = {
    "sweep": "object",
    "cell_id": "object",
    "state": "object",
    "reason": "object",
    "attempt": "Int64",
    "attempts": "Int64",
    "started": "object",
    "ended": "object",
    "start": "object",
    "overhead_seconds": "float64",
    "host": "object",
    "revision": "object",
    "dirty": "object",
}
"""The columns that every frame of `load_runs` begins with, and their dtypes."""

METRIC_COLUMNS = {
    "sweep": "object",
    "cell_id": "object",
    "state": "object",
    "metric": "object",
    "status": "object",
    "value": "object",
    "unit": "object",
    "n": "Int64",
    "minimum": "float64",
    "maximum": "float64",
    "standard_deviation": "float64",
    "scope": "object",
    "method": "object",
    "reason": "object",
}
"""The columns of `load_metrics`, and their dtypes."""

SERIES_COLUMNS = {
    "sweep": "object",
    "cell_id": "object",
    "state": "object",
    "step": "Int64",
    "kind": "object",
    "attempt": "Int64",
}
"""The columns that every frame of `load_series` begins with, and their dtypes."""


def load_runs(path: str | Path) -> pd.DataFrame:
    """One row per planned cell of every sweep under `path`, a runs directory or one sweep's.

    The cells are the union of the plans, and those that have a directory but stand in no readable plan. A row tells
    of the record that counts: the newest attempt that answered (measured, unsupported, oom), else the newest record.

    Columns, in this order:
        sweep: the sweep's name, which is its directory's.
        cell_id: the cell's name and hash.
        state: `measured` or another verdict (unsupported, oom, timeout, killed, failed, lost, preempted), `running`,
            `not_run` (planned, never started), `skipped` (ruled out by the sweep), or plan-time `unsupported`.
        reason: why, where that was recorded.
        attempt: number of the attempt whose record counts (Int64); attempts: how many were begun (Int64).
        started, ended: of that attempt, ISO 8601 in UTC.
        start: how its process was started: fork or spawn.
        overhead_seconds: wall time of the attempt outside its experiment (float64).
        host, revision, dirty: where it ran, the git revision that ran, and whether the code differed from it.
        one column per axis (`precision`, `batch.group_size`): dtype object, so that 8 stays an integer and the texts
            "NA" and "1e5" stay texts; None where a cell has no such key.
        one column per metric: its value where the cell is `measured` and the metric too, else missing. Integers are
            Int64, truth values boolean, other numbers float64, words object. What a missing value means, and a
            measured NaN, are told apart by `load_metrics`.

    A column name that is taken already gets the prefix `axis.` or `metric.`.

    `frame.attrs["problems"]` lists the files that were passed over, `frame.attrs["units"]` the unit of each metric.

    Raises:
        UserError: `path` is no directory, or one metric was recorded in two units (both are named).
    """
    with no_cycle_search():
        return _runs_frame(read_runs(path))


def _runs_frame(runs: Runs) -> pd.DataFrame:
    cells = runs.cells
    columns = _typed(CELL_COLUMNS, [_cell_values(cell) for cell in cells])
    for axis in _in_order(cell.axes for cell in cells):
        name = f"axis.{axis}" if axis in columns else axis
        columns[name] = pd.Series([cell.axes.get(axis) for cell in cells], dtype="object")
    units = {}
    for metric, (values, found) in sorted(_measured_values(cells).items()):
        name = f"metric.{metric}" if metric in columns else metric
        columns[name] = _metric_column(values)
        units[name] = unit_of(cells, metric) if len(found) > 1 else next(iter(found), "")
    frame = pd.DataFrame(columns, copy=False)
    frame.attrs = {"problems": runs.all_problems, "units": units}
    return frame


def load_metrics(path: str | Path) -> pd.DataFrame:
    """One row per cell and recorded metric of every sweep under `path`.

    Columns: sweep, cell_id, state (of the cell; figures of a cell that is not `measured` are what it had when it
    ended), metric, status (`measured`, `not_measured`, `unsupported`), value (object: as recorded; None where not
    measured), unit, n (repeats), minimum, maximum, standard_deviation (of the repeats of one process, never of a
    sample of cohorts), scope (what a timing covers), method (how a figure was obtained), reason.

    `frame.attrs["problems"]` lists the files that were passed over.

    Raises:
        UserError: `path` is no directory.
    """
    with no_cycle_search():
        return _metrics_frame(read_runs(path))


def _metrics_frame(runs: Runs) -> pd.DataFrame:
    rows = [
        [cell.sweep, cell.cell_id, cell.state, name, *_metric_values(cell.metrics[name])]
        for cell in runs.cells
        for name in sorted(cell.metrics)
    ]
    frame = pd.DataFrame(_typed(METRIC_COLUMNS, rows))
    frame.attrs = {"problems": runs.all_problems}
    return frame


def load_series(path: str | Path) -> pd.DataFrame:
    """One row per sweep, cell, step and kind: what the cells of every sweep under `path` measured as they trained.

    The rows are those of series.jsonl of the attempt that answered the cell, or of the newest that has come to a row.
    An attempt that went on from an earlier one stands behind that one's rows up to the step it took it up at; one that
    began from nothing replaces those before it. Cells without a row are not in the frame.

    Columns, in this order:
        sweep, cell_id, state: as in `load_runs`.
        step: training steps done (Int64).
        kind: `train`, a training step; `eval`, an evaluation, which is after the training step of that number.
        attempt: number of the attempt that wrote the row (Int64).
        one column per axis, as in `load_runs`.
        one column per recorded figure (`reward`, `accuracy`, `timing_s/generate`): missing where a row has none.
            Integers are Int64, truth values boolean, other numbers float64, where "NaN" and "Infinity" are numbers.

    A column name that is taken already gets the prefix `axis.` or `series.`.

    `frame.attrs["problems"]` lists the files and lines that were passed over; a cut-off last line is none of them.

    Raises:
        UserError: `path` is no directory.
    """
    runs = read_runs(path)
    problems = runs.all_problems
    found = []
    for sweep in runs.sweeps:
        for cell in sweep.cells:
            for part in stretches(CellDirectory(sweep.path / cell.cell_id)):
                file = f"{sweep.name}/{cell.cell_id}/{part.attempt.path.name}/{SERIES_FILE}"
                problems += [f"{file}: {problem}" for problem in part.problems]
                found += [(cell, part.attempt.number, row) for row in part.rows]
    heads = [[cell.sweep, cell.cell_id, cell.state, row["step"], kind_of(row), number] for cell, number, row in found]
    columns = _typed(SERIES_COLUMNS, heads)
    for axis in _in_order(cell.axes for cell, _, _ in found):
        name = f"axis.{axis}" if axis in columns else axis
        columns[name] = pd.Series([cell.axes.get(axis) for cell, _, _ in found], dtype="object")
    for figure in _in_order(row for _, _, row in found):
        if figure != "step":
            name = f"series.{figure}" if figure in columns else figure
            columns[name] = _metric_column([row.get(figure) for _, _, row in found])
    frame = pd.DataFrame(columns)
    frame.attrs = {"problems": problems}
    return frame


def _typed(dtypes: dict[str, str], rows: list[list[Any]]) -> dict[str, "pd.Series[Any]"]:
    by_column = zip(*rows, strict=True) if rows else [()] * len(dtypes)
    return {
        name: pd.Series(list(values), dtype=dtype)
        for (name, dtype), values in zip(dtypes.items(), by_column, strict=True)
    }


def _cell_values(cell: CellResult) -> list[Any]:
    head = [cell.sweep, cell.cell_id, cell.state, cell.reason]
    record = cell.record
    if record is None:
        return [*head, None, cell.attempts, *[None] * (len(CELL_COLUMNS) - 6)]
    return [
        *head,
        record.attempt,
        cell.attempts,
        record.started,
        record.ended,
        record.start,
        record.overhead_seconds,
        record.environment.get("host"),
        record.provenance.get("git_revision"),
        record.provenance.get("git_dirty"),
    ]


def _metric_values(metric: Metric) -> list[Any]:
    spread = metric.spread
    ends = [None] * 3 if spread is None else [spread.minimum, spread.maximum, spread.standard_deviation]
    value = metric.value if metric.status == MEASURED else None
    return [metric.status, value, metric.unit, metric.n, *ends, metric.scope, metric.method, metric.reason]


def _measured_values(cells: Sequence[CellResult]) -> dict[str, tuple[list[Scalar], set[str]]]:
    """For each recorded metric its value in each cell, None where it was not measured, and the units of the values."""
    columns: dict[str, tuple[list[Scalar], set[str]]] = {}
    for place, cell in enumerate(cells):
        for name, metric in cell.metrics.items():
            if name not in columns:
                columns[name] = [None] * len(cells), set()
            if cell.state == metric.status == MEASURED and metric.value is not None:
                values, units = columns[name]
                values[place] = metric.value
                units.add(metric.unit)
    return columns


def _metric_column(values: list[Any]) -> "pd.Series[Any]":
    """The narrowest dtype that keeps integers, truth values and words what they are."""
    kinds = {type(value) for value in values if value is not None}
    if kinds == {int}:
        fits = all(value is None or -(2**63) <= value < 2**63 for value in values)
        return pd.Series(values, dtype="Int64" if fits else "object")
    if kinds == {bool}:
        return pd.Series(values, dtype="boolean")
    if kinds <= {int, float}:
        return pd.Series(values, dtype="float64")
    return pd.Series(values, dtype="object")


def _in_order(mappings: Iterable[Any]) -> list[str]:
    """All keys, in the order in which they first appear."""
    return list(dict.fromkeys(key for mapping in mappings for key in mapping))
