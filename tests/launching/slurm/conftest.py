import os
from pathlib import Path

import pytest
from launching.slurm.mock import MockSlurm

from scalerlt.launching.slurm.environment import is_left_over


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
