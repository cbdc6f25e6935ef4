"""Cells, claims and queues where nothing can be written: /dev/full refuses every byte as a full disk does."""

import os
from pathlib import Path

import pytest
from worker.frozen import freeze
from worker.job_sweep import FakeSlurm, make_queue, records

from scalerlt.records.base import UnwritableFile
from scalerlt.records.lease import Lease
from scalerlt.records.record import Verdict
from scalerlt.records.store import CellDirectory
from scalerlt.worker.claims import Claims
from scalerlt.worker.slurm import SlurmJob
from scalerlt.worker.slurm_job import work_through
from scalerlt.worker.supervisor import NotRecorded, Supervisor
from scalerlt.worker.work_queue import WorkQueue

RECORD = f".record.json.{os.getpid()}.tmp"
LEASE = f".lease.json.{os.getpid()}.tmp"


@pytest.fixture
def fill(monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """Of each cell by its name a file, or several, that cannot be written in its next attempt."""
    full: dict[str, str] = {}
    claim = CellDirectory.claim

    def claimed(cell: CellDirectory, seen: int | None = None) -> tuple[int, Path]:
        number, path = claim(cell, seen)
        for name in full.get(cell.path.name, "").split():
            (path / name).symlink_to("/dev/full")
        return number, path

    monkeypatch.setattr(CellDirectory, "claim", claimed)
    return full


@pytest.mark.parametrize("supervisor", ["fork", "spawn"], indirect=True)
def test_a_cell_that_cannot_write_its_journal(supervisor: Supervisor, tmp_path: Path, fill: dict[str, str]) -> None:
    """Its log cannot say so either."""
    fill["measures"] = ".progress-rank0 stderr.log stdout.log"
    record = supervisor.run(freeze(tmp_path, "measures"))
    assert record.verdict is Verdict.FAILED and record.metrics == {}
    assert record.failure is not None and record.failure.type == "UnwritableFile"
    assert (record.reason or "").startswith("could not write .progress-rank0: the disk is full")


def test_a_cell_that_cannot_write_its_series(supervisor: Supervisor, tmp_path: Path, fill: dict[str, str]) -> None:
    fill["prints"] = "series.jsonl"
    record = supervisor.run(freeze(tmp_path, "prints"))
    assert record.verdict is Verdict.FAILED
    file = tmp_path / "prints" / "attempt-001" / "series.jsonl"
    assert record.reason == f"UnwritableFile: {file}: cannot be written (No space left on device)"


def test_a_record_that_cannot_be_written(supervisor: Supervisor, tmp_path: Path, fill: dict[str, str]) -> None:
    """What was measured stays in the journal."""
    fill["measures"] = RECORD
    attempt = tmp_path / "measures" / "attempt-001"
    with pytest.raises(NotRecorded) as error:
        supervisor.run(freeze(tmp_path, "measures"))
    said = f"{attempt}/record.json: cannot be written (No space left on device); the attempt ended measured"
    assert str(error.value) == said
    left = {path.name for path in attempt.iterdir()}
    assert ".progress-rank0" in left and RECORD not in left and "record.json" not in left


def test_an_attempt_without_a_lease_is_none(supervisor: Supervisor, tmp_path: Path, fill: dict[str, str]) -> None:
    fill["measures"] = LEASE
    with pytest.raises(UnwritableFile, match=r"lease\.json: cannot be written \(No space left on device\)"):
        supervisor.run(freeze(tmp_path, "measures"))
    assert [path.name for path in (tmp_path / "measures").iterdir()] == ["cell.yaml"]


def test_a_heartbeat_that_cannot_be_written_ends_no_cell(
    supervisor: Supervisor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("scalerlt.worker.watch.HEARTBEAT_SECONDS", 0.1)
    write, beats = Lease.write, []

    def full(lease: Lease, path: Path) -> None:
        beats.append(path)
        if len(beats) > 1:
            raise UnwritableFile(f"{path}: cannot be written (No space left on device)")
        write(lease, path)

    monkeypatch.setattr(Lease, "write", full)
    assert supervisor.run(freeze(tmp_path, "is_slow")).verdict is Verdict.MEASURED
    assert len(beats) > 1


def test_a_claim_without_a_lease_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    claims = Claims(tmp_path / "claims")
    with monkeypatch.context() as full:
        full.setattr("scalerlt.records.base.os.fsync", lambda _: Path("/dev/full").write_text("x"))
        with pytest.raises(
            UnwritableFile, match=r"claims/0/lease\.json: cannot be written \(No space left on device\)"
        ):
            claims.take(0)
    assert list((tmp_path / "claims").iterdir()) == []
    assert claims.take(0)
    (tmp_path / "claims" / "0" / "of-somebody").touch()
    with pytest.raises(UnwritableFile, match=r"claims/0: cannot be written \(Directory not empty\)"):
        claims.release(0)


def test_a_queue_whose_items_cannot_be_claimed(tmp_path: Path) -> None:
    """It comes to its end, and says of each cell why it was not run."""
    queue = make_queue(tmp_path / "sweep", [{"a": "nothing", "b": "nothing"}, {"c": "nothing"}])
    (queue.parent / "claims").write_text("")
    work = WorkQueue(queue, SlurmJob.of_this_process())
    assert work.take(lambda cells, item: True) is None
    assert set(work.faults) == {"a", "b", "c"}
    assert work.faults["a"] == f"{queue.parent / 'claims'}: cannot be written (File exists)"


def test_a_job_goes_on_after_a_cell_that_it_cannot_record(
    slurm: FakeSlurm, tmp_path: Path, fill: dict[str, str], capfd: pytest.CaptureFixture[str]
) -> None:
    fill["a"] = RECORD
    sweep = tmp_path / "sweep"
    assert work_through(str(make_queue(sweep, [{"a": "nothing"}, {"b": "nothing"}]))) == 1
    assert not records(sweep, "a") and [record.verdict for record in records(sweep, "b")] == [Verdict.MEASURED]
    shown = capfd.readouterr().out
    assert "a: not run: " in shown and "(No space left on device); the attempt ended measured" in shown
