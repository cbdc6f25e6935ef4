import pytest
import torch

from scalerlt.measure import bandwidth


@pytest.fixture(autouse=True)
def _one_thread():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(autouse=True)
def _a_small_copy(monkeypatch: pytest.MonkeyPatch):
    """The copy bandwidth of a tensor that fits a cache: what it is does not matter here."""
    monkeypatch.setattr(bandwidth, "COPIED_BYTES", {"cpu": 2**16})
