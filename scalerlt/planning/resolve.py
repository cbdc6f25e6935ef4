"""Composed configurations become cells: device chosen, types and values checked, files found, identity known."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from scalerlt.errors import RequestErrors
from scalerlt.planning.inputs import check_inputs, file_inputs
from scalerlt.planning.overrides import as_written
from scalerlt.planning.request import ComposedCell, RuledOut
from scalerlt.planning.suggestions import nearest
from scalerlt.records.base import Scalar
from scalerlt.records.cell import FileInput
from scalerlt.schema.cell import REQUEST_KEYS, SCALAR_KEYS, Cell, load_cell
from scalerlt.schema.identity import axes, cell_id, identity, scientific_keys
from scalerlt.schema.machine import Machine, this_machine
from scalerlt.schema.registry import GROUPS

KEYS = (*GROUPS, "resources", *SCALAR_KEYS)
"""The keys of a configuration that are frozen with a cell."""


@dataclass(frozen=True)
class ResolvedCell:
    """A cell that is known to be valid, with everything that freezing it needs."""

    cell: Cell
    config: dict[str, Any]
    overrides: list[str]
    inputs: dict[str, FileInput]
    identity: str
    cell_id: str
    axes: dict[str, Scalar]
    unsupported: str | None
    """Why no cell of this kind can run on the machine that it is planned for, or None."""


def resolve_all(composed: list[ComposedCell], machine: Machine | None = None) -> list[ResolvedCell]:
    """Resolve every cell of a request; cells in which parts of a union overlap stand once.

    Raises:
        RequestErrors: all problems of all cells, each once; two cells of one part turn out to be the same.
    """
    machine = machine or this_machine()
    named: dict[str, list[ComposedCell]] = {}
    found: dict[str, None] = {}
    resolved: dict[str, ResolvedCell] = {}
    checked: dict[Any, list[str]] = {}
    for entry in composed:
        try:
            cell = resolve(entry, machine, checked)
        except RequestErrors as error:
            found |= dict.fromkeys(error.problems)
        else:
            resolved.setdefault(cell.identity, cell)
            named.setdefault(cell.identity, []).append(entry)
    if problems := [*found, *named_twice(named.values(), machine)]:
        raise RequestErrors(problems)
    return list(resolved.values())


def named_twice(named: Iterable[Sequence[ComposedCell | RuledOut]], machine: Machine) -> list[str]:
    """The first cell that one part of the sweep names twice, and how many more there are.

    Args:
        named: for each cell what the sweep names it by.
        machine: that the cells are planned for.
    """
    pairs: list[tuple[ComposedCell | RuledOut, ComposedCell | RuledOut]] = []
    for entries in named:
        first: dict[tuple[int, ...], ComposedCell | RuledOut] = {}
        for entry in entries:
            pairs += [(first[place], entry) for place in entry.places if place in first]
            first = dict.fromkeys(entry.places, entry) | first
    if not pairs:
        return []
    one, other = (" ".join(map(as_written, entry.overrides)) or "the cell without overrides" for entry in pairs[0])
    more = f" ({len(pairs) - 1} more pairs are, too)" if len(pairs) > 1 else ""
    return [f"{one} and {other} are the same cell on {machine.called}{more}; a sweep names each of its cells once"]


def resolve(entry: ComposedCell, machine: Machine, checked: dict[Any, list[str]]) -> ResolvedCell:
    """Resolve one composed configuration; RequestErrors names all that is wrong with it."""
    unknown = set(entry.config) - set(KEYS) - set(REQUEST_KEYS)
    if unknown:
        raise RequestErrors([f"{key} is not a configuration key{nearest(key, KEYS)}" for key in sorted(unknown)])
    config = {key: entry.config[key] for key in KEYS if key in entry.config}
    config["device"] = chosen_device(config["device"], machine)
    cell = load_cell(config)
    inputs = file_inputs(cell)
    if problems := check_inputs(cell, checked):
        raise RequestErrors(problems)
    for key, file in inputs.items():
        group, _, name = key.partition(".")
        config[group] = {**config[group], name: file.path}
    content = scientific_keys(cell, inputs)
    digest = identity(content)
    return ResolvedCell(
        cell=cell,
        config=config,
        overrides=entry.overrides,
        inputs=inputs,
        identity=digest,
        cell_id=cell_id(cell, digest),
        axes=axes(content),
        unsupported=cell.unsupported_on(machine),
    )


def chosen_device(device: Any, machine: Machine) -> Any:
    """`device=auto` becomes cuda where there is a GPU, else cpu, or what device.type says; the choice is frozen."""
    if not isinstance(device, dict) or "auto" not in (device.get("name"), device.get("type")):
        return device
    kind = device.get("type")
    if kind == "auto":
        kind = "cuda" if machine.gpus else "cpu"
    return {**device, "name": kind, "type": kind}
