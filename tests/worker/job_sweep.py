"""A sweep of probes with its plan and its queue, and a Slurm that only notes what it is asked."""

import os
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from worker.frozen import freeze
from worker.waiting import LONG

from scalerlt.records.plan import Plan, PlannedCell
from scalerlt.records.queue import Asked, Queue, QueueItem
from scalerlt.records.record import Record
from scalerlt.records.store import CellDirectory
from scalerlt.worker import ending

MOMENT = "2026-11-30T00:00:00.000+00:00"


def make_queue(
    sweep: Path,
    items: Sequence[Mapping[str, str]],
    *,
    seconds: float | None = None,
    timed: Sequence[int] = (),
    tried: Mapping[str, int] | None = None,
    asked: Asked | None = None,
    cells: Callable[[str, str], Path] | None = None,
    axes: Mapping[str, str] | None = None,
    pack: str = "exclusive",
    **settings: Any,
) -> Path:
    """Freeze the cells of some items, each a mapping of cell to probe, and write plan and queue."""
    sweep.mkdir(exist_ok=True)
    planned = []
    for number, item in enumerate(items):
        for cell_id, probe in item.items():
            if not (sweep / cell_id).exists():
                (cells or (lambda cell_id, probe: freeze(sweep, probe, cell_id=cell_id)))(cell_id, probe)
            bundle = f"b{number}" if len(item) > 1 else None
            planned.append(
                PlannedCell(cell_id=cell_id, axes={"probe": probe, **(axes or {})}, order=len(planned), bundle=bundle)
            )
    (sweep / "plans").mkdir(exist_ok=True)
    Plan(sweep=sweep.name, created=MOMENT, overrides=[], cells=planned).write(sweep / "plans" / "001.json")
    queue = Queue(
        sweep=sweep.name,
        plan="001.json",
        created=MOMENT,
        items=[
            QueueItem(
                index=number,
                bundle=f"b{number}" if len(item) > 1 else None,
                cells=list(item),
                seconds=seconds,
                timed=number in timed,
            )
            for number, item in enumerate(items)
        ],
        tried=dict(tried or {}),
        asked=asked or Asked(),
        timed=pack,
        **{"timeout_min": 60, "signal_delay_s": 5, **settings},
    )
    path = sweep / "submissions" / "001" / "queue.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    queue.write(path)
    return path


def records(sweep: Path, cell_id: str) -> list[Record]:
    found = [attempt.record for attempt in CellDirectory(sweep / cell_id).attempts()]
    return [record for record in found if record is not None]


class FakeSlurm:
    """Commands that note how they are called, and tell what a test lays down."""

    def __init__(self, directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self._called = directory / "called"
        self._job = directory / "job"
        self._job.write_text("")
        directory.joinpath("scontrol").write_text(
            f'#!/bin/sh\necho "$@" >> {self._called}\n[ "$1" = requeue ] || cat {self._job}\n'
        )
        directory.joinpath("scontrol").chmod(0o755)
        monkeypatch.setenv("PATH", f"{directory}{os.pathsep}{os.environ['PATH']}")
        for name in [name for name in os.environ if name.startswith("SLURM_")]:
            monkeypatch.delenv(name)
        self._monkeypatch = monkeypatch
        self.starts("77")

    def starts(self, job_id: str, **variables: object) -> None:
        """From now on this process is one of a job."""
        self._monkeypatch.setenv("SLURM_JOB_ID", job_id)
        for name, value in variables.items():
            self._monkeypatch.setenv(f"SLURM_{name}", str(value))

    def says(self, text: str = "", ends_in: float | None = None) -> None:
        """What `scontrol show job` prints."""
        if ends_in is not None:
            text += time.strftime(" EndTime=%Y-%m-%dT%H:%M:%S", time.localtime(time.time() + ends_in))
        self._job.write_text(text + "\n")

    @property
    def requeued(self) -> list[str]:
        """The jobs that were put back."""
        lines = self._called.read_text().splitlines() if self._called.exists() else []
        return [line.split()[1] for line in lines if line.startswith("requeue")]


def once(condition: Callable[[], bool], then: Callable[[], None]) -> threading.Thread:
    """Do something in another thread as soon as a condition holds."""

    def wait() -> None:
        deadline = time.monotonic() + 2 * LONG
        while not condition():
            if time.monotonic() > deadline:
                return
            time.sleep(0.02)
        then()

    thread = threading.Thread(target=wait, daemon=True)
    thread.start()
    return thread


def waits(sweep: Path, cell_id: str) -> bool:
    """Of a cell that waits for a file: whether it does."""
    journal = sweep / cell_id / "attempt-001" / ".progress-rank0"
    return journal.exists() and '"began"' in journal.read_text()


def goes_on(sweep: Path, cell_id: str) -> None:
    (sweep / cell_id / "go").touch()


class Clock:
    """The clock of a job's end, which can be put forward."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.ahead = 0.0
        self.monotonic = time.monotonic
        monkeypatch.setattr(ending, "time", self)

    def time(self) -> float:
        return time.time() + self.ahead
