"""The rules of a sweep applied to its composed cells: some are ruled out, some get other resources.

A cell that is ruled out has the name that it would have as a valid cell, so that the plan says the same of it with and
without the rule. One that is not valid is named by the digest of its composed configuration, `invalid-1a2b3c4d5e`.
"""

import hashlib
import json
from dataclasses import replace
from typing import Any

from scalerlt.errors import RequestErrors
from scalerlt.planning.invalid import axes_of_invalid
from scalerlt.planning.launcher import machine_of
from scalerlt.planning.request import ComposedCell, Request, RuledOut
from scalerlt.planning.resolve import KEYS, chosen_device, resolve
from scalerlt.planning.rules import Condition, ResourceRule, Rule, matches
from scalerlt.schema.cell import REQUEST_KEYS
from scalerlt.schema.machine import Machine

MACHINES = (Machine(gpus=0, gpu_reason="none", cpus=1), Machine(gpus=1, gpu_reason="", cpus=1))
"""With and without a GPU."""


def judged(request: Request) -> Request:
    """The request with its sweep's rules applied.

    Raises:
        RequestErrors: a rule matches no cell, though the command line has not narrowed the sweep; with one that has,
            this is a warning.
    """
    sweep = request.sweep
    if sweep is None or not (sweep.rules or sweep.resources):
        return request
    machine = machine_of(request.launcher)
    kept: list[ComposedCell] = []
    ruled_out: list[RuledOut] = []
    for cell in request.cells:
        config = _on(machine, cell)
        found = next((rule for rule in sweep.rules if matches(rule.conditions, config)), None)
        if found is not None:
            ruled_out.append(_ruled_out(cell, found.reason, len(kept), machine))
        else:
            given = [rule for rule in sweep.resources if matches(rule.conditions, config)]
            kept.append(_with_resources(cell, given, request.overrides))
    idle = [f"the rule of `skip: {_text(rule.conditions)}`" for rule in sweep.rules if _is_idle(rule, request.cells)]
    idle += [
        f"the resources of `where: {_text(rule.conditions)}`"
        for rule in sweep.resources
        if _is_idle(rule, request.cells)
    ]
    complaints = [f"sweep {sweep.name}: {what} matches no cell" for what in idle]
    narrowed = any(_key(override) not in REQUEST_KEYS for override in request.overrides)
    if complaints and not narrowed:
        raise RequestErrors(complaints)
    return replace(request, cells=kept, ruled_out=ruled_out, warnings=request.warnings + complaints)


def _on(machine: Machine, cell: ComposedCell) -> dict[str, Any]:
    """The cell's configuration with the device that it gets on a machine."""
    return {**cell.config, "device": chosen_device(cell.config["device"], machine)}


def _is_idle(rule: Rule | ResourceRule, cells: list[ComposedCell]) -> bool:
    """Whether a rule matches no cell on any machine: a rule for GPUs is no mistake where there is none."""
    return not any(matches(rule.conditions, _on(machine, cell)) for cell in cells for machine in MACHINES)


def _with_resources(cell: ComposedCell, rules: list[ResourceRule], given: list[str]) -> ComposedCell:
    """The cell with the resources of the rules, the last one's first; what the command line names stays as it is."""
    settings = {key: value for rule in rules for key, value in rule.settings.items()}
    named = {_key(override) for override in given}
    settings = {key: value for key, value in settings.items() if f"resources.{key}" not in named}
    if not settings:
        return cell
    return replace(cell, config={**cell.config, "resources": {**cell.config["resources"], **settings}})


def _ruled_out(cell: ComposedCell, reason: str, position: int, machine: Machine) -> RuledOut:
    try:
        resolved = resolve(cell, machine, {})
        cell_id, axes = resolved.cell_id, resolved.axes
    except RequestErrors:
        content = {key: cell.config.get(key) for key in KEYS if key != "resources"}
        text = json.dumps(content, sort_keys=True, separators=(",", ":"), default=str)
        cell_id, axes = f"invalid-{hashlib.sha256(text.encode()).hexdigest()[:10]}", axes_of_invalid(_on(machine, cell))
    return RuledOut(position, cell_id, axes, cell.overrides, reason, cell.places)


def _text(conditions: tuple[Condition, ...]) -> str:
    return ", ".join(str(condition) for condition in conditions)


def _key(override: str) -> str:
    return override.partition("=")[0].lstrip("+")
