"""Things under a runs directory that no run left there: they are named and passed over, and nothing ever waits."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from synthetic_runs import SyntheticSweep, cell_axes, cell_id, planned

from scalerlt.analysis import build_report, load_runs, load_series
from scalerlt.records import base
from scalerlt.records.cell import FrozenCell
from scalerlt.records.record import Verdict

REPOSITORY = Path(__file__).parents[2]
FIRST = cell_axes("rollout_throughput", "fp32", "small")
SECOND = cell_axes("rollout_throughput", "bf16", "small")
TRAINED = cell_axes("gsm8k_reward", "fp32", "small")
READ = """
import sys
from pathlib import Path
from scalerlt.analysis import build_report, load_metrics, load_runs, load_series
from scalerlt.launching.watching import show_status
runs, out = Path(sys.argv[1]), Path(sys.argv[2])
show_status(runs)
for load in (load_runs, load_metrics, load_series):
    frame = load(runs)
print("\\n".join(load_runs(runs).attrs["problems"]))
print("built", len(build_report(runs, out).outputs) > 0)
"""


@pytest.fixture
def sweep(tmp_path: Path) -> SyntheticSweep:
    """One measured cell, one planned."""
    sweep = SyntheticSweep(tmp_path / "runs" / "trial")
    sweep.plan([planned(FIRST), planned(SECOND)])
    sweep.record(FIRST)
    return sweep


def attempt(sweep: SyntheticSweep, number: int = 1) -> Path:
    """A new attempt at the second cell, without a record."""
    path = sweep.path / cell_id(SECOND) / f"attempt-{number:03d}"
    path.mkdir(parents=True)
    return path


def a_pipe(place: Path) -> None:
    os.mkfifo(place)


def a_directory(place: Path) -> None:
    (place / "record.json").mkdir(parents=True)


def a_loop(place: Path) -> None:
    place.symlink_to(place.name)


def nothing(place: Path) -> None:
    place.write_bytes(b"")


def half(place: Path) -> None:
    place.write_bytes(b'{"schema_version": 1, "sweep": "trial", "cell')


def a_huge_hole(place: Path) -> None:
    with place.open("wb") as file:
        file.truncate(2**40)


def no_text(place: Path) -> None:
    place.write_bytes(bytes(range(256)) * 10)


def nested(place: Path) -> None:
    place.write_bytes(b"[" * 100_000)


ODD: list[Callable[[Path], None]] = [a_pipe, a_directory, a_loop, nothing, half, a_huge_hole, no_text, nested]
FAULTS = {
    "a_pipe": "not a regular file",
    "a_directory": "not a regular file",
    "a_loop": "Too many levels of symbolic links",
    "a_huge_hole": f"{2**40} bytes",
}


@pytest.mark.parametrize("odd", ODD, ids=lambda odd: odd.__name__)
def test_a_record_that_is_none_is_named_and_passed_over(sweep: SyntheticSweep, odd: Callable[[Path], None]) -> None:
    odd(attempt(sweep) / "record.json")
    frame = load_runs(sweep.path.parent)
    assert frame["state"].tolist() == ["measured", "lost"]
    [problem] = frame.attrs["problems"]
    assert problem.startswith(f"trial/{cell_id(SECOND)}/attempt-001/record.json: ")
    assert FAULTS.get(odd.__name__, "not a valid record") in problem
    assert str(sweep.path) not in problem


@pytest.mark.parametrize("odd", ODD, ids=lambda odd: odd.__name__)
def test_a_plan_that_is_none_is_named_and_passed_over(sweep: SyntheticSweep, odd: Callable[[Path], None]) -> None:
    odd(sweep.path / "plans" / "002.json")
    frame = load_runs(sweep.path)
    assert len(frame) == 2
    [problem] = frame.attrs["problems"]
    assert problem.startswith("trial/plans/002.json: ")


@pytest.mark.parametrize("odd", [a_pipe, a_directory, a_loop, no_text], ids=lambda odd: odd.__name__)
def test_a_series_that_is_none_is_named_and_passed_over(sweep: SyntheticSweep, odd: Callable[[Path], None]) -> None:
    sweep.plan([planned(TRAINED)])
    record = sweep.record(TRAINED)
    odd(record.parent / "series.jsonl")
    frame = load_series(sweep.path)
    assert len(frame) == 0
    assert frame.attrs["problems"][0].startswith(f"trial/{cell_id(TRAINED)}/attempt-001/series.jsonl: ")


def test_nothing_waits_for_a_pipe(sweep: SyntheticSweep, tmp_path: Path) -> None:
    """Every file of a run, as a pipe that nobody writes to: status, frames and report come to their ends."""
    broken = attempt(sweep)
    for name in ("record.json", "lease.json", "series.jsonl", ".progress-rank0"):
        os.mkfifo(broken / name)
    os.mkfifo(sweep.path / "plans" / "002.json")
    os.mkfifo(sweep.path / "stray")
    os.mkfifo(sweep.path / cell_id(SECOND) / "cell.yaml")
    updated = cell_axes("actor_update", "fp32", "small")
    sweep.record(updated)
    os.mkfifo(sweep.path / cell_id(updated) / "cell.yaml")
    alone = sweep.path / "pipes-only"
    alone.mkdir()
    os.mkfifo(alone / "cell.yaml")
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
    command = [sys.executable, "-c", READ, str(sweep.path.parent), str(tmp_path / "out")]
    ran = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, check=False)
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.endswith("built True\n")
    assert f"trial/{cell_id(SECOND)}/attempt-001/record.json: cannot be read (not a regular file)" in ran.stdout
    assert "trial/pipes-only/cell.yaml: " in ran.stdout
    assert "trial/stray: is not part of a sweep" in ran.stdout


def test_directories_that_are_loops_or_not_permitted(sweep: SyntheticSweep, monkeypatch: pytest.MonkeyPatch) -> None:
    runs = sweep.path.parent
    (runs / "round").symlink_to("round")
    (runs / "up").symlink_to("..")
    (sweep.path / cell_id(SECOND)).symlink_to(cell_id(SECOND))
    (sweep.path / "attempts").symlink_to("attempts")
    frame = load_runs(runs)
    assert frame["state"].tolist() == ["measured", "lost"]
    assert frame["reason"].tolist()[1] == "its directory cannot be listed"
    problems = sorted(problem.split(": ")[0] for problem in frame.attrs["problems"])
    assert problems == ["round", "trial/attempts", f"trial/{cell_id(SECOND)}", "up"]

    listdir = os.listdir

    def refuse(path: Path) -> list[str]:
        if Path(path).name == cell_id(FIRST):
            raise PermissionError(13, "Permission denied", str(path))
        return listdir(path)

    monkeypatch.setattr(os, "listdir", refuse)
    frame = load_runs(runs)
    assert f"trial/{cell_id(FIRST)}: cannot be listed (Permission denied)" in frame.attrs["problems"]


def test_a_record_without_permission(sweep: SyntheticSweep, monkeypatch: pytest.MonkeyPatch) -> None:
    sweep.record(SECOND)
    real = os.open

    def refuse(path: Path, *rest: int) -> int:
        if cell_id(SECOND) in str(path) and Path(path).name == "record.json":
            raise PermissionError(13, "Permission denied", str(path))
        return real(path, *rest)

    monkeypatch.setattr(base.os, "open", refuse)
    frame = load_runs(sweep.path)
    assert frame["state"].tolist() == ["measured", "lost"]
    assert frame.attrs["problems"] == [
        f"trial/{cell_id(SECOND)}/attempt-001/record.json: cannot be read (Permission denied)"
    ]


def test_files_that_are_removed_while_they_are_read(
    sweep: SyntheticSweep, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A listing names what is gone a moment later."""
    sweep.record(SECOND)
    third = sweep.path / cell_id(SECOND) / "attempt-002"
    third.mkdir()
    isdir = os.path.isdir

    def then_removed(path: Path) -> bool:
        found = isdir(path)
        if Path(path) == third and found:
            third.rmdir()
        if Path(path).name == "attempt-001" and cell_id(SECOND) in str(path):
            (Path(path) / "record.json").unlink(missing_ok=True)
        return found

    monkeypatch.setattr(os.path, "isdir", then_removed)
    frame = load_runs(sweep.path)
    assert frame["state"].tolist() == ["measured", "running"]  # an attempt of this very moment, before its lease
    monkeypatch.undo()
    build_report(sweep.path, tmp_path / "out")


def test_a_plan_that_is_removed_while_it_is_read(sweep: SyntheticSweep, monkeypatch: pytest.MonkeyPatch) -> None:
    """It stands in no manifest, so nothing may come from it; a cell with a record stays."""
    monkeypatch.setattr("scalerlt.analysis.reading.read_file", _gone)
    frame = load_runs(sweep.path)
    assert frame["state"].tolist() == ["measured"]
    assert frame.attrs["problems"] == ["trial/plans/001.json: removed while it was read"]


def _gone(path: Path) -> bytes:
    raise FileNotFoundError(2, "No such file or directory", str(path))


def test_an_oom_row_first_and_rows_with_different_keys(tmp_path: Path) -> None:
    """The columns are those of all records, whichever comes first; nothing is taken from the first alone."""
    sweep = SyntheticSweep(tmp_path / "sweep")
    update = cell_axes("actor_update", "fp32", "small", **{"x.lora_rank": None})
    sweep.plan([planned(SECOND), planned(FIRST), planned(update)])
    sweep.record(SECOND, Verdict.OOM)
    sweep.record(FIRST)
    sweep.record(update)
    frame = load_runs(sweep.path)
    assert frame["state"].tolist() == ["oom", "measured", "measured"]
    assert frame["generated_tokens"].isna().tolist() == [True, False, True]
    assert str(frame["generated_tokens"].dtype) == "Int64"
    assert frame["saved_bytes"].isna().tolist() == [True, True, False]
    assert frame["x.lora_rank"].tolist() == [None, None, None]
    assert frame.groupby("x.lora_rank", dropna=False).size().sum() == 3
    assert frame.pivot(index="cell_id", columns="precision", values="state").shape == (3, 2)


def test_the_frozen_cell_of_an_unplanned_directory(sweep: SyntheticSweep) -> None:
    """Which cell it is comes from its newest record, else from cell.yaml, and must be its own name."""
    other = sweep.path / "another"
    other.mkdir()
    frozen = FrozenCell(
        identity_version=1, identity="0" * 64, cell_id="elsewhere", sweep="trial", axes=SECOND, config={}
    )
    frozen.write(other / "cell.yaml")
    assert load_runs(sweep.path).attrs["problems"] == ["trial/another/cell.yaml: holds another cell, elsewhere"]
