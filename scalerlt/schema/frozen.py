"""A frozen cell as whoever runs it reads it: still the configuration that its identity was made of."""

from pathlib import Path

from scalerlt.errors import RequestErrors
from scalerlt.records.base import UnreadableDocument
from scalerlt.records.cell import FrozenCell
from scalerlt.schema.cell import Cell, load_cell
from scalerlt.schema.identity import axes, identity, scientific_keys


def load_frozen(file: Path) -> tuple[FrozenCell, Cell]:
    """Read a `cell.yaml` that is to be run.

    What is no part of the identity (limits, gates, trackers) may be another than it was planned with.

    Raises:
        UnreadableDocument: there is none, it is another cell's, or it was changed after it was frozen.
    """
    frozen = FrozenCell.read(file)
    try:
        cell = load_cell(frozen.config)
    except RequestErrors as error:
        raise UnreadableDocument(f"{file}: not a configuration that can be run ({error.problems[0]})") from error
    if not is_intact(frozen, cell) or frozen.axes != axes(scientific_keys(cell, frozen.inputs)):
        raise UnreadableDocument(
            f"{file}: was changed after it was frozen, and is no longer the cell {frozen.cell_id} (or another version "
            "of ScaleRLT froze it); start the sweep again to have it frozen anew"
        )
    return frozen, cell


def is_intact(frozen: FrozenCell, cell: Cell) -> bool:
    """Whether a configuration is the one that the identity stands for, and reads the files that were digested.

    Args:
        cell: what the frozen configuration says.
    """
    for key, file in frozen.inputs.items():
        group, _, name = key.partition(".")
        if frozen.config.get(group, {}).get(name) != file.path:
            return False
    try:
        return identity(scientific_keys(cell, frozen.inputs)) == frozen.identity
    except (KeyError, ValueError):  # a file without its digest, or a number that JSON does not have
        return False
