"""Which devices a cell holds while it runs."""

import os
import subprocess
import sys
from collections.abc import Mapping

import pytest

from scalerlt.launching.devices import devices_of, hold
from scalerlt.worker.processes import search_path

CUDA = {"device": {"type": "cuda"}, "parallel": {"nodes": 1, "ranks_per_node": 1}}
HOLDS = f"""
import sys
from scalerlt.launching.devices import devices_of, hold
with hold(devices_of({CUDA}), "another", print, lambda: False) as held:
    print(held, flush=True)
    sys.stdin.read()
"""


def test_a_gpu_for_each_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    cuda, two = {"device": {"type": "cuda"}}, {"parallel": {"nodes": 1, "ranks_per_node": 2}}
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert devices_of(cuda) == ["cuda-0"], "of before there were ranks"
    assert devices_of(cuda | two) == ["cuda-0", "cuda-1"]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3, GPU-ab,5")
    assert devices_of(cuda | two) == ["cuda-3", "cuda-GPU-ab"]
    assert devices_of({"device": {"type": "cpu"}} | two) == ["cpu"]


def test_two_queues_never_share_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """One process holds GPU 0; this one gets GPU 1 at once, and GPU 0 when the other has died."""
    monkeypatch.setattr("scalerlt.launching.devices.LOOK_SECONDS", 0.05)
    said: list[str] = []

    def is_free(visible: str, config: Mapping[str, object] = CUDA) -> bool:
        said.clear()
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
        with hold(devices_of(config), "this", said.append, lambda: bool(said)) as held:
            return held

    other = subprocess.Popen(
        [sys.executable, "-c", HOLDS],
        env={**os.environ, "PYTHONPATH": search_path(), "CUDA_VISIBLE_DEVICES": "0"},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert other.stdout is not None and other.stdout.readline() == "True\n"
        assert not is_free("0")
        assert said == [f"waiting for device cuda-0: another (pid {other.pid}) measures on it"]
        assert is_free("1") and said == []
        assert is_free("1,0"), "it uses the first that it sees"
        assert not is_free("1,0", {**CUDA, "parallel": {"ranks_per_node": 2}})
    finally:
        other.kill()
        other.communicate()
    assert is_free("0") and said == []
