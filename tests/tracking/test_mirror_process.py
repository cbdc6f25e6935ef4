"""A mirror can do its cell no harm: with a wandb that is absent, raises, hangs, dies, or is one too many."""

import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import psutil
import pytest
from tracking.mirrored_cells import leave_attempt, mirror, mirrored_cell, without_wandb

from scalerlt.records.record import Record, Verdict
from scalerlt.worker import mirror as supervisors_end
from scalerlt.worker.fork_server import ForkServer
from scalerlt.worker.processes import search_path
from scalerlt.worker.supervisor import Supervisor

FAKE = """
import os, pathlib, sys, time
here = pathlib.Path(__file__).parent

class Settings:
    def __init__(self, **settings): pass

class Table:
    def __init__(self, columns, data): pass

class Run:
    summary = {}
    def define_metric(self, *names, **more): pass
    def log(self, values, step):
        AT_LOG
        with open(here / "rows", "a") as file: print(values.get("step"), values.get("attempt"), file=file)
    def mark_preempting(self): pass
    def finish(self, exit_code):
        AT_FINISH
        with open(here / "finished", "a") as file: print(exit_code, file=file)

def teardown(): pass

def init(**arguments):
    with open(here / "started", "a") as file: print(os.getpid(), arguments["mode"], file=file)
    with open(here / "runs", "a") as file: print(arguments["dir"], arguments["id"], arguments["resume"], file=file)
    print("wandb says something")
    AT_INIT
    return Run()
"""


class FakeWandb:
    """A module `wandb` that mirrors import in place of the real one."""

    def __init__(self, folder: Path, at_init: str, at_finish: str, at_log: str) -> None:
        self.folder = folder
        folder.mkdir()
        code = FAKE.replace("AT_INIT", at_init).replace("AT_FINISH", at_finish).replace("AT_LOG", at_log)
        (folder / "wandb.py").write_text(code)

    def lines(self, name: str) -> list[str]:
        """What was done: started, rows, finished; and as which runs."""
        file = self.folder / name
        return file.read_text().splitlines() if file.exists() else []

    def process(self) -> psutil.Process | None:
        """The mirror that called it last, if it still runs."""
        pid = int(self.lines("started")[-1].split()[0])
        return psutil.Process(pid) if psutil.pid_exists(pid) else None


@pytest.fixture
def fake(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeWandb:
    """Parametrised with what it does as it starts, as it finishes, and at every row."""
    done = getattr(request, "param", ())
    fake = FakeWandb(tmp_path / "fake", *done, *["pass"] * (3 - len(done)))
    monkeypatch.syspath_prepend(str(fake.folder))
    monkeypatch.setattr(supervisors_end, "PATIENCE_SECONDS", 60.0)  # a machine that tests are run on is busy
    return fake


def patience(monkeypatch: pytest.MonkeyPatch, seconds: float) -> None:
    monkeypatch.setattr(supervisors_end, "PATIENCE_SECONDS", seconds)


@pytest.fixture
def over(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """When the measuring was over."""
    moments: list[float] = []
    ready = supervisors_end.Mirror.ready

    def noting(mirror: supervisors_end.Mirror) -> list[str]:
        moments.append(time.monotonic())
        return ready(mirror)

    monkeypatch.setattr(supervisors_end.Mirror, "ready", noting)
    return moments


class Clock:
    """The clock of the supervisor's end, which can be put forward."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.ahead = 0.0
        monkeypatch.setattr(supervisors_end, "time", self)

    def monotonic(self) -> float:
        return time.monotonic() + self.ahead


def test_a_mirror_costs_ten_seconds_at_most() -> None:
    assert supervisors_end.HURRIED_SECONDS < supervisors_end.PATIENCE_SECONDS <= 10.0


@pytest.mark.parametrize("timed", [True, False])
def test_a_mirror_that_works_leaves_no_note(server: ForkServer, fake: FakeWandb, tmp_path: Path, timed: bool) -> None:
    cell_file = mirrored_cell(tmp_path / "sweep", "measures", timed=timed)
    record = Supervisor(server).run(cell_file)
    assert (record.verdict, record.notes) == (Verdict.MEASURED, [])
    assert fake.lines("finished") == ["0"]
    assert fake.lines("started")[0].endswith(" offline"), "there is no key"
    assert "wandb says something" in (cell_file.parent / "attempt-001/mirrors/mirror.log").read_text()
    assert fake.process() is None


@pytest.mark.parametrize("fake", [("raise RuntimeError('no space left\\nfor wandb')",)], indirect=True)
@pytest.mark.parametrize("timed", [True, False])
def test_a_wandb_that_raises_is_a_note(server: ForkServer, fake: FakeWandb, tmp_path: Path, timed: bool) -> None:
    record = Supervisor(server).run(mirrored_cell(tmp_path / "sweep", "measures", timed=timed))
    assert (record.verdict, record.metrics["answer"].value) == (Verdict.MEASURED, 42)
    assert record.notes == ["wandb unavailable: RuntimeError: no space left"]


HANGS = "pathlib.Path(arguments['dir'], 'offline-run-1').mkdir(parents=True); time.sleep(600)"


@pytest.mark.parametrize("fake", [(HANGS,)], indirect=True)
@pytest.mark.parametrize("timed", [True, False])
def test_a_wandb_that_hangs_is_a_note_and_ended(
    server: ForkServer,
    fake: FakeWandb,
    over: list[float],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    timed: bool,
) -> None:
    patience(monkeypatch, 3.0)
    server.ensure()
    cell_file = mirrored_cell(tmp_path / "sweep", "measures", timed=timed)
    began = time.monotonic()
    record = Supervisor(server).run(cell_file)
    assert time.monotonic() - began < 200, "the hang alone takes 600 s"
    assert record.verdict is Verdict.MEASURED
    assert record.notes == ["wandb unavailable: not started within 3 s"]
    left = [path.name for path in (cell_file.parent / "attempt-001/mirrors").iterdir()]
    assert left == ["mirror.log"], "no torso to be uploaded"
    assert Record.read(cell_file.parent / "attempt-001/record.json").notes == record.notes
    if fake.lines("started"):
        assert fake.process() is None
    assert record.overhead_seconds is not None
    assert record.overhead_seconds < over[0] - began, "the mirror is no part of it"


@pytest.mark.parametrize("fake", [("os.kill(os.getpid(), 9)",)], indirect=True)
def test_a_wandb_that_dies_is_a_note(server: ForkServer, fake: FakeWandb, tmp_path: Path) -> None:
    record = Supervisor(server).run(mirrored_cell(tmp_path / "sweep", "measures"))
    assert record.verdict is Verdict.MEASURED
    assert record.notes == ["wandb unavailable: its process ended (see mirrors/mirror.log)"]


@pytest.mark.parametrize(
    ("fake", "seconds"),
    [(("pass", "time.sleep(600)"), 2.0), (("pass", "raise OSError('quota')"), 60.0)],
    indirect=["fake"],
)
def test_a_wandb_that_does_not_finish_is_a_warning(
    server: ForkServer,
    fake: FakeWandb,
    seconds: float,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """It has stood for long; so much of the patience is left when the record is written."""
    ready = supervisors_end.Mirror.ready

    def ready_at_last(mirror: supervisors_end.Mirror) -> list[str]:
        notes = ready(mirror)
        mirror._deadline = time.monotonic() + seconds
        return notes

    monkeypatch.setattr(supervisors_end.Mirror, "ready", ready_at_last)
    cell_file = mirrored_cell(tmp_path / "sweep", "waits_for_a_file", timed=False)
    supervisor = Supervisor(server)
    done: list[Record] = []
    thread = threading.Thread(target=lambda: done.append(supervisor.run(cell_file)))
    thread.start()
    wait_for(lambda: (cell_file.parent / "attempt-001/lease.json").exists())
    series = cell_file.parent / "attempt-001/series.jsonl"
    series.write_text('{"step": 1}\n')
    wait_for(lambda: fake.lines("rows"))
    (cell_file.parent / "go").touch()
    thread.join(240)
    assert [record.verdict for record in done] == [Verdict.MEASURED]
    assert done[0].notes == []
    assert fake.lines("rows") == ["1 1"] and fake.lines("finished") == []
    warned = capsys.readouterr().err
    assert "warning: the mirror at wandb" in warned and "mirror.log" in warned
    assert fake.process() is None


STARTS_SLOWLY = "while not (here / 'over').exists(): time.sleep(0.01)"


@pytest.mark.parametrize(
    "fake",
    [(STARTS_SLOWLY, "time.sleep(600)"), ("pass", "pass", "(here / 'logs').touch(); time.sleep(600)")],
    indirect=True,
    ids=["slow to start and hangs at the end", "hangs at a row"],
)
def test_its_patience_is_one_for_start_and_finish_together(
    server: ForkServer,
    fake: FakeWandb,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Of 600 s, 400 pass before the mirror stands, and what is left then while it should finish."""
    patience(monkeypatch, 600.0)
    clock, tell, left = Clock(monkeypatch), supervisors_end.Mirror._tell, list[float]()

    def passing(mirror: supervisors_end.Mirror, word: bytes | None) -> None:
        tell(mirror, word)
        if word is None:
            left.append(mirror._left())
            clock.ahead += left[0]
        else:
            clock.ahead += 400.0
            (fake.folder / "over").touch()

    monkeypatch.setattr(supervisors_end.Mirror, "_tell", passing)
    cell_file = mirrored_cell(tmp_path / "sweep", "waits_for_a_file", timed=False)
    series = cell_file.parent / "attempt-001/series.jsonl"
    at_row = "logs" in (fake.folder / "wandb.py").read_text()

    def watch(_: object) -> None:
        series.write_text('{"step": 1}\n')
        if (fake.folder / "logs").exists() if at_row else fake.lines("started"):
            (cell_file.parent / "go").touch()

    record = Supervisor(server).run(cell_file, on_event=watch)
    assert (record.verdict, record.notes) == (Verdict.MEASURED, [])
    assert len(left) == 1 and 0.0 < left[0] <= 200.0, "once 600 s, however they are divided"
    assert "was not done in time" in capsys.readouterr().err
    assert fake.lines("finished") == [] and fake.process() is None


@pytest.mark.parametrize("fake", [("pass", "pass", "raise OSError('quota')")], indirect=True)
def test_a_wandb_that_fails_meanwhile_is_a_note(server: ForkServer, fake: FakeWandb, tmp_path: Path) -> None:
    cell_file = mirrored_cell(tmp_path / "sweep", "waits_for_a_file", timed=False)
    attempt = cell_file.parent / "attempt-001"

    def watch(_: object) -> None:
        (attempt / "series.jsonl").write_text('{"step": 1}\n')
        if fake.lines("started") and (process := fake.process()) and process.status() == psutil.STATUS_ZOMBIE:
            (cell_file.parent / "go").touch()

    record = Supervisor(server).run(cell_file, on_event=watch)
    assert record.verdict is Verdict.MEASURED
    assert record.notes == ["wandb unavailable: it failed while the attempt ran (see mirrors/mirror.log)"]


@pytest.mark.parametrize("fake", [("time.sleep(600)",)], indirect=True)
def test_a_job_that_must_end_does_not_wait(
    server: ForkServer, fake: FakeWandb, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The record is written before the mirror is waited for at all, and then for a moment only."""
    patience(monkeypatch, 600.0)
    monkeypatch.setattr(supervisors_end, "HURRIED_SECONDS", 0.3)
    server.ensure()
    stop = threading.Event()
    cell_file = mirrored_cell(tmp_path / "sweep", "hangs", timed=False)
    began = time.monotonic()
    record = Supervisor(server).run(cell_file, stop=stop, on_event=lambda _: stop.set())
    assert (record.verdict, record.reason, record.notes) == (Verdict.KILLED, "interrupted", [])
    assert time.monotonic() - began < 200, "its patience is 600 s"


@pytest.mark.parametrize("fake", [("if arguments['mode'] == 'online': raise OSError('503')",)], indirect=True)
def test_without_a_connection_the_run_is_an_offline_one(
    server: ForkServer, fake: FakeWandb, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WANDB_API_KEY", "0" * 40)
    record = Supervisor(server).run(mirrored_cell(tmp_path / "sweep", "measures"))
    assert [line.split()[1] for line in fake.lines("started")] == ["online", "offline"]
    assert fake.lines("finished") == ["0"]
    assert record.notes == ["wandb: no connection (503); mirrored offline, scalerlt wandb-sync uploads it"]


def test_a_tracker_that_is_not_installed_is_a_note(
    server: ForkServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    absent = tmp_path / "absent"
    absent.mkdir()
    (absent / "wandb.py").write_text("raise ModuleNotFoundError(\"No module named 'wandb'\")")
    monkeypatch.syspath_prepend(str(absent))
    monkeypatch.setattr(supervisors_end, "PATIENCE_SECONDS", 60.0)
    record = Supervisor(server).run(mirrored_cell(tmp_path / "sweep", "measures"))
    assert record.verdict is Verdict.MEASURED
    (note,) = record.notes
    assert note.startswith("wandb unavailable: wandb cannot be imported") and "pip install 'scalerlt[wandb]'" in note


def test_without_a_tracker_there_is_no_mirror(server: ForkServer, fake: FakeWandb, tmp_path: Path) -> None:
    cell_file = mirrored_cell(tmp_path / "sweep", "measures", "none")
    assert Supervisor(server).run(cell_file).notes == []
    assert fake.lines("started") == []
    assert not (cell_file.parent / "attempt-001/mirrors").exists()


def test_of_two_ranks_one_mirror(server: ForkServer, fake: FakeWandb, tmp_path: Path) -> None:
    parallel = {"parallel": {"name": "ranks", "nodes": 1, "ranks_per_node": 2}}
    record = Supervisor(server).run(mirrored_cell(tmp_path / "sweep", "measures", config=parallel))
    assert len(record.ranks) == 2
    assert len(fake.lines("started")) == 1 and fake.lines("finished") == ["0"]


def test_where_figures_are_times_nothing_runs_beside_them(server: ForkServer, fake: FakeWandb, tmp_path: Path) -> None:
    """A timed cell that lasts: no mirror until it has ended. One that is not timed is followed meanwhile."""
    for timed in (True, False):
        cell_file = mirrored_cell(tmp_path / "sweep", "waits_for_a_file", cell_id=f"cell-{timed}", timed=timed)
        seen: list[bool] = []
        attempt = cell_file.parent / "attempt-001"

        def watch(_: object, attempt: Path = attempt, cell_file: Path = cell_file, seen: list[bool] = seen) -> None:
            seen.append((attempt / "mirrors").exists())
            if len(seen) > 3:
                (cell_file.parent / "go").touch()

        Supervisor(server).run(cell_file, on_event=watch)
        assert seen[:3] == [not timed] * 3
        assert (attempt / "mirrors").exists()


def test_only_an_attempt_that_goes_on_resumes_a_run(fake: FakeWandb, tmp_path: Path) -> None:
    """Preempted, gone on, begun anew: a first attempt that resumed would add to what an upload had left."""
    cell_file = mirrored_cell(tmp_path / "sweep", "measures")
    attempts = [
        leave_attempt(cell_file, [1, 2], Verdict.PREEMPTED),
        leave_attempt(cell_file, [2, 3], continues=1),
        leave_attempt(cell_file, [1], Verdict.KILLED),
    ]
    assert mirror(*attempts) == [[{"ready": True, "notes": []}]] * 3
    (_, first, *one), (_, second, *other), (_, third, *new) = (line.split() for line in sorted(fake.lines("runs")))
    assert [*one, *other, *new] == ["None", "allow", "None"]
    assert first == second != third


def test_a_mirror_whose_supervisor_dies_ends_the_run_as_lost(fake: FakeWandb, tmp_path: Path) -> None:
    """Its input closes and there is no record: that is all it needs to know."""
    attempt = leave_attempt(mirrored_cell(tmp_path / "sweep", "measures"), [1, 2], recorded=False)
    assert mirror(attempt) == [[{"ready": True, "notes": []}]]
    assert fake.lines("rows") == ["1 1", "2 1"] and fake.lines("finished") == ["1"]


@pytest.mark.parametrize("fake", [("time.sleep(600)",)], indirect=True)
def test_a_mirror_that_hangs_does_not_outlive_its_supervisor(fake: FakeWandb, tmp_path: Path) -> None:
    attempt = leave_attempt(mirrored_cell(tmp_path / "sweep", "measures"), [1], recorded=False)
    code = (
        "import sys; from scalerlt.tracking import __main__ as mirroring; mirroring.LAST_SECONDS = 0.5; "
        "sys.exit(mirroring.main())"
    )
    ran = subprocess.run(
        [sys.executable, "-c", code, str(attempt)],
        env={**without_wandb(), "PYTHONPATH": search_path()},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=280,
        check=False,
    )
    assert ran.returncode == 1 and ran.stdout == b""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR2])
def test_signals_to_a_whole_job_do_not_end_a_mirror(
    server: ForkServer, fake: FakeWandb, tmp_path: Path, number: signal.Signals
) -> None:
    cell_file = mirrored_cell(tmp_path / "sweep", "waits_for_a_file", timed=False)
    supervisor = Supervisor(server)
    done: list[Record] = []
    thread = threading.Thread(target=lambda: done.append(supervisor.run(cell_file)))
    thread.start()

    def mirrors() -> list[psutil.Process]:
        return [child for child in psutil.Process().children() if is_mirror(child)]

    wait_for(lambda: bool(mirrors()))
    (mirroring,) = mirrors()
    mirroring.send_signal(number)  # most likely while it still imports
    (cell_file.parent / "go").touch()
    thread.join(240)
    assert [record.notes for record in done] == [[]]
    assert fake.lines("finished") == ["0"]


def is_mirror(child: psutil.Process) -> bool:
    try:
        return "scalerlt.tracking" in child.cmdline()
    except psutil.NoSuchProcess:  # one that ended in this moment, or that nobody has waited for yet
        return False


def test_a_run_by_hand_of_a_cell_without_tracker_says_so(tmp_path: Path) -> None:
    attempt = leave_attempt(mirrored_cell(tmp_path / "sweep", "measures", "none"), [1])
    assert mirror(attempt) == [[{"fault": "measures has tracker=none: there is nothing to mirror it to"}]]


def wait_for(condition: object, seconds: float = 240.0) -> None:
    assert callable(condition)
    until = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < until, "it has not come"
        time.sleep(0.05)
