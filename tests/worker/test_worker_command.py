"""`python -m scalerlt.worker CELL.yaml`, as a compute node runs it."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from worker.frozen import freeze

from scalerlt.records.record import Record, Verdict
from scalerlt.worker.processes import search_path

ALLOWED = "pydantic, PyYAML, psutil, numpy, torch and safetensors"
FORBIDDEN = ("hydra", "omegaconf", "rich", "pandas", "matplotlib", "scipy", "submitit", "wandb", "transformers")


def worker(cell_file: Path, path: str | None = None) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "scalerlt.worker", str(cell_file)],
        env={**os.environ, "PYTHONPATH": path or search_path()},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def record_of(cell_file: Path) -> Record:
    return Record.read(cell_file.parent / "attempt-001" / "record.json")


def test_it_needs_only_a_few_packages(tmp_path: Path) -> None:
    """Each other package is shadowed by a module that cannot be imported."""
    shadows = tmp_path / "shadows"
    shadows.mkdir()
    for name in FORBIDDEN:
        (shadows / f"{name}.py").write_text(f"raise ImportError('the worker needs only {ALLOWED}')\n")
    cell_file = freeze(tmp_path / "sweep", "measures")
    running = worker(cell_file, os.pathsep.join([str(shadows), search_path()]))
    output, _ = running.communicate(timeout=100)
    assert (running.returncode, output) == (0, "measures: measured\n")
    assert record_of(cell_file).start == "spawn"


def test_a_cell_without_an_answer_and_a_file_that_is_no_cell(tmp_path: Path) -> None:
    cell_file = freeze(tmp_path, "raises")
    failing, missing = worker(cell_file), worker(tmp_path / "no.yaml")
    assert failing.communicate(timeout=100)[0].startswith("raises: failed (ValueError: the loss is NaN")
    assert missing.communicate(timeout=100)[0] == (
        f"error: {tmp_path}/no.yaml: cannot be read (No such file or directory)\n"
    )
    assert (failing.returncode, missing.returncode) == (1, 2)


def test_a_signal_ends_the_cell_and_is_recorded(tmp_path: Path) -> None:
    cell_file = freeze(tmp_path, "hangs")
    running = worker(cell_file)
    journal = cell_file.parent / "attempt-001" / ".progress-rank0"
    while not (journal.exists() and "generate" in journal.read_text()):
        assert running.poll() is None
        time.sleep(0.05)
    running.send_signal(signal.SIGTERM)
    assert running.communicate(timeout=100)[0] == "hangs: killed (interrupted)\n"
    assert running.returncode == 130
    assert record_of(cell_file).verdict is Verdict.KILLED
