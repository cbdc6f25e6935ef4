"""Cells of several ranks: one process each, one record for all."""

import math
import signal
import socket
from pathlib import Path

import pytest
from torch.distributed import TCPStore
from worker.frozen import freeze, option

from scalerlt.errors import UserError
from scalerlt.records.cell import FrozenCell
from scalerlt.records.record import Verdict
from scalerlt.schema import load_cell
from scalerlt.worker.ranks import jobs_of, meeting_place
from scalerlt.worker.starting import Job, _own_device
from scalerlt.worker.supervisor import Supervisor


def test_two_ranks_reduce_over_gloo(supervisor: Supervisor, tmp_path: Path) -> None:
    cell_file = freeze(tmp_path, "all_reduces", ranks=(1, 2))
    record = supervisor.run(cell_file)
    assert (record.verdict, record.reason) == (Verdict.MEASURED, None)
    assert record.metrics["total"].value == 1.0 + 2.0
    assert record.metrics["rank"].value == 0, "the record's metrics are rank 0's"
    assert [rank.rank for rank in record.ranks] == [0, 1]
    assert record.ranks[0].metrics == {}
    assert record.ranks[1].metrics["total"].value == 3.0
    assert record.ranks[1].metrics["rank"].value == 1
    assert record.ranks[0].pid != record.ranks[1].pid
    assert {rank.host for rank in record.ranks} == {record.environment["host"]}
    written = (cell_file.parent / "attempt-001" / "series.jsonl").read_text()
    assert written.splitlines() == ['{"rank": 0, "step": 1}', '{"rank": 0, "step": 2}'], "rank 0 alone writes series"
    names = {path.name for path in (cell_file.parent / "attempt-001").iterdir()}
    assert {"stdout.log", "stderr.log", "stdout-rank1.log", "stderr-rank1.log"} <= names


def test_when_one_rank_dies_the_others_are_ended(supervisor: Supervisor, tmp_path: Path) -> None:
    record = supervisor.run(freeze(tmp_path, "second_rank_dies", ranks=(1, 2)))
    assert record.verdict is Verdict.KILLED
    assert (record.reason or "").startswith("rank 1: killed by SIGKILL")
    assert record.failure is not None and record.failure.phase == "all_reduce"
    assert [rank.signal for rank in record.ranks] == [signal.SIGTERM, signal.SIGKILL]
    assert record.metrics["rank"].value == 0
    assert record.ranks[1].metrics["rank"].value == 1


def test_the_rank_that_raised_first_is_named(supervisor: Supervisor, tmp_path: Path) -> None:
    """Rank 0 fails too, for its partner is gone; the record names the cause."""
    record = supervisor.run(freeze(tmp_path, "second_rank_raises", ranks=(1, 2)))
    assert record.verdict is Verdict.FAILED
    assert record.reason == "rank 1: ValueError: only here"
    assert all(rank.ended is not None for rank in record.ranks)


def test_the_all_reduce_experiment(supervisor: Supervisor, tmp_path: Path) -> None:
    chosen = {**option("experiment", "all_reduce"), "bytes": "20KiB", "warmup": 1, "repeats": 3}
    record = supervisor.run(freeze(tmp_path, "all_reduce", ranks=(1, 3), experiment=chosen))
    assert record.verdict is Verdict.MEASURED
    assert record.passes == ["warm_up", "time", "latency"]
    metrics = record.metrics
    assert metrics["ranks"].value == 3 and metrics["sum_errors"].value == 0
    seconds = metrics["all_reduce_seconds"].values
    algorithm, bus = metrics["algorithm_bandwidth"].values, metrics["bus_bandwidth"].values
    assert seconds is not None and algorithm is not None and bus is not None and len(seconds) == 3
    for taken, algorithm_bandwidth, bus_bandwidth in zip(seconds, algorithm, bus, strict=True):
        assert math.isclose(algorithm_bandwidth, 20 * 1024 / taken)
        assert math.isclose(bus_bandwidth, algorithm_bandwidth * 4 / 3), "2 (n - 1) / n"
    own = [metrics["rank_seconds"].values, *(rank.metrics["rank_seconds"].values for rank in record.ranks[1:])]
    assert seconds == [max(of_each) for of_each in zip(*own, strict=True)], "the slowest rank's"
    assert all(rank.metrics["sum_errors"].value == 0 for rank in record.ranks[1:])


def test_without_slurm_there_is_one_node(supervisor: Supervisor, tmp_path: Path) -> None:
    record = supervisor.run(freeze(tmp_path, "all_reduces", ranks=(2, 1)))
    assert record.verdict is Verdict.FAILED
    assert "parallel.nodes=2 needs as many nodes; only Slurm gives a cell several" in (record.reason or "")


def jobs(tmp_path: Path, ranks: tuple[int, int], first: str | None, here: dict[str, str], kind: str) -> list[Job]:
    cell_file = freeze(tmp_path, "measures", ranks=ranks, device=option("device", kind))
    cell = load_cell(FrozenCell.read(cell_file).config)
    with meeting_place(cell, first) as meeting:
        return jobs_of(cell, cell_file, tmp_path / "attempt", meeting, here)


def test_what_torch_distributed_reads(tmp_path: Path) -> None:
    made = jobs(tmp_path, (2, 3), "localhost", {"CUDA_VISIBLE_DEVICES": "5,6,7", "A": "1"}, "cuda")
    assert [(job.rank, job.node, job.device) for job in made] == [
        (0, 0, 0), (1, 0, 1), (2, 0, 2), (3, 1, 0), (4, 1, 1), (5, 1, 2),
    ]  # fmt: skip
    assert [job.environment["RANK"] for job in made] == list("012345")
    assert [job.environment["LOCAL_RANK"] for job in made] == list("012012")
    for job in made:
        assert (job.environment["WORLD_SIZE"], job.environment["LOCAL_WORLD_SIZE"]) == ("6", "3")
        assert job.environment["MASTER_ADDR"] == "localhost" and job.environment["A"] == "1"
        assert job.environment["MASTER_PORT"] == made[0].environment["MASTER_PORT"]
        assert ("CUDA_VISIBLE_DEVICES" in job.environment) == (job.node == 0), "that is for its own node to say"
    assert jobs(tmp_path / "one", (1, 1), None, {"A": "1"}, "cpu")[0].environment == {"A": "1"}


@pytest.mark.parametrize("first", [None, "localhost"])
def test_the_port_is_kept_for_rank_0(tmp_path: Path, first: str | None) -> None:
    """Whom the system gives a port does not get it, and rank 0 listens there as torch does."""
    cell = load_cell(FrozenCell.read(freeze(tmp_path, "measures", ranks=(1, 2))).config)
    with meeting_place(cell, first) as meeting:
        address = meeting["MASTER_ADDR"], int(meeting["MASTER_PORT"])
        with socket.socket() as another, pytest.raises(OSError, match="Address already in use"):
            another.bind(address)
        for use_libuv in (True, False):
            store = TCPStore(*address, world_size=1, is_master=True, use_libuv=use_libuv)
            store.set("key", "value")
            assert TCPStore(*address, is_master=False).get("key") == b"value"
            del store
    with socket.socket() as another:
        another.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # some connections may be in TIME_WAIT
        another.bind(address)
        another.listen()


def test_each_rank_of_a_node_has_one_gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "2,GPU-ab")
    given = [Job("c", "a", rank, {}, device=rank) for rank in range(3)]
    assert [_own_device(job) for job in given[:2]] == [
        {"CUDA_VISIBLE_DEVICES": "2"},
        {"CUDA_VISIBLE_DEVICES": "GPU-ab"},
    ]
    assert _own_device(Job("c", "a", 0, {"CUDA_VISIBLE_DEVICES": "7"}, device=0)) == {"CUDA_VISIBLE_DEVICES": "7"}
    assert _own_device(Job("c", "a", 0, {})) == {}
    with pytest.raises(UserError, match="rank 2 needs GPU 3 of its node, and 2 are visible there"):
        _own_device(given[2])
