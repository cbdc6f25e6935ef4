"""Makes the generator of synthetic runs importable, and one of its sweeps."""

import sys
from pathlib import Path

import pytest

# `tests` is on the path already, but its `analysis` would be hidden by the repository's package of that name
sys.path.insert(0, str(Path(__file__).parent))

from synthetic_runs import write_quickstart


@pytest.fixture(scope="session")
def quickstart(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A runs directory with the sweep `quickstart`."""
    runs = tmp_path_factory.mktemp("synthetic") / "runs"
    write_quickstart(runs / "quickstart")
    return runs
