"""`scalerlt wandb-sync`: upload the offline runs that `tracker=wandb` has left, one by one.

Which were uploaded stands in `runs/<sweep>/.wandb-uploads.json`, written anew after each; an upload is never repeated:
Weights & Biases would append the rows of a continued attempt a second time.
"""

import fcntl
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from pydantic import Field

from scalerlt.errors import UserError
from scalerlt.records.base import Document, Moment, now
from scalerlt.records.store import SweepDirectory, sweeps
from scalerlt.tracking.following import MIRRORS
from scalerlt.tracking.wandb_mirror import OTHER_RUNS, key_is_known

UPLOADS_FILE = ".wandb-uploads.json"
LOCK_FILE = ".wandb-uploads.lock"
LONGEST_SECONDS = 900.0
"""An upload that takes longer has no connection: wandb itself would try for ever."""


class Uploads(Document):
    """Which offline runs of a sweep were uploaded, and when, by their folder below the sweep's."""

    schema_version: Literal[1] = 1
    uploaded: dict[str, Moment] = Field(default_factory=dict)


@dataclass(frozen=True)
class OfflineRun:
    """One folder that wandb wrote.

    Attributes:
        attempt: the attempt's folder, below the sweep's.
        run_id: the same for the attempts that went on from each other.
        running: whether the attempt has not ended yet.
    """

    folder: Path
    attempt: Path
    run_id: str
    running: bool


def sync(runs: Path) -> int:
    """Upload what was not uploaded yet; a failure does not keep the next run from being tried.

    Returns:
        1 if some were not uploaded for another reason than that their attempt still runs, else 0.

    Raises:
        UserError: wandb is not installed, there is no key, or a list of uploads cannot be read.
    """
    command = _wandb()
    if not key_is_known():
        raise UserError("there is no W&B key; set WANDB_API_KEY, or run wandb login")
    counts = {"uploaded": 0, "uploaded before": 0, "running": 0, "failed": 0}
    for sweep in sweeps(runs):
        with _alone(sweep) as alone:
            if not alone:
                print(f"{sweep.name}: another wandb-sync is at it", file=sys.stderr)
                counts["failed"] += 1
                continue
            for state in _sync_sweep(sweep, command):
                counts[state] += 1
    print(", ".join(f"{count} {state}" for state, count in counts.items() if count) or "no offline runs")
    return 1 if counts["failed"] else 0


def offline_runs(sweep: SweepDirectory) -> list[OfflineRun]:
    """The offline runs of a sweep: those of one cell in the order in which its attempts went on from each other."""
    found = []
    for cell in sweep.cells():
        for attempt in cell.attempts():
            for folder in sorted((attempt.path / MIRRORS / "wandb").glob("offline-run-*")):
                files = sorted(folder.glob("run-*.wandb"))
                run_id = files[0].stem.removeprefix("run-") if files else ""
                found.append(OfflineRun(folder, attempt.path, run_id, attempt.is_running))
    return found


def _sync_sweep(sweep: SweepDirectory, command: list[str]) -> Iterator[str]:
    """The state of each offline run of a sweep, as it is uploaded."""
    file = sweep.path / UPLOADS_FILE
    uploads = Uploads.read(file) if file.exists() else Uploads()
    broken: set[str] = set()
    for run in offline_runs(sweep):
        name = run.folder.relative_to(sweep.path).as_posix()
        if name in uploads.uploaded:
            yield "uploaded before"
            continue
        if run.running:
            print(f"still running: {run.attempt}")
            broken.add(run.run_id)
            yield "running"
            continue
        if run.run_id in broken:
            fault: str | None = "an earlier part of the same run is not uploaded"
        else:
            fault = None if _marked(run.folder) else _upload(run, command)
        if fault is None:
            uploads.uploaded[name] = now()
            uploads.write(file)
            print(f"uploaded {run.folder}")
            yield "uploaded"
        else:
            broken.add(run.run_id)
            print(f"not uploaded: {run.folder}: {fault}", file=sys.stderr)
            yield "failed"


def _upload(run: OfflineRun, command: list[str]) -> str | None:
    """Upload one run; why it failed, or None."""
    if not run.run_id:
        return "it holds no run-*.wandb"
    others = {f"WANDB_{name}" for name in (*OTHER_RUNS, "MODE")}
    environment = {name: value for name, value in os.environ.items() if name not in others}
    try:
        done = subprocess.run(
            [*command, "sync", str(run.folder.absolute())],
            cwd=run.folder.parent.parent,  # wandb writes a log below the folder that it is called in
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            timeout=LONGEST_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return f"not done within {LONGEST_SECONDS:g} s"
    if done.returncode == 0 and _marked(run.folder):
        return None
    said = done.stdout.strip().splitlines()
    return said[-1].strip() if said else f"wandb sync ended with code {done.returncode}"


def _marked(folder: Path) -> bool:
    """Whether wandb has marked a run as uploaded, which it also does when it is called by hand.

    Its exit code is no sign: it is 0 after an upload that failed, too.
    """
    return any(folder.glob("run-*.wandb.synced"))


def _wandb() -> list[str]:
    """The command line's `wandb`, else that of this environment."""
    beside = Path(sys.executable).with_name("wandb")
    found = shutil.which("wandb") or (str(beside) if beside.is_file() else None)
    if found is None:
        raise UserError("there is no command wandb; pip install 'scalerlt[wandb]'")
    return [found]


@contextmanager
def _alone(sweep: SweepDirectory) -> Iterator[bool]:
    """Whether this is the only process that uploads runs of the sweep; it stays so within the context."""
    with (sweep.path / LOCK_FILE).open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
        else:
            yield True
