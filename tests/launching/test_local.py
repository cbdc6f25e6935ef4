"""The local queue, in this process: what it runs, what it leaves, and how it says so."""

import io
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
from launching.fake_slurm import FakeSlurm, submit, sweep_of
from launching.queue_process import plan_of
from rich.console import Console
from worker.frozen import freeze

from scalerlt.errors import UserError
from scalerlt.launching.jobs import Jobs
from scalerlt.launching.local import Outcome, preloaded, run_plan
from scalerlt.launching.progress import Display
from scalerlt.launching.slurm.ask import JobState
from scalerlt.launching.status import status
from scalerlt.planning.cost import Cost
from scalerlt.records.base import UnwritableFile
from scalerlt.records.lease import Lease
from scalerlt.records.plan import Plan, PlannedCell
from scalerlt.records.record import Record, Verdict
from scalerlt.records.store import CellDirectory, SweepDirectory
from scalerlt.worker.fork_server import ForkServer

pytestmark = pytest.mark.usefixtures("one_server")


class Meanwhile(Display):
    """Does something between a queue's first look at the cells and its start with them, as others may do."""

    def __init__(self, console: Console, what: Callable[[], object]) -> None:
        super().__init__(console)
        self._what = what

    def begin(self, cells: int, expected: Mapping[str, Cost] | None = None) -> None:
        super().begin(cells, expected or {})
        self._what()


def run(sweep: Path, plan: Plan | None = None, meanwhile: Callable[[], object] = lambda: None) -> tuple[Outcome, str]:
    """Run a plan (by default of all frozen cells); the outcome, and what was shown."""
    directory = SweepDirectory(sweep)
    plan = plan or plan_of(directory)
    name = directory.add_plan(plan).name
    shown = io.StringIO()
    outcome = run_plan(
        sweep,
        plan,
        name,
        display=Meanwhile(Console(file=shown, markup=False, highlight=False, soft_wrap=True), meanwhile),
    )
    return outcome, shown.getvalue()


@pytest.mark.parametrize("missing", [["safetensors"], ["torch", "safetensors"]])
def test_without_the_packages_of_the_extra_no_cell_begins(
    missing: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cell = freeze(tmp_path / "runs" / "sweep", "measures").parent
    sweep = cell.parent
    with monkeypatch.context() as without:
        for name in missing:
            without.setitem(sys.modules, name, None)
        with pytest.raises(UserError) as told:
            run(sweep)
        assert str(told.value) == f"no cell can run here without {' and '.join(missing)}: pip install 'scalerlt[torch]'"
        assert not list(cell.glob("attempt-*"))
    assert run(sweep)[0].exit_code == 0
    for name in missing:
        monkeypatch.setitem(sys.modules, name, None)
    outcome, shown = run(sweep)
    assert outcome.exit_code == 0 and "1 measured" in shown, "where nothing is to run nothing is missing"


def record(sweep: Path, cell_id: str, attempt: int = 1) -> Record:
    return Record.read(sweep / cell_id / f"attempt-{attempt:03d}" / "record.json")


def attempts(sweep: Path, cell_id: str) -> list[str]:
    return sorted(path.name for path in (sweep / cell_id).glob("attempt-*"))


def test_every_cell_gets_its_verdict_in_plan_order(tmp_path: Path) -> None:
    sweep = tmp_path / "sweep"
    order = ["measures", "raises", "nothing", "exits_with_9", "is_unsupported"]
    for probe in order:
        freeze(sweep, probe)
    cells = [PlannedCell(cell_id=probe, axes={}, order=order.index(probe), bundle="b1") for probe in sorted(order)]
    skipped = PlannedCell(cell_id="ruled-out", axes={}, state="skipped", reason="fp16 on a CPU", order=9)
    outcome, shown = run(sweep, Plan(sweep="sweep", created="", overrides=[], cells=[*cells, skipped]))

    verdicts = {"measures": "measured", "raises": "failed", "nothing": "measured", "exits_with_9": "failed"}
    assert {cell.cell_id: cell.state for cell in outcome.cells} == {
        **verdicts,
        "is_unsupported": "unsupported",
        "ruled-out": "skipped",
    }
    started = [record(sweep, probe).started for probe in order]
    assert started == sorted(started)
    assert (record(sweep, "raises").order, record(sweep, "raises").bundle) == (1, "b1")
    assert record(sweep, "raises").plan == "001.json"
    assert [cell.cell_id for cell in outcome.bad] == ["raises", "exits_with_9"]
    assert outcome.exit_code == 1 and not outcome.interrupted
    log = outcome.bad[0].log
    assert log is not None and "ValueError" in log.read_text()
    assert "[2/5] raises failed in " in shown and "ValueError: the loss is NaN" in shown
    assert "6 cells: 2 failed, 2 measured, 1 skipped, 1 unsupported" in shown
    assert f"  failed raises: {log}" in shown
    assert status(tmp_path) == status(sweep), "a sweep's own directory will do"
    assert status(sweep) == outcome.cells


def test_a_cell_with_an_answer_is_not_run_again_and_one_without_is(tmp_path: Path) -> None:
    for probe in ("measures", "is_unsupported", "raises"):
        freeze(tmp_path, probe)
    assert run(tmp_path)[0].exit_code == 1
    outcome, shown = run(tmp_path)
    assert attempts(tmp_path, "measures") == attempts(tmp_path, "is_unsupported") == ["attempt-001"]
    assert attempts(tmp_path, "raises") == ["attempt-001", "attempt-002"]
    assert record(tmp_path, "raises", 2).plan == "002.json"
    assert "not to run: 2 cells: 1 measured, 1 unsupported" in shown
    assert outcome.exit_code == 1


@pytest.mark.parametrize("damage", ["truncated", "not_json", "other_schema", "empty"])
def test_a_corrupt_record_is_kept_aside_and_the_cell_runs_again(tmp_path: Path, damage: str) -> None:
    freeze(tmp_path, "measures")
    run(tmp_path)
    file = tmp_path / "measures" / "attempt-001" / "record.json"
    whole = file.read_text()
    damaged = {
        "truncated": whole[: len(whole) // 2],
        "not_json": "measured\n",
        "other_schema": json.dumps({**json.loads(whole), "verdict": "splendid"}),
        "empty": "",
    }[damage]
    file.write_text(damaged)
    outcome, shown = run(tmp_path)
    assert outcome.exit_code == 0
    assert file.with_name("record.json.corrupt-1").read_text() == damaged
    assert record(tmp_path, "measures").verdict is Verdict.LOST
    assert "kept as record.json.corrupt-1" in (record(tmp_path, "measures").reason or "")
    assert record(tmp_path, "measures", 2).verdict is Verdict.MEASURED
    assert "kept as record.json.corrupt-1" in shown


def test_a_cell_that_runs_elsewhere_is_left_alone(tmp_path: Path) -> None:
    freeze(tmp_path, "measures")
    freeze(tmp_path, "nothing")
    _, attempt = CellDirectory(tmp_path / "measures").claim()
    lease = Lease.of_this_process()
    lease.model_copy(update={"host": "another-host", "pid": 1}).write(attempt / "lease.json")
    outcome, shown = run(tmp_path)
    assert attempts(tmp_path, "measures") == ["attempt-001"]
    assert {cell.cell_id: (cell.state, cell.host) for cell in outcome.cells} == {
        "measures": ("running", "another-host"),
        "nothing": ("measured", lease.host),
    }
    assert outcome.exit_code == 0, "it has been submitted"
    assert "not to run: 1 cell: 1 running" in shown

    stale = lease.model_copy(update={"host": "another-host", "heartbeat": "2026-01-01T00:00:00+00:00"})
    stale.write(attempt / "lease.json")
    outcome, shown = run(tmp_path)
    assert outcome.exit_code == 0
    assert record(tmp_path, "measures").verdict is Verdict.LOST
    assert record(tmp_path, "measures").ended == stale.heartbeat
    assert record(tmp_path, "measures", 2).verdict is Verdict.MEASURED
    assert "died without a record" in shown


def test_a_damaged_cell_file_is_listed_and_the_others_run(tmp_path: Path) -> None:
    freeze(tmp_path, "measures")
    freeze(tmp_path, "nothing").write_text("config: {\n")
    outcome, shown = run(tmp_path)
    assert outcome.exit_code == 1
    assert list(outcome.faults) == ["nothing"]
    assert "not started nothing:" in shown and "not a frozen cell" in shown
    assert record(tmp_path, "measures").verdict is Verdict.MEASURED


def test_a_configuration_edited_while_a_cell_waits_changes_nothing(tmp_path: Path) -> None:
    """What was frozen is what runs: the queue composes nothing."""
    cell_file = freeze(tmp_path, "measures", device={"threads": 2})
    frozen = cell_file.read_bytes()
    run(tmp_path)
    assert cell_file.read_bytes() == frozen
    assert record(tmp_path, "measures").metrics["threads"].value == 2


def test_a_queue_with_nothing_to_run_starts_no_server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    freeze(tmp_path, "measures")
    run(tmp_path)

    def refuse(_: ForkServer) -> None:
        raise AssertionError("no server is needed")

    monkeypatch.setattr(ForkServer, "ensure", refuse)
    assert run(tmp_path)[0].exit_code == 0


def test_reasons_are_shown_as_they_are(tmp_path: Path) -> None:
    """Markup of the terminal's library in a reason or an id is text."""
    freeze(tmp_path, "measures", cell_id="a[bold]b")
    assert "a[bold]b measured" in run(tmp_path)[1]


def test_the_lock_of_the_device_is_free_afterwards(tmp_path: Path) -> None:
    from scalerlt.launching.devices import hold

    freeze(tmp_path, "measures")
    run(tmp_path)
    with hold(["cpu"], "this test", say=pytest.fail, give_up=lambda: False) as held:
        assert held
        outcome, shown = None, []
        with hold(["cpu"], "another", say=shown.append, give_up=lambda: bool(shown)) as second:
            assert not second
        assert outcome is None and shown == [f"waiting for device cpu: this test (pid {os.getpid()}) measures on it"]


AS_THE_SERVER_DOES = """
import importlib, os, sys
for name in sys.argv[1:]:
    importlib.import_module(name)
print(len(os.listdir("/proc/self/task")))
import torch
before = len(sys.modules)
torch.optim.AdamW([torch.nn.Parameter(torch.ones(1))])
print(len(sys.modules) - before)
"""


def test_what_is_imported_for_all_cells_starts_no_thread_and_spares_them_the_compiler() -> None:
    modules = preloaded([{"experiment": {"_target_": "scalerlt.experiments.actor_update.run"}}])
    ran = subprocess.run(
        [sys.executable, "-c", AS_THE_SERVER_DOES, *modules],
        env={**os.environ, "OPENBLAS_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=True,
    )
    threads, imported_by_an_optimizer = map(int, ran.stdout.split())
    assert threads == 1
    assert imported_by_an_optimizer < 50  # else the compiler's hundreds


def test_a_cell_that_a_slurm_job_is_going_to_run_is_left_to_it(tmp_path: Path) -> None:
    sweep = sweep_of(tmp_path / "sweep", "nothing", "waits")
    submit(sweep, [["waits"], ["nothing"]], [("12", [0]), ("13", [1])])
    directory, shown = SweepDirectory(sweep), io.StringIO()
    slurm = FakeSlurm(listed={"12": JobState("12", "PENDING", "Priority")})
    plan = plan_of(directory)
    display = Display(Console(file=shown, width=200))
    outcome = run_plan(sweep, plan, "001.json", display=display, jobs=Jobs(slurm))
    assert {cell.cell_id: cell.state for cell in outcome.cells} == {"nothing": "measured", "waits": "queued"}
    assert outcome.exit_code == 0 and attempts(sweep, "waits") == []
    assert all(question == ["12", "13"] for question in slurm.questions), "one question for all"
    assert "not to run: 1 cell: 1 queued" in shown.getvalue()


def test_a_timed_cell_on_a_machine_that_others_use_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from scalerlt.launching import local

    monkeypatch.setattr(local, "crowded", lambda: "other processes used 1.5 of the 2 CPUs")
    freeze(tmp_path, "measures")
    freeze(tmp_path, "nothing")
    monkeypatch.setattr(local, "_is_timed", lambda config: config["experiment"]["_target_"].endswith("measures"))
    _, shown = run(tmp_path)
    assert record(tmp_path, "measures").notes == ["other processes used 1.5 of the 2 CPUs"]
    assert record(tmp_path, "nothing").notes == []
    assert shown.count("warning: ") == 1
    assert "warning: measures: other processes used 1.5 of the 2 CPUs" in shown


def test_an_experiment_that_repeats_is_timed_and_a_training_is_not() -> None:
    from scalerlt.launching.local import _is_timed

    names = ("rollout_throughput", "actor_update", "planning_speed", "gsm8k_eval", "gsm8k_reward")
    assert [_is_timed({"experiment": {"name": name}}) for name in names] == [True, True, True, False, False]


def test_what_planning_expects_is_what_is_left(tmp_path: Path) -> None:
    freeze(tmp_path, "measures")
    freeze(tmp_path, "nothing")
    directory, shown = SweepDirectory(tmp_path), io.StringIO()
    plan = plan_of(directory)
    display = Display(Console(file=shown, width=200))
    asked: list[str] = []

    def cost_of(cell_id: str) -> Cost:
        asked.append(cell_id)
        return Cost(None if cell_id == "measures" else 7200.0, 0.0, "similar", "")

    run_plan(tmp_path, plan, "001.json", display=display, cost_of=cost_of)
    assert asked == ["measures", "nothing"]
    assert "(about 2 h 00 min left)" in shown.getvalue()


def test_a_cell_that_was_changed_by_hand_is_named_and_the_others_run(tmp_path: Path) -> None:
    """Whether before the queue began, or while it waited."""
    sweep = tmp_path / "sweep"
    early, late = freeze(sweep, "measures"), freeze(sweep, "prints")
    freeze(sweep, "nothing")

    def edit(file: Path) -> None:
        file.write_text(file.read_text().replace("    repeats: 1", "    repeats: 2"))

    edit(early)
    outcome, shown = run(sweep, meanwhile=lambda: edit(late))
    assert outcome.exit_code == 1
    assert {cell.cell_id: cell.state for cell in outcome.cells} == {
        "measures": "planned",
        "nothing": "measured",
        "prints": "planned",
    }
    for file in (early, late):
        name = file.parent.name
        assert f"not started {name}: {file}: was changed after it was frozen, and is no longer the cell {name}" in shown


def test_a_cell_that_a_later_request_has_frozen_anew_goes_by_it_and_says_so(tmp_path: Path) -> None:
    sweep = tmp_path / "sweep"
    file = freeze(sweep, "nothing", timeout_s=60.0)
    text = file.read_text().replace("timeout_s: 60.0", "timeout_s: 50.0")
    _, shown = run(sweep, meanwhile=lambda: file.write_text(text))
    note = "a later request of the sweep has frozen it with resources.timeout_s=50.0 instead of 60.0"
    assert record(sweep, "nothing").notes == [note] and f"nothing: {note}" in shown


@pytest.mark.parametrize("what", ["cell", "sweep"])
def test_what_is_removed_while_a_queue_waits(tmp_path: Path, what: str) -> None:
    sweep = tmp_path / "sweep"
    freeze(sweep, "measures")
    freeze(sweep, "nothing")
    gone = sweep / "measures" if what == "cell" else sweep
    outcome, shown = run(sweep, meanwhile=lambda: shutil.rmtree(gone))
    assert set(outcome.faults) == ({"measures"} if what == "cell" else {"measures", "nothing"})
    assert outcome.exit_code == 1
    assert f"not started measures: {sweep}/measures/cell.yaml: cannot be read (No such file or directory)" in shown
    assert sweep.exists() == (what == "cell"), "nothing is made again"


def test_a_cell_that_cannot_be_recorded_is_lost_and_the_others_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its queue does not call it running, though this process, which has its lease, lives."""
    sweep = tmp_path / "sweep"
    freeze(sweep, "measures")
    freeze(sweep, "nothing")
    full = sweep / "measures" / "attempt-001" / "record.json"
    write = Record.write

    def refuse(document: Record, path: Path) -> None:
        if path == full:
            raise UnwritableFile(f"{path}: cannot be written (No space left on device)")
        write(document, path)

    monkeypatch.setattr(Record, "write", refuse)
    outcome, shown = run(sweep)
    assert {cell.cell_id: cell.state for cell in outcome.cells} == {"measures": "lost", "nothing": "measured"}
    assert outcome.exit_code == 1
    said = f"{full}: cannot be written (No space left on device); the attempt ended measured"
    assert f"[1/2] measures {said}" in shown and f"  lost measures: {said}" in shown
