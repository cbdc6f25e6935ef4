"""Two real clusters, with accounting and without, and a user's folder on each; nothing of it runs without --run-slurm.

The clusters are started once for a test run, by the process that hands out the tests to its workers.
"""

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
import yaml
from slurm.cluster import Cluster, missing_packages

from scalerlt.records.cell import FrozenCell
from scalerlt.records.record import Record
from scalerlt.records.store import SweepDirectory
from scalerlt.worker.processes import search_path

PLACE = "SCALERLT_TEST_SLURM"
"""The folder of the clusters, for the workers of this run."""
MODES = {"accounting": True, "without": False}
SLURM = ("hydra/launcher=slurm", "hydra.launcher.mem_gb=1", "hydra.launcher.cpus_per_task=1")

PATIENCE = 600.0
"""Seconds; the whole suite runs at once on a few cores, and each cell has to import torch."""


def pytest_sessionstart(session: pytest.Session) -> None:
    if not session.config.getoption("--run-slurm") or PLACE in os.environ:
        return
    if missing := missing_packages(accounting=True):
        pytest.exit(f"there is no Slurm here; apt-get install -y --no-install-recommends {' '.join(missing)}", 2)
    place = Path(tempfile.mkdtemp(prefix="scalerlt-slurm-", dir="/tmp"))  # short: a Unix socket's path lies in it
    os.environ[PLACE] = str(place)
    session.config.add_cleanup(lambda: stop_all(place))
    start_all(place)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Longer time limits, and what takes minutes first, each on a worker of its own: xdist hands out pairs."""
    ours = [item for item in items if item.path.parent == Path(__file__).parent]
    for item in ours:
        item.add_marker(pytest.mark.timeout(3 * PATIENCE))
    long = [item for item in ours if item.path.name == "test_requeued_cells.py"]
    others = [item for item in items if item not in long]
    pairs = [item for pair in zip(long, reversed(others), strict=False) for item in pair]
    items[:] = pairs + [item for item in others if item not in pairs]


def cluster_of(place: Path, mode: str) -> Cluster:
    return Cluster(place / mode, accounting=MODES[mode])


def start_all(place: Path) -> None:
    """Start the clusters side by side: of the one with accounting, most is waiting for a database."""
    faults: list[BaseException] = []

    def start(mode: str) -> None:
        try:
            cluster_of(place, mode).start()
        except Exception as fault:
            faults.append(fault)

    threads = [Thread(target=start, args=[mode]) for mode in MODES]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if faults:
        raise faults[0]


def stop_all(place: Path) -> None:
    for mode in MODES:
        cluster_of(place, mode).stop()
        if keep := os.environ.get("SCALERLT_KEEP_SLURM"):
            kept = Path(keep) / mode
            kept.mkdir(parents=True, exist_ok=True)
            for pattern in ("*.log", "*.out", "*.conf"):
                for path in (place / mode).glob(pattern):
                    shutil.copy(path, kept)
    shutil.rmtree(place, ignore_errors=True)
    del os.environ[PLACE]


@dataclass
class Lab:
    """A user's folder, on the login node of a cluster."""

    cluster: Cluster
    folder: Path
    _shells: list[subprocess.Popen[str]] = field(default_factory=list)

    @property
    def environment(self) -> dict[str, str]:
        """A user's environment there: tests' experiments can be imported, BLAS and OpenMP have one thread."""
        variables = {"PYTHONPATH": search_path(), "OMP_NUM_THREADS": "1", "COLUMNS": "200", "HYDRA_FULL_ERROR": "1"}
        return {**self.cluster.environment, **variables}

    def experiment(self, probe: str, **values: Any) -> str:
        """Write an experiment of the user's own, whose implementation is one of the probes; returns its name."""
        path = self.folder / "conf" / "experiment" / f"{probe}.yaml"
        path.parent.mkdir(parents=True, exist_ok=True)
        content = {"name": probe, "_target_": f"slurm.probes.{probe}", "_check_": None, "warmup": 0, "repeats": 1}
        path.write_text(yaml.safe_dump({**content, **values}))
        return probe

    def command(self, *arguments: str) -> list[str]:
        return [sys.executable, "-m", "scalerlt", *arguments]

    def submission(self, *overrides: str, device: str = "cpu") -> list[str]:
        """The arguments of a sweep that Slurm runs."""
        return ["-m", "--config-dir", "conf", f"device={device}", *SLURM, *overrides]

    def scalerlt(self, *arguments: str, expect: int | None = 0, **variables: str) -> str:
        """Run a command to its end, from a new shell; returns what it printed, its errors at the end."""
        done = subprocess.run(
            self.command(*arguments),
            cwd=self.folder,
            env={**self.environment, **variables},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=PATIENCE,
        )
        said = f"{done.stdout}\n{done.stderr}"
        assert expect is None or done.returncode == expect, f"exit code {done.returncode}, not {expect}:\n{said}"
        return done.stdout if expect is None else said

    def start(self, *command: str) -> subprocess.Popen[str]:
        """Start a command in a session of its own."""
        process = subprocess.Popen(
            command,
            cwd=self.folder,
            env=self.environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        self._shells.append(process)
        return process

    def go(self, name: str) -> None:
        """Let the cells end that wait for it."""
        (self.folder / "runs" / name / "go").touch()

    def sweep(self, name: str) -> SweepDirectory:
        return SweepDirectory(self.folder / "runs" / name)

    def records(self, name: str) -> dict[int, list[Record]]:
        """Every record of a sweep's cells, by seed, oldest first."""
        found: dict[int, list[Record]] = {}
        for path in sorted((self.folder / "runs" / name).glob("*/attempt-*/record.json")):
            record = Record.read(path)
            found.setdefault(int(str(record.axes["seed"])), []).append(record)
        return found

    def at_work(self, name: str, phase: str = "wait") -> list[int]:
        """Seeds of the cells that have come to a phase, once for each attempt; cheaper than asking `status` often."""
        return [
            int(FrozenCell.read(journal.parents[1] / "cell.yaml").config["seed"])
            for journal in (self.folder / "runs" / name).glob("*/attempt-*/.progress-rank0")
            if f'"phase": "{phase}"' in journal.read_text() and not (journal.parent / "record.json").exists()
        ]

    def status(self, name: str) -> dict[int, dict[str, Any]]:
        """What `scalerlt status --json` says of each cell, by seed."""
        told = json.loads(self.scalerlt("status", f"runs/{name}", "--json", expect=None))
        (sweep,) = told["sweeps"]
        return {cell["axes"]["seed"]: cell for cell in sweep["cells"]}

    def jobs(self, states: str = "all") -> dict[str, str]:
        """State by job id, as Slurm shows both, of this folder's jobs."""
        told = self.cluster.ask("squeue", "-r", "-h", "-t", states, "-o", "%i %T %Z").splitlines()
        return {line.split()[0]: line.split()[1] for line in told if line.split()[2] == str(self.folder)}

    def close(self) -> None:
        for process in self._shells:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
            process.communicate()
        if active := self.jobs("PENDING,RUNNING,COMPLETING,SUSPENDED"):
            self.cluster.ask("scancel", *active)


@pytest.fixture(params=list(MODES))
def lab(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Lab]:
    """A new user's folder on a cluster with accounting, and on one without."""
    if not request.config.getoption("--run-slurm"):
        pytest.skip("starts a real Slurm; make test-slurm runs it")
    if PLACE not in os.environ:  # the suite was named among others
        pytest_sessionstart(request.session)
    lab = Lab(cluster_of(Path(os.environ[PLACE]), request.param), tmp_path)
    yield lab
    lab.close()


def wait_for(what: str, condition: Callable[[], Any], seconds: float = PATIENCE) -> Any:
    """Wait for something that others do; returns what the condition returned."""
    deadline = time.monotonic() + seconds
    while not (answer := condition()):
        assert time.monotonic() < deadline, f"in {seconds:.0f} s there was no sign of this: {what}"
        time.sleep(0.5)
    return answer
