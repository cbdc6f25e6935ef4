"""Mirrors are never the source of a table: with them, without them and after their deletion the bytes are the same."""

import shutil
from pathlib import Path

from synthetic_runs import write_quickstart

from scalerlt.analysis import build_report
from scalerlt.tracking.sync import LOCK_FILE, UPLOADS_FILE


def bytes_of(out: Path) -> dict[str, bytes]:
    return {path.relative_to(out).as_posix(): path.read_bytes() for path in sorted(out.rglob("*")) if path.is_file()}


def test_deleting_the_mirrors_changes_no_table(tmp_path: Path) -> None:
    runs = tmp_path / "runs" / "quickstart"
    write_quickstart(runs)
    build_report(runs, tmp_path / "without")
    attempts = sorted(runs.glob("*/attempt-*"))
    assert attempts
    for attempt in attempts:
        run = attempt / "mirrors" / "wandb" / "offline-run-20260102_030405-id"
        (run / "files").mkdir(parents=True)
        (run / "run-id.wandb").write_bytes(b":W&B")
        for name in ("record.json", "series.jsonl", "cell.yaml"):  # as wandb or a user might copy them there
            (run / "files" / name).write_text("of a mirror")
    for name in (UPLOADS_FILE, LOCK_FILE):
        (runs / name).write_text("{}")
    build_report(runs, tmp_path / "with")
    for attempt in attempts:
        shutil.rmtree(attempt / "mirrors")
    build_report(runs, tmp_path / "deleted")
    without = bytes_of(tmp_path / "without")
    assert len(without) > 5
    assert bytes_of(tmp_path / "with") == without == bytes_of(tmp_path / "deleted")
