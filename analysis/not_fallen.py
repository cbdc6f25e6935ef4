"""Where a figure does not fall although another, with which it is expected to, does.

A checkpoint schedule that keeps fewer bytes for the backward pass may still need as much memory at its peak, where the
peak is elsewhere: nobody should take the one for the other.
"""

from collections.abc import Sequence

from scalerlt.analysis.comparing import Baseline
from scalerlt.analysis.formatting import choose_scale, format_number
from scalerlt.analysis.reading import CellResult
from scalerlt.analysis.rows import entry, is_number, unit_of
from scalerlt.analysis.table_spec import Column


def not_fallen(cells: Sequence[CellResult], column: Column, baseline: Baseline) -> str | None:
    """A footnote for a row whose figure is not below its baseline's although that of `column.follows` is.

    None where the row is the baseline's own, where a number is missing, and where there is no baseline that is
    otherwise as the row. Rows are compared by the medians over their cohorts.
    """
    assert column.follows is not None
    others = [] if baseline.holds(cells[0]) else baseline.of(cells[0])
    if not others:
        return None
    told, fallen = _pair(cells, others, column.metric), _pair(cells, others, column.follows)
    if told is None or fallen is None or told[0] < told[1] or fallen[0] >= fallen[1]:
        return None
    return (
        f"{column.header} does not fall below that of {baseline} although {column.follows} does: "
        f"{_against(told, unit_of(cells, column.metric))}, and "
        f"{column.follows} {_against(fallen, unit_of(cells, column.follows))}"
    )


def _pair(cells: Sequence[CellResult], others: Sequence[CellResult], metric: str) -> tuple[float, float] | None:
    ours, theirs = entry(cells, metric).value, entry(others, metric).value
    return (ours, theirs) if is_number(ours) and is_number(theirs) else None


def _against(pair: tuple[float, float], unit: str) -> str:
    scale = choose_scale(unit, pair)
    ours, theirs = (format_number(scale.apply(value)) for value in pair)
    return f"{ours} against {theirs}" + (f" {scale.unit}" if scale.unit else "")
