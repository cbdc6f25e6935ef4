"""Files of a run that somebody or something has damaged: they are unreadable, never an exception further on."""

import json
import os
from pathlib import Path
from typing import Any

import pytest

from scalerlt.launching.recovery import reconcile
from scalerlt.records.base import UnreadableDocument, now, write_atomically, write_once
from scalerlt.records.lease import Lease
from scalerlt.records.record import Record, Verdict
from scalerlt.records.store import CellDirectory


@pytest.mark.parametrize("moment", ["yesterday", "", "2026-01-01T00:00:00"])
@pytest.mark.parametrize("key", ["started", "ended"])
def test_a_record_without_a_moment_is_unreadable(tmp_path: Path, key: str, moment: str) -> None:
    record = Record(sweep="s", cell_id="c", axes={}, attempt=1, verdict=Verdict.MEASURED, started=now(), ended=now())
    (tmp_path / "record.json").write_text(json.dumps(json.loads(record.to_json()) | {key: moment}))
    with pytest.raises(UnreadableDocument, match=key):
        Record.read(tmp_path / "record.json")


@pytest.mark.parametrize(
    ("key", "value"), [("heartbeat", "soon"), ("started", "2026-01-01"), ("pid", -5), ("pid", 0), ("pid", 10**30)]
)
def test_a_lease_that_names_no_process_or_moment_is_unreadable(tmp_path: Path, key: str, value: Any) -> None:
    lease = Lease.of_this_process()
    (tmp_path / "lease.json").write_text(json.dumps(json.loads(lease.to_json()) | {key: value}))
    with pytest.raises(UnreadableDocument, match=key):
        Lease.read(tmp_path / "lease.json")


def test_only_attempts_are_attempts(tmp_path: Path) -> None:
    """A copy under another name, a file and a dangling link are none."""
    (tmp_path / "attempt-001").mkdir()
    (tmp_path / "copy-of-attempt-002").mkdir()
    (tmp_path / "attempt-003").write_text("")
    (tmp_path / "attempt-004").symlink_to("attempt-004")
    assert [attempt.number for attempt in CellDirectory(tmp_path).attempts()] == [1]


def test_a_record_of_a_later_version_is_neither_touched_nor_run_again(tmp_path: Path) -> None:
    attempt = tmp_path / "cell" / "attempt-001"
    attempt.mkdir(parents=True)
    record = attempt / "record.json"
    record.write_text('{"schema_version": 2, "sweep": "s", "something": "new"}')
    with pytest.raises(UnreadableDocument, match="a later version"):
        reconcile(CellDirectory(tmp_path / "cell"))
    assert record.exists() and [path.name for path in attempt.iterdir()] == ["record.json"]


@pytest.mark.parametrize("write", [write_atomically, write_once])
def test_a_file_has_its_name_when_it_is_on_the_disk(
    write: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[str] = []

    def fsync(descriptor: int) -> None:
        assert not (tmp_path / "record.json").exists()
        synced.append(Path(f"/proc/self/fd/{descriptor}").read_text())

    monkeypatch.setattr(os, "fsync", fsync)
    write(tmp_path / "record.json", "whole")
    assert synced == ["whole"]
    assert [file.read_text() for file in tmp_path.iterdir()] == ["whole"]
