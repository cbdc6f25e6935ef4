"""Sweeps of probes for a mocked Slurm."""

import io
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from launching.queue_process import plan_of
from rich.console import Console
from worker.frozen import freeze

from scalerlt.launching.local import Outcome
from scalerlt.launching.progress import Display
from scalerlt.launching.slurm.run import run_on_slurm
from scalerlt.planning.launcher import SlurmSettings, read_launcher
from scalerlt.planning.resolve import ResolvedCell
from scalerlt.planning.retry import DEFAULT
from scalerlt.records.base import now
from scalerlt.records.cell import FrozenCell
from scalerlt.records.plan import Plan
from scalerlt.records.queue import Queue
from scalerlt.records.record import Record, Verdict
from scalerlt.records.store import SweepDirectory
from scalerlt.records.submission import Submission, queue_file, submissions
from scalerlt.schema import load_cell

BASE = {"_target_": "hydra_plugins.scalerlt.PlanLauncher", "kind": "slurm", "timeout_min": 60}


def settings_of(**given: Any) -> SlurmSettings:
    settings = read_launcher({**BASE, **given})
    assert isinstance(settings, SlurmSettings)
    return settings


def sweep_of(path: Path, probes: Mapping[str, str]) -> SweepDirectory:
    """A sweep with a frozen cell for each id, of that probe."""
    for cell_id, probe in probes.items():
        freeze(path, probe, cell_id=cell_id)
    return SweepDirectory(path)


def resolved_cells(sweep: SweepDirectory) -> list[ResolvedCell]:
    found = []
    for cell in sweep.cells():
        frozen = FrozenCell.read(cell.cell_file)
        known = load_cell(frozen.config)
        found.append(ResolvedCell(known, frozen.config, [], {}, frozen.identity, frozen.cell_id, frozen.axes, None))
    return found


def run(
    sweep: SweepDirectory,
    settings: SlurmSettings,
    plan: Plan | None = None,
    *,
    retry: frozenset[str] = DEFAULT,
    seconds: Mapping[str, float] | None = None,
    resolved: list[ResolvedCell] | None = None,
) -> tuple[Outcome, str]:
    """Run a plan (by default of all frozen cells) on the mocked Slurm; the outcome, and what was shown."""
    plan = plan or plan_of(sweep)
    name = sweep.add_plan(plan).name
    shown = io.StringIO()
    outcome = run_on_slurm(
        sweep.path,
        plan,
        name,
        resolved_cells(sweep) if resolved is None else resolved,
        settings,
        display=Display(Console(file=shown, markup=False, highlight=False, soft_wrap=True)),
        retry=retry,
        seconds=lambda cell: (seconds or {}).get(cell.cell_id),
    )
    return outcome, shown.getvalue()


def leave_record(sweep: SweepDirectory, cell_id: str, verdict: Verdict) -> None:
    """As a job would."""
    number, path = sweep.cell(cell_id).claim()
    Record(
        sweep=sweep.name,
        cell_id=cell_id,
        axes={},
        attempt=number,
        verdict=verdict,
        started=now(),
        ended=now(),
        environment={"host": "n1"},
    ).write(path / "record.json")


def submitted(sweep: SweepDirectory) -> list[tuple[Submission, Queue]]:
    """Every submission, with its queue."""
    found = []
    for path, submission in submissions(sweep.path):
        assert isinstance(submission, Submission)
        found.append((submission, Queue.read(queue_file(path))))
    return found
