"""Which devices a cell holds while it runs."""

import pytest

from scalerlt.launching.devices import devices_of


def test_a_gpu_for_each_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    cuda, two = {"device": {"type": "cuda"}}, {"parallel": {"nodes": 1, "ranks_per_node": 2}}
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert devices_of(cuda) == ["cuda-0"], "of before there were ranks"
    assert devices_of(cuda | two) == ["cuda-0", "cuda-1"]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3, GPU-ab,5")
    assert devices_of(cuda | two) == ["cuda-3", "cuda-GPU-ab"]
    assert devices_of({"device": {"type": "cpu"}} | two) == ["cpu"]
