"""What a queue that was killed in any moment leaves, and two queues that want the same cell."""

import io
import os
from pathlib import Path

import pytest
from launching.fake_slurm import attempt, sweep_of
from rich.console import Console

from scalerlt.launching import local
from scalerlt.launching.progress import Display
from scalerlt.launching.recovery import reconcile
from scalerlt.records.lease import Lease
from scalerlt.records.plan import Plan
from scalerlt.records.record import Verdict
from scalerlt.records.store import CellClaimed, CellDirectory


def age(path: Path, seconds: float) -> None:
    moment = path.stat().st_mtime - seconds
    os.utime(path, (moment, moment))


@pytest.mark.parametrize("alive", [False, True])
def test_what_was_left_beside_a_record_is_removed_once_its_writer_is_gone(tmp_path: Path, alive: bool) -> None:
    """Killed after it had renamed the record into place, and before it removed the journal."""
    sweep = sweep_of(tmp_path / "sweep", "a")
    path = attempt(sweep, "a", verdict=Verdict.MEASURED)
    if alive:
        Lease.of_this_process().write(path / "lease.json")
    record = (path / "record.json").read_bytes()
    hidden = [path / name for name in (".progress-rank0", ".progress-rank1", ".lease.json.4321.tmp")]
    for file in hidden:
        file.write_text("{")
    assert reconcile(CellDirectory(sweep / "a")) == []
    assert [file.exists() for file in hidden] == [alive] * 3
    assert (path / "record.json").read_bytes() == record


def test_what_was_left_of_a_record_that_was_never_finished_is_removed(tmp_path: Path) -> None:
    sweep = sweep_of(tmp_path / "sweep", "a")
    path = attempt(sweep, "a")
    own, anothers, old = (path / f".record.json.{pid}.tmp" for pid in (4321, 99, 98))
    for file in (own, anothers, old):
        file.write_text("{")
    age(old, 60)
    reconcile(CellDirectory(sweep / "a"))
    (found,) = CellDirectory(sweep / "a").attempts()
    assert found.record is not None and found.record.verdict is Verdict.LOST
    assert not own.exists() and not old.exists()
    assert anothers.exists(), "of a queue that is recording the attempt in this moment"


def test_a_claim_fails_when_another_has_tried_the_cell_since(tmp_path: Path) -> None:
    sweep = sweep_of(tmp_path / "sweep", "a")
    cell = CellDirectory(sweep / "a")
    attempt(sweep, "a", verdict=Verdict.FAILED)
    attempt(sweep, "a", verdict=Verdict.MEASURED)
    with pytest.raises(CellClaimed, match="attempt-002 was made by another process"):
        cell.claim(seen=1)
    assert cell.claim(seen=2)[0] == 3


def test_a_cell_that_is_answered_between_decision_and_claim_is_not_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another host's queue is faster while this one's server imports torch."""
    sweep = sweep_of(tmp_path / "sweep", "a")

    class SlowServer:
        is_alive = True

        def __init__(self, preload: list[str]) -> None:
            pass

        def __enter__(self) -> "SlowServer":
            return self

        def __exit__(self, *_: object) -> None:
            pass

        def ensure(self) -> None:
            if not CellDirectory(sweep / "a").attempts():
                attempt(sweep, "a", verdict=Verdict.MEASURED)

    monkeypatch.setattr(local, "ForkServer", SlowServer)
    shown = io.StringIO()
    plan = Plan.read(sweep / "plans" / "001.json")
    outcome = local.run_plan(sweep, plan, "001.json", display=Display(Console(file=shown, soft_wrap=True)))
    assert [(cell.state, cell.attempt) for cell in outcome.cells] == [("measured", 1)]
    assert len(CellDirectory(sweep / "a").attempts()) == 1
    assert "was made by another process in the meantime" in shown.getvalue()
