"""What a node has fewer of than it was to have."""

from pathlib import Path

import pytest
from worker.frozen import freeze_torchless

from scalerlt.records.cell import FrozenCell
from scalerlt.records.queue import Asked
from scalerlt.schema import Cell, load_cell
from scalerlt.worker.shortfall import of_hosts, of_job


def cell_of(tmp_path: Path, kind: str) -> Cell:
    cell_file = freeze_torchless(tmp_path / kind, "ends", ranks=(3, 2), device={"threads": 2, "type": kind})
    return load_cell(FrozenCell.read(cell_file).config)


def test_of_a_job() -> None:
    assert of_job(Asked(cpus=2, gpus=2), cpus=2, gpus=2) == of_job(Asked(), cpus=1, gpus=0) == []
    assert of_job(Asked(cpus=2, gpus=2), cpus=1, gpus=None) == [
        "the job may use 1 CPU, fewer than the 2 that it was asked for"
    ]
    assert of_job(Asked(gpus=2), cpus=1, gpus=0) == ["the job may use 0 GPUs, fewer than the 2 that it was asked for"]


@pytest.mark.parametrize("kind", ["cpu", "cuda"])
def test_of_other_hosts(tmp_path: Path, kind: str) -> None:
    """GPUs count where the cell uses them: those that are visible, or all."""
    hosts = {
        "n2": {"affinity": [0, 1, 2, 3], "gpus": [{"index": "0"}, {"index": "1"}], "variables": {}},
        "n3": {"affinity": [5, 6, 7], "gpus": [], "variables": {"CUDA_VISIBLE_DEVICES": "GPU-aa"}},
    }
    of_cpus = [
        "n3: only 3 CPUs may be used (affinity), fewer than device.threads=2 of 2 ranks",
        "n3: the job may use 3 CPUs, fewer than the 4 that it was asked for",
    ]
    of_gpus = ["n3: the job may use 1 GPU, fewer than the 2 that it was asked for"]
    found = list(of_hosts(hosts, cell_of(tmp_path, kind), Asked(nodes=3, cpus=4, gpus=2)))
    assert found == (of_cpus if kind == "cpu" else of_cpus + of_gpus)
