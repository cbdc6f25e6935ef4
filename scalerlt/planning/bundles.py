"""Bundles: the cells of one comparison and one cohort stand together in the plan and run one after another.

Each runs in its own process on the same device, so that what drifts on a machine over hours drifts for all arms. With
blocks in the order A B B A, what drifts within the bundle cancels too: forward in block 0, in reverse in block 1.
"""

import hashlib
import json
from collections.abc import Mapping

from scalerlt.planning.arms import arm_axes
from scalerlt.planning.sweep_file import SweepFile
from scalerlt.records.base import Scalar
from scalerlt.records.plan import PlannedCell


def arranged(cells: list[PlannedCell], sweep: SweepFile | None) -> list[PlannedCell]:
    """The cells of a plan in the order in which they run, numbered, each with its bundle.

    Without a comparison that is the sweep's order. With one, the bundles stand in the order of their first cells.
    """
    if sweep is not None and sweep.compare is not None:
        bundles: dict[str, list[PlannedCell]] = {}
        arm = arm_axes((cell.axes for cell in cells), sweep.arm_keys)
        for cell in cells:
            bundle = bundle_id(cell.axes, arm)
            bundles.setdefault(bundle, []).append(cell.model_copy(update={"bundle": bundle}))
        cells = [
            cell for members in bundles.values() for cell in (_there_and_back(members) if sweep.both_ways else members)
        ]
    return [cell.model_copy(update={"order": order}) for order, cell in enumerate(cells)]


def bundle_id(axes: Mapping[str, Scalar], arm: frozenset[str]) -> str:
    """The same text for all cells that differ in nothing but the axes of the arm and the block."""
    shared = {key: value for key, value in axes.items() if key not in arm and key != "block"}
    text = json.dumps(shared, sort_keys=True, separators=(",", ":"))
    return f"c{axes.get('cohort', 0)}-{hashlib.sha256(text.encode()).hexdigest()[:10]}"


def _there_and_back(members: list[PlannedCell]) -> list[PlannedCell]:
    forward = [cell for cell in members if cell.axes.get("block") == 0]
    back = [cell for cell in members if cell.axes.get("block") != 0]
    return forward + back[::-1]
