"""A queue in a process of its own: `python queue_process.py SWEEP_DIR` runs every frozen cell of it, by name."""

import sys
from pathlib import Path

from scalerlt.launching.local import run_plan
from scalerlt.launching.progress import display
from scalerlt.records.base import now
from scalerlt.records.plan import Plan, PlannedCell
from scalerlt.records.store import SweepDirectory


def plan_of(sweep: SweepDirectory) -> Plan:
    """A plan of every frozen cell of a sweep, in the order of the names."""
    cells = [
        PlannedCell(cell_id=cell.path.name, axes={"experiment": "probe"}, order=order)
        for order, cell in enumerate(sweep.cells())
    ]
    return Plan(sweep=sweep.name, created=now(), overrides=[], cells=cells)


def main(directory: Path) -> int:
    sweep = SweepDirectory(directory)
    plan = plan_of(sweep)
    name = sweep.add_plan(plan).name
    with display() as shown:
        return run_plan(directory, plan, name, display=shown).exit_code


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
