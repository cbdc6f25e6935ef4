"""`scalerlt run`: a record as a table."""

import shutil
import sys

from scalerlt.records.record import Metric, Record


def show_record(record: Record) -> None:
    """Print the verdict and every metric, with its spread over repeats and what it covers or how it was obtained.

    On a terminal a line is cut at its width; elsewhere it stands whole.
    """
    print(f"\n{record.cell_id}, attempt {record.attempt}: {record.verdict}")
    if record.reason:
        print(f"  {record.reason}")
    rows = [
        (name, _value(metric), metric.unit, _spread(metric), metric.scope or metric.method or metric.reason or "")
        for name, metric in record.metrics.items()
    ]
    width = shutil.get_terminal_size().columns if sys.stdout.isatty() else None
    names, values, units, spreads = (max((len(row[column]) for row in rows), default=0) for column in range(4))
    for name, value, unit, spread, about in rows:
        print(f"  {name:{names}}  {value:>{values}} {unit:{units}}  {spread:{spreads}}  {about}".rstrip()[:width])
    for note in record.notes:
        print(f"note: {note}")


def _value(metric: Metric) -> str:
    if metric.status != "measured":
        return metric.status
    if isinstance(metric.value, float):
        return f"{metric.value:.5g}"
    if isinstance(metric.value, int) and not isinstance(metric.value, bool):
        return f"{metric.value:,}"
    return str(metric.value)


def _spread(metric: Metric) -> str:
    if metric.spread is None or metric.n is None or metric.n < 2:
        return ""
    return f"{metric.spread.minimum:.4g} to {metric.spread.maximum:.4g}, n={metric.n}"
