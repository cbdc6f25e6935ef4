"""Makes the generators of synthetic runs importable, and two of their sweeps."""

import sys
from pathlib import Path

import pytest

# `tests` is on the path already, but its `analysis` would be hidden by the repository's package of that name
sys.path.insert(0, str(Path(__file__).parent))

from synthetic_runs import write_quickstart
from synthetic_training import read, write_reward_gain

from scalerlt.analysis.reading import SweepResults


@pytest.fixture(scope="session")
def quickstart(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A runs directory with the sweep `quickstart`."""
    runs = tmp_path_factory.mktemp("synthetic") / "runs"
    write_quickstart(runs / "quickstart")
    return runs


@pytest.fixture(scope="session")
def reward_gain(tmp_path_factory: pytest.TempPathFactory) -> SweepResults:
    """A sweep of reinforcement learning, as read."""
    return read(write_reward_gain(tmp_path_factory.mktemp("training") / "reward_gain"))
