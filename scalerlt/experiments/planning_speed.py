"""`experiment=planning_speed`: how long a plan takes, beside the time that Hydra alone takes for its cells.

Both run in interpreters of their own: `python -m scalerlt plan REQUEST --json` as a user runs it, from the start of the
interpreter to its end; and plain Hydra's `compose` with OmegaConf's resolution, imports left out, on some of the cells,
scaled to all of them.
"""

import importlib.util
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import fmean, median
from typing import Any

import scalerlt
from scalerlt.errors import Unsupported
from scalerlt.records.recorder import Recorder
from scalerlt.schema import Cell
from scalerlt.schema.cell import SCALAR_KEYS
from scalerlt.schema.experiment.planning_speed import PlanningSpeed


def run(cell: Cell, recorder: Recorder) -> None:
    """Measure the request of the cell."""
    experiment = cell.experiment
    assert isinstance(experiment, PlanningSpeed)
    if importlib.util.find_spec("hydra") is None:
        raise Unsupported("experiment=planning_speed plans with Hydra, and hydra-core is not installed here")
    seconds: list[float] = []
    with recorder.measuring("time"):
        for _ in range(experiment.repeats):
            started = time.perf_counter()
            plan = _answer("scalerlt", "plan", "--json", *experiment.request.split())
            seconds.append(time.perf_counter() - started)
    cells = plan["cells"]
    chosen = cells[:: max(len(cells) // experiment.hydra_cells, 1)][: experiment.hydra_cells]
    with recorder.measuring("reference"):
        composed = _answer("scalerlt.experiments.plain_hydra", asked=[planned["overrides"] for planned in chosen])
    by_hydra = [len(cells) * one for one in composed]

    recorder.metric("cells", len(cells), "cell")
    recorder.metric("combinations", len({_choices(planned["axes"]) for planned in cells}), method="of config groups")
    recorder.repeated("plan_seconds", seconds, "s", scope="plan", method="the whole command, interpreter included")
    recorder.repeated(
        "plain_hydra_seconds",
        by_hydra,
        "s",
        scope="plan",
        method=f"hydra.compose and OmegaConf.to_container of {len(chosen)} of the {len(cells)} cells, each times all",
    )
    recorder.metric(
        "plain_hydra_ratio",
        fmean(by_hydra) / median(seconds),
        method="mean of plain_hydra_seconds over the median of plan_seconds: above 1 the plan is faster",
    )


def _choices(axes: dict[str, Any]) -> tuple[Any, ...]:
    return tuple(value for key, value in axes.items() if "." not in key and key not in SCALAR_KEYS)


def _answer(module: str, *arguments: str, asked: Any = None) -> Any:
    """What a module prints as JSON, run away from the user's sweeps and runs."""
    package = str(Path(scalerlt.__file__).resolve().parent.parent)
    paths = [package, *filter(None, [os.environ.get("PYTHONPATH")])]
    with tempfile.TemporaryDirectory() as folder:
        ran = subprocess.run(
            [sys.executable, "-m", module, *arguments],
            input=json.dumps(asked),
            capture_output=True,
            text=True,
            check=False,
            cwd=folder,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
        )
    if ran.returncode:
        raise RuntimeError(f"{module} ended with {ran.returncode}: {ran.stderr.strip()[-500:]}")
    return json.loads(ran.stdout)
