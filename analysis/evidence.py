"""On what machine and of what code the numbers of a row came about: one of one kind does not stand for another."""

from collections.abc import Sequence

from scalerlt.analysis.reading import CellResult
from scalerlt.records.record import Record

KINDS: dict[str, str] = {
    "cpu": "ran on a CPU",
    "one GPU": "ran on one GPU",
    "several ranks": "ran on several ranks",
    "emulated": "the number format was emulated: values on its grid, products in fp32",
}
"""The words, in the order in which they are listed, and what they mean."""
NONE = "–"
"""Stands where there is no record: nothing ran."""


def evidence(cells: Sequence[CellResult]) -> str:
    """The kinds of evidence behind the records of a row's cells; a dash where there is none."""
    found = {_kind(cell) for cell in cells if cell.record is not None}
    return ", ".join(kind for kind in KINDS if kind in found) or NONE


def device_of(cell: CellResult) -> str:
    """The kind of device of a cell: cpu or cuda."""
    return str(cell.axes.get("device.type") or cell.axes.get("device") or "cpu")


def processor_of(record: Record) -> str:
    """The model of the processor."""
    return str(record.environment.get("cpu", "unknown"))


def gpus_of(record: Record) -> list[str]:
    """The model of each GPU."""
    gpus = record.environment.get("gpus")
    found = gpus if isinstance(gpus, list) else []
    return [str(gpu.get("name", "unknown")) if isinstance(gpu, dict) else str(gpu) for gpu in found]


def revision_of(record: Record) -> str:
    """The git revision that ran."""
    return str(record.provenance.get("git_revision") or "unknown")


def _kind(cell: CellResult) -> str:
    if cell.axes.get("precision.arithmetic") == "emulated":
        return "emulated"
    if cell.record is not None and len(cell.record.ranks) > 1:
        return "several ranks"
    return "cpu" if device_of(cell) == "cpu" else "one GPU"
