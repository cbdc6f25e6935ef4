"""A full disk, and whatever else cannot be written to: one sentence with path and reason, and nothing half written.

/dev/full refuses every byte as a full disk does; a limit on the size of files lets the first bytes through, as one that
is nearly full does.
"""

import os
import resource
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from scalerlt.records.base import UnwritableFile, write_atomically, write_exclusively, write_once
from scalerlt.records.recorder import Recorder
from scalerlt.records.store import CellDirectory, keep_aside

FULL = "cannot be written (No space left on device)"


def fill(path: Path) -> None:
    """From now on a document cannot be written here for want of space."""
    path.with_name(f".{path.name}.{os.getpid()}.tmp").symlink_to("/dev/full")


@contextmanager
def nearly_full(size: int) -> Iterator[None]:
    """No file grows beyond so many bytes."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.mark.parametrize("write", [write_atomically, write_once])
def test_a_document_on_a_full_disk(tmp_path: Path, write: Callable[[Path, str], object]) -> None:
    path = tmp_path / "record.json"
    path.write_text("old")
    fill(path)
    with pytest.raises(UnwritableFile) as error:
        write(path, "new")
    assert str(error.value) == f"{path}: {FULL}"
    assert [entry.name for entry in tmp_path.iterdir()] == ["record.json"] and path.read_text() == "old"


def test_a_document_that_fits_in_part(tmp_path: Path) -> None:
    with nearly_full(1000), pytest.raises(UnwritableFile, match=r"record\.json: cannot be written \(File too large\)"):
        write_atomically(tmp_path / "record.json", "x" * 100_000)
    assert list(tmp_path.iterdir()) == []


def test_a_numbered_document_on_a_full_disk(tmp_path: Path) -> None:
    fill(tmp_path / "001.json")
    with pytest.raises(UnwritableFile, match=r"001\.json: cannot be written \(No space left on device\)"):
        write_exclusively(tmp_path, ".json", "{}")
    assert list(tmp_path.iterdir()) == []
    assert write_exclusively(tmp_path, ".json", "{}").name == "001.json"


def test_a_directory_that_is_gone_or_none(tmp_path: Path) -> None:
    gone, file = tmp_path / "gone", tmp_path / "file"
    file.write_text("")
    with pytest.raises(UnwritableFile, match=r"gone/lease\.json: cannot be written \(No such file or directory\)"):
        write_atomically(gone / "lease.json", "{}")
    with pytest.raises(UnwritableFile, match=r"file/plans: cannot be written \(Not a directory\)"):
        write_exclusively(file / "plans", ".json", "{}")
    with pytest.raises(UnwritableFile, match=r"attempt-001: cannot be written \(No such file or directory\)"):
        CellDirectory(gone).claim()
    with pytest.raises(UnwritableFile, match=r"record\.json: cannot be written \(No such file or directory\)"):
        keep_aside(gone / "record.json")


def test_a_row_that_fits_in_part_is_no_row(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path)
    recorder.series(step=1)
    series = tmp_path / "series.jsonl"
    with (
        nearly_full(series.stat().st_size + 5),
        pytest.raises(UnwritableFile, match=r"series\.jsonl: cannot be written \(File too large\)"),
    ):
        recorder.series(step=2)
    assert series.read_text() == '{"step": 1}\n'
    recorder.series(step=3)
    assert series.read_text() == '{"step": 1}\n{"step": 3}\n'
    recorder.close()


def test_a_journal_on_a_full_disk(tmp_path: Path) -> None:
    (tmp_path / ".progress-rank0").symlink_to("/dev/full")
    recorder = Recorder(tmp_path)
    for _ in range(2):
        with pytest.raises(UnwritableFile) as error:
            recorder.note("a note")
        assert str(error.value) == f"{tmp_path / '.progress-rank0'}: {FULL}"
    with pytest.raises(UnwritableFile):
        recorder.close()
