"""The tables about a sweep itself: how many cells have which answer, which have none and why, what running cost."""

from collections import Counter
from collections.abc import Sequence
from statistics import median

from scalerlt.analysis.marks import MEASURED, STATES
from scalerlt.analysis.reading import CellResult
from scalerlt.analysis.rows import Entry, record_paths
from scalerlt.analysis.table_spec import Column
from scalerlt.analysis.tables import Line, Table, plain_entries
from scalerlt.records.base import Scalar


def coverage_table(cells: Sequence[CellResult]) -> Table:
    """Cells per experiment and state. The counts of a row add up to its cells."""
    counts: dict[Scalar, Counter[str]] = {}
    for cell in cells:
        counts.setdefault(cell.axes.get("experiment"), Counter())[cell.state] += 1
    states = [MEASURED, *(state for state in STATES if any(count[state] for count in counts.values()))]
    return Table(
        name="coverage",
        caption="Sweep coverage: every planned cell, by experiment and state.",
        names=("experiment",),
        columns=tuple(Column(metric=name, header=name, form="count") for name in ("cells", *states)),
        units=("",) * (1 + len(states)),
        lines=tuple(
            Line((name,), plain_entries([count.total(), *(count[state] for state in states)]))
            for name, count in counts.items()
        ),
        records=record_paths(cells),
    )


def unmeasured_table(cells: Sequence[CellResult]) -> Table | None:
    """The cells that have no measurement, each with its state and reason; None when all have one."""
    missing = [cell for cell in cells if cell.state != MEASURED]
    if not missing:
        return None
    names = ("state", "attempts", "reason")
    return Table(
        name="unmeasured",
        caption="Cells without a measurement.",
        names=("cell", "experiment", *names),
        columns=(),
        units=(),
        lines=tuple(
            Line(
                (
                    cell.cell_id,
                    cell.axes.get("experiment"),
                    cell.state,
                    cell.attempts,
                    cell.reason or STATES.get(cell.state),
                ),
                (),
            )
            for cell in missing
        ),
        records=record_paths(missing),
    )


def overhead_table(cells: Sequence[CellResult]) -> Table | None:
    """What running a cell costs beside its experiment, by how its process was started; None without a record."""
    seconds: dict[str, list[float]] = {}
    for cell in cells:
        if cell.record is not None:
            found = seconds.setdefault(cell.record.start or "–", [])
            found += [] if cell.record.overhead_seconds is None else [cell.record.overhead_seconds]
    if not seconds:
        return None
    return Table(
        name="overhead",
        caption="Run overhead: wall time of an attempt outside its experiment (starting, watching, recording), by the "
        "way its process was started.",
        names=("start",),
        columns=(
            Column(metric="attempts", header="n", form="count"),
            Column(metric="overhead_median", header="median"),
            Column(metric="overhead_minimum", header="minimum"),
            Column(metric="overhead_maximum", header="maximum"),
        ),
        units=("", "seconds", "seconds", "seconds"),
        lines=tuple(Line((start,), _overhead(found)) for start, found in sorted(seconds.items())),
        records=record_paths(cells),
    )


def _overhead(seconds: list[float]) -> tuple[Entry, ...]:
    if not seconds:
        nothing = Entry(None, "not_measured", 0, notes=("not_measured: the records hold no overhead",))
        return (Entry(0), nothing, nothing, nothing)
    return plain_entries([len(seconds), median(seconds), min(seconds), max(seconds)])
