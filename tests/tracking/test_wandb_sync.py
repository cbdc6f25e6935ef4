"""`scalerlt wandb-sync` with an executable in place of wandb: each run once, in order, whatever fails between."""

import fcntl
import os
from pathlib import Path

import pytest
from tracking.mirrored_cells import leave_attempt, mirrored_cell

from scalerlt.cli import main
from scalerlt.records.lease import Lease
from scalerlt.tracking.sync import LOCK_FILE, UPLOADS_FILE, Uploads

FAKE = """\
#!/bin/sh
# wandb sync DIR: like the real one it marks what it has uploaded, and ends with 0 after some of its failures too
[ "$1" = sync ] || exit 7
name=$(basename "$2")
echo "$name mode=$WANDB_MODE run=$WANDB_RUN_ID in=$(basename "$PWD")" >> "$CALLS"
case "$name" in
  *silent-failure*) echo "wandb: ERROR the server said 500"; exit 0 ;;
  *failure*) echo "some traceback"; echo "wandb: Network error"; exit 1 ;;
esac
for file in "$2"/run-*.wandb; do touch "$file.synced"; done
"""


class Runs:
    """A runs directory with offline runs, and what the executable was called with."""

    def __init__(self, path: Path, calls: Path) -> None:
        self.path = path
        self._calls = calls

    def offline(self, sweep: str, cell_id: str, run_id: str, *, recorded: bool = True) -> Path:
        """A further attempt with the folder of an offline run."""
        cell_file = self.path / sweep / cell_id / "cell.yaml"
        if not cell_file.exists():
            mirrored_cell(self.path / sweep, "measures", cell_id=cell_id)
            (self.path / sweep / "plans").mkdir(exist_ok=True)
        attempt = leave_attempt(cell_file, [1], recorded=recorded)
        folder = attempt / "mirrors" / "wandb" / f"offline-run-2026010{attempt.name[-1]}_030405-{run_id}"
        folder.mkdir(parents=True)
        (folder / f"run-{run_id}.wandb").write_bytes(b":W&B")
        return folder

    def calls(self) -> list[str]:
        """The folders of the calls since the last question."""
        lines = self._calls.read_text().splitlines() if self._calls.exists() else []
        self._calls.unlink(missing_ok=True)
        return [line.split()[0] for line in lines]


@pytest.fixture
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Runs:
    folder, calls = tmp_path / "bin", tmp_path / "calls"
    folder.mkdir()
    (folder / "wandb").write_text(FAKE)
    (folder / "wandb").chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("CALLS", str(calls))
    monkeypatch.setenv("WANDB_API_KEY", "0" * 40)
    return Runs(tmp_path / "runs", calls)


def test_each_run_is_uploaded_once(runs: Runs, capsys: pytest.CaptureFixture[str]) -> None:
    names = [runs.offline(sweep, cell, f"id-{sweep}{cell}").name for sweep in "ab" for cell in ("c1", "c2")]
    assert main(["wandb-sync", str(runs.path)]) == 0
    assert runs.calls() == names
    assert "4 uploaded" in capsys.readouterr().out
    for marker in runs.path.rglob("*.synced"):
        marker.unlink()  # the list alone remembers
    new = runs.offline("a", "c3", "id-new")
    assert main(["wandb-sync", str(runs.path / "a")]) == 0, "one sweep's directory, and the same list"
    assert main(["wandb-sync", str(runs.path)]) == 0
    assert runs.calls() == [new.name]
    done = Uploads.read(runs.path / "a" / UPLOADS_FILE).uploaded
    assert set(done) == {
        f"{cell}/attempt-001/mirrors/wandb/" + name
        for cell, name in zip(("c1", "c2", "c3"), [*names[:2], new.name], strict=True)
    }


def test_a_failure_does_not_keep_the_others_back_and_is_tried_again(
    runs: Runs, capsys: pytest.CaptureFixture[str]
) -> None:
    bad, silent, good = (runs.offline("a", f"c{n}", run) for n, run in enumerate(["failure", "silent-failure", "good"]))
    assert main(["wandb-sync", str(runs.path)]) == 1
    assert runs.calls() == [bad.name, silent.name, good.name]
    said = capsys.readouterr()
    assert "1 uploaded, 2 failed" in said.out
    assert f"not uploaded: {bad}: wandb: Network error" in said.err
    assert "the server said 500" in said.err
    assert main(["wandb-sync", str(runs.path)]) == 1
    assert runs.calls() == [bad.name, silent.name]


def test_the_parts_of_a_run_that_went_on_come_in_order(runs: Runs) -> None:
    parts = [runs.offline("a", "c1", "one-run"), runs.offline("a", "c1", "one-run")]
    assert main(["wandb-sync", str(runs.path)]) == 0
    assert runs.calls() == [part.name for part in parts]


def test_behind_a_part_that_failed_no_other_is_appended(runs: Runs, capsys: pytest.CaptureFixture[str]) -> None:
    first = runs.offline("a", "c1", "failure")
    runs.offline("a", "c1", "failure")
    assert main(["wandb-sync", str(runs.path)]) == 1
    assert runs.calls() == [first.name]
    assert "an earlier part of the same run is not uploaded" in capsys.readouterr().err


def test_the_caller_s_own_run_and_mode_are_kept_from_it(runs: Runs, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_RUN_ID", "mine")
    folder = runs.offline("a", "c1", "id")
    calls = Path(os.environ["CALLS"])
    assert main(["wandb-sync", str(runs.path)]) == 0
    assert calls.read_text() == f"{folder.name} mode= run= in=mirrors\n"


def test_what_was_uploaded_by_hand_is_not_uploaded_again(runs: Runs) -> None:
    folder = runs.offline("a", "c1", "id")
    (folder / "run-id.wandb.synced").touch()
    assert main(["wandb-sync", str(runs.path)]) == 0
    assert runs.calls() == []


def test_an_attempt_that_still_runs_waits(runs: Runs, capsys: pytest.CaptureFixture[str]) -> None:
    folder = runs.offline("a", "c1", "id", recorded=False)
    attempt = folder.parents[2]
    Lease.of_this_process().write(attempt / "lease.json")
    assert main(["wandb-sync", str(runs.path)]) == 0
    assert runs.calls() == []
    assert f"still running: {attempt}" in capsys.readouterr().out


def test_two_at_once_do_not_upload_the_same(runs: Runs, capsys: pytest.CaptureFixture[str]) -> None:
    runs.offline("a", "c1", "id")
    other = runs.offline("b", "c1", "id2")
    with (runs.path / "a" / LOCK_FILE).open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        assert main(["wandb-sync", str(runs.path)]) == 1
    assert runs.calls() == [other.name]
    assert "a: another wandb-sync is at it" in capsys.readouterr().err
    assert main(["wandb-sync", str(runs.path)]) == 0


def test_a_folder_without_a_run_fails(runs: Runs, capsys: pytest.CaptureFixture[str]) -> None:
    folder = runs.offline("a", "c1", "id")
    (folder / "run-id.wandb").unlink()
    assert main(["wandb-sync", str(runs.path)]) == 1
    assert "it holds no run-*.wandb" in capsys.readouterr().err


def test_a_list_that_cannot_be_read_is_the_user_s_to_look_at(runs: Runs, capsys: pytest.CaptureFixture[str]) -> None:
    runs.offline("a", "c1", "id")
    (runs.path / "a" / UPLOADS_FILE).write_text("{")
    assert main(["wandb-sync", str(runs.path)]) == 2
    assert UPLOADS_FILE in capsys.readouterr().err and runs.calls() == []


def test_a_list_of_the_first_version_is_read(tmp_path: Path) -> None:
    file = tmp_path / UPLOADS_FILE
    file.write_text('{"schema_version": 1, "uploaded": {"c/attempt-001/mirrors/wandb/x": "2026-01-02T03:04:05+00:00"}}')
    assert list(Uploads.read(file).uploaded) == ["c/attempt-001/mirrors/wandb/x"]


def test_without_a_key_nothing_is_tried(
    runs: Runs, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("WANDB_API_KEY")
    runs.offline("a", "c1", "id")
    assert main(["wandb-sync", str(runs.path)]) == 2
    assert runs.calls() == []
    assert "set WANDB_API_KEY, or run wandb login" in capsys.readouterr().err


def test_a_directory_that_is_none_is_a_wrong_request(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["wandb-sync", "nowhere"]) == 2
    assert "nowhere" in capsys.readouterr().err


def test_a_directory_without_offline_runs_is_no_failure(runs: Runs, capsys: pytest.CaptureFixture[str]) -> None:
    runs.path.mkdir()
    assert main(["wandb-sync", str(runs.path)]) == 0
    assert capsys.readouterr().out == "no offline runs\n"
