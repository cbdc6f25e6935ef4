import os
from pathlib import Path

import pytest
from launching.slurm.mock import MockSlurm
from launching.slurm.slurm_sweeps import sweep_of

from scalerlt.launching.slurm import follow
from scalerlt.launching.slurm.environment import is_left_over
from scalerlt.records.store import SweepDirectory
from scalerlt.worker.processes import search_path


@pytest.fixture
def mock_slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> MockSlurm:
    """The commands of a mocked Slurm are the first on the PATH."""
    slurm = MockSlurm.install(tmp_path / "slurm")
    for name in os.environ:
        if is_left_over(name):
            monkeypatch.delenv(name)
    monkeypatch.setenv("PATH", f"{slurm.folder / 'bin'}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("MOCK_SLURM", str(slurm.folder))
    return slurm


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Jobs find these modules, and are looked at often."""
    monkeypatch.setenv("PYTHONPATH", search_path())
    monkeypatch.setattr(follow, "LOOK_SECONDS", 0.1)
    monkeypatch.setattr(follow, "ASK_SECONDS", 0.2)


@pytest.fixture
def three(tmp_path: Path) -> SweepDirectory:
    return sweep_of(tmp_path / "runs" / "sweep", {"a": "measures", "b": "exits_with_9", "c": "measures"})
