"""The state of every cell, from files alone."""

import io
from pathlib import Path

import pytest
from rich.console import Console
from worker.frozen import freeze

from scalerlt.launching.status import duration, status
from scalerlt.launching.watching import show_status, table
from scalerlt.records.lease import Lease
from scalerlt.records.plan import Plan, PlannedCell
from scalerlt.records.record import Record, Verdict
from scalerlt.records.recorder import Recorder
from scalerlt.records.store import CellDirectory, SweepDirectory

MOMENT = "2026-01-01T00:00:00+00:00"


def planned(cell_id: str, order: int, **more: str) -> PlannedCell:
    return PlannedCell.model_validate({"cell_id": cell_id, "axes": {"seed": order}, "order": order, **more})


def plan(*cells: PlannedCell) -> Plan:
    return Plan(sweep="sweep", created="", overrides=[], cells=list(cells))


def attempt(sweep: Path, cell_id: str, verdict: Verdict | None = None, reason: str | None = None) -> Path:
    """An attempt of this process, running unless it has a verdict."""
    number, path = CellDirectory(sweep / cell_id).claim()
    lease = Lease.of_this_process().model_copy(update={"started": "2026-01-01T00:00:00+00:00"})
    lease.write(path / "lease.json")
    if verdict is not None:
        Record(
            sweep="sweep",
            cell_id=cell_id,
            axes={},
            attempt=number,
            verdict=verdict,
            reason=reason,
            started="2026-01-01T00:00:00+00:00",
            ended="2026-01-01T00:01:30+00:00",
        ).write(path / "record.json")
    return path


@pytest.fixture
def sweep(tmp_path: Path) -> Path:
    sweep = tmp_path / "sweep"
    cells = ["waiting", "working", "done", "broken", "answered-then-failed", "failed-then-gone"]
    for cell_id in cells:
        freeze(sweep, "nothing", cell_id=cell_id)
    SweepDirectory(sweep).add_plan(
        plan(
            *(planned(cell_id, order) for order, cell_id in enumerate(cells)),
            planned("no-kernel", 6, state="unsupported", reason="fp8 needs a GPU"),
            planned("ruled-out", 7, state="skipped", reason="too large"),
            planned("thought-better-of", 8, state="skipped", reason="too large"),
        )
    )
    SweepDirectory(sweep).add_plan(plan(planned("thought-better-of", 0)))

    working = Recorder(attempt(sweep, "working"))
    working._enter("time")  # a phase that is not left
    working.progress(2, 5, "repeats")
    working.close()

    attempt(sweep, "done", Verdict.MEASURED)
    attempt(sweep, "broken", Verdict.MEASURED).joinpath("record.json").write_text("{")
    attempt(sweep, "answered-then-failed", Verdict.MEASURED)
    attempt(sweep, "answered-then-failed", Verdict.FAILED, "ValueError: no")
    attempt(sweep, "failed-then-gone", Verdict.FAILED, "ValueError: no")
    gone = attempt(sweep, "failed-then-gone")
    lease = Lease.read(gone / "lease.json")
    lease.model_copy(update={"boot_id": "an earlier one"}).write(gone / "lease.json")
    return sweep


def test_what_is_recorded_while_it_is_looked_at_is_not_lost(sweep: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its supervisor writes the record, and ends, between the reading of its attempt and the look for its process."""
    path = sweep / "working" / "attempt-001"
    record = Record(
        sweep="sweep", cell_id="working", axes={}, attempt=1, verdict=Verdict.MEASURED, started=MOMENT, ended=MOMENT
    )

    def ends(lease: Lease, moment: str | None = None) -> bool:
        record.write(path / "record.json")
        return False

    monkeypatch.setattr(Lease, "is_alive", ends)
    (working,) = (cell for cell in status(sweep) if cell.cell_id == "working")
    assert (working.state, working.unrecorded) == ("measured", False)


def test_every_cell_has_one_state(sweep: Path) -> None:
    cells = {cell.cell_id: cell for cell in status(sweep.parent)}
    assert {cell_id: (cell.state, cell.attempt) for cell_id, cell in cells.items()} == {
        "waiting": ("planned", None),
        "working": ("running", 1),
        "done": ("measured", 1),
        "broken": ("lost", 1),
        "answered-then-failed": ("measured", 1),
        "failed-then-gone": ("lost", 2),
        "no-kernel": ("unsupported", None),
        "ruled-out": ("skipped", None),
        "thought-better-of": ("planned", None),
    }
    assert cells["working"].reason == "phase time 2/5 repeats"
    assert (cells["working"].elapsed_seconds or 0) > 1000
    assert cells["done"].elapsed_seconds == 90
    assert "not a valid record" in (cells["broken"].reason or "")
    assert "was started anew while it ran" in (cells["failed-then-gone"].reason or "")
    assert cells["no-kernel"].reason == "fp8 needs a GPU"
    assert [cell_id for cell_id, cell in cells.items() if cell.is_bad] == ["broken", "failed-then-gone"]
    assert cells["waiting"].axes == {"seed": 0}
    assert list(cells)[:3] == ["waiting", "working", "done"], "in the order of the plan"


def test_it_is_shown_with_totals_and_logs(sweep: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (sweep / "plans" / "003.json").write_text("{}")
    assert show_status(sweep.parent) == 1
    shown = capsys.readouterr().out
    assert f"passed over: {sweep}/plans/003.json" in shown
    assert "9 cells: 2 lost, 2 measured, 2 planned, 1 running, 1 skipped, 1 unsupported" in shown
    assert f"  lost {sweep}/failed-then-gone/attempt-002/stderr.log" in shown
    (row,) = [line for line in shown.splitlines() if line.startswith("sweep  done")]
    assert row.split() == ["sweep", "done", "measured", "1", "1", "min", "30", "s", Lease.of_this_process().host]


def test_a_reason_with_brackets_is_text(sweep: Path) -> None:
    freeze(sweep, "nothing", cell_id="odd")
    attempt(sweep, "odd", Verdict.FAILED, "IndexError: x[bold]y[/bold]")
    file = io.StringIO()
    Console(file=file, width=500).print(table(status(sweep)))
    assert "x[bold]y[/bold]" in file.getvalue()


def test_an_empty_directory_has_no_cells(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert status(tmp_path) == status(tmp_path / "none") == []
    assert show_status(tmp_path) == 0
    assert "no cells" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.04, "0.0 s"), (9.94, "9.9 s"), (12.4, "12 s"), (60, "1 min 00 s"), (185.4, "3 min 05 s"), (7620, "2 h 07 min")],
)
def test_a_span_of_time(seconds: float, text: str) -> None:
    assert duration(seconds) == text
