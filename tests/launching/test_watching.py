"""`scalerlt status`: as a table, again and again, as a document, with the logs of what went wrong."""

import io
import json
import os
import subprocess
import sys
from datetime import datetime, timedelta
from pathlib import Path

import pytest
from launching.fake_slurm import FakeSlurm, attempt, finish, submit, sweep_of, write_log
from rich.console import Console

from scalerlt.cli import main
from scalerlt.launching import watching
from scalerlt.launching.jobs import Jobs
from scalerlt.launching.slurm.ask import JobState
from scalerlt.launching.watching import last_lines, show_status, watch
from scalerlt.records.lease import Lease
from scalerlt.records.record import Record, Verdict
from scalerlt.worker.processes import search_path

LOOKED_AT = (("running", "works"), ("failed", "raised"), ("lost", "gone"))


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    runs = tmp_path / "runs"
    one = sweep_of(runs / "one", "done", "raised", "works", "waits", "gone")
    submit(one, [["waits"]], [("12_3", [0])])
    attempt(one, "done", job=None, started=100, heartbeat=40, verdict=Verdict.MEASURED)
    raised = attempt(one, "raised", job="8", verdict=Verdict.FAILED, reason="ValueError: the loss is NaN")
    (raised / "stderr.log").write_text("".join(f"line {number}\n" for number in range(30)) + "ValueError: x\x1b[2J\n")
    works = attempt(one, "works", job="9", started=65, heartbeat=5)
    (works / "series.jsonl").write_text('{"step": 4, "reward": 0.625}\n')
    attempt(one, "gone", job="10")
    sweep_of(runs / "two", "planned")
    return runs


@pytest.fixture
def slurm() -> FakeSlurm:
    return FakeSlurm(
        listed={"12_3": JobState("12_3", "PENDING", "Priority"), "9": JobState("9", "RUNNING")},
        known={"10": JobState("10", "NODE_FAIL", "", "n4", "sacct")},
    )


def test_the_table_says_where_each_cell_is(
    runs: Path, slurm: FakeSlurm, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    began = datetime.fromisoformat(Lease.read(runs / "one/works/attempt-001/lease.json").started)
    monkeypatch.setattr("scalerlt.launching.status.now", lambda: (began + timedelta(seconds=65)).isoformat())
    assert show_status(runs, Jobs(slurm)) == 1
    shown = capsys.readouterr().out
    rows = {line.split()[1]: " ".join(line.split()) for line in shown.splitlines() if line.startswith(("one ", "two "))}
    assert "one works running 1 1 min 05 s reward 0.625 (step 4) another-host 9" in rows["works"]
    assert "one waits queued 12_3 job 12_3: squeue says PENDING (Priority)" in rows["waits"]
    assert "lost 1" in rows["gone"] and "a node of its Slurm job 10 failed" in rows["gone"]
    assert "one: 5 cells: 1 failed, 1 lost, 1 measured, 1 queued, 1 running" in shown
    assert "two: 1 cell: 1 planned" in shown
    assert "6 cells: 1 failed, 1 lost, 1 measured, 1 planned, 1 queued, 1 running" in shown
    assert "1 cell ended without a record: the next queue writes it, or scalerlt status --reconcile" in shown
    logs = [f"  {state} {runs}/one/{cell}/attempt-001/stderr.log" for state, cell in LOOKED_AT]
    assert shown.splitlines()[-3:] == logs, "of what runs, and of what ended badly"
    assert not list(runs.glob("one/gone/attempt-001/record.json")), "nothing is written"


def test_nothing_bad_is_a_good_exit_code(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sweep = sweep_of(tmp_path / "sweep", "a", "b")
    attempt(sweep, "a", job=None, verdict=Verdict.OOM)
    assert show_status(tmp_path) == 0
    assert "host" in capsys.readouterr().out
    assert show_status(sweep_of(tmp_path / "other", "c")) == 0
    assert "host" not in capsys.readouterr().out, "a column in which nothing stands is left out"


def test_what_failed_is_shown_with_the_end_of_its_log(
    runs: Path, slurm: FakeSlurm, capsys: pytest.CaptureFixture[str]
) -> None:
    assert show_status(runs, Jobs(slurm), failed=True) == 1
    shown = capsys.readouterr().out
    assert "failed raised, attempt 1: ValueError: the loss is NaN\n" in shown
    assert "    line 29\n    ValueError: x [2J\n" in shown, "what would clear the terminal is no more than text"
    assert "line 21\n" in shown and "line 20\n" not in shown
    assert "lost gone, attempt 1: a node of its Slurm job 10 failed" in shown and "    what gone said" in shown
    assert "stderr.log: empty" not in shown
    (runs / "one/gone/attempt-001/stderr.log").write_text("")
    show_status(runs, Jobs(slurm), failed=True)
    assert f"  {runs}/one/gone/attempt-001/stderr.log: empty\n" in capsys.readouterr().out
    assert "works" not in shown and "done" not in shown
    assert "6 cells:" in shown


def test_the_document(runs: Path, slurm: FakeSlurm, capsys: pytest.CaptureFixture[str]) -> None:
    assert show_status(runs, Jobs(slurm), as_json=True, faults=["sacct does not answer"]) == 1
    document = json.loads(capsys.readouterr().out)
    assert list(document) == ["schema_version", "moment", "totals", "sweeps", "faults"]
    assert document["totals"] == {"failed": 1, "lost": 1, "measured": 1, "planned": 1, "queued": 1, "running": 1}
    assert document["faults"] == ["sacct does not answer"]
    one = document["sweeps"][0]
    assert list(one) == ["sweep", "path", "totals", "cells", "faults"]
    cells = {cell["cell_id"]: cell for cell in one["cells"]}
    keys = [
        "cell_id",
        "state",
        "reason",
        "attempt",
        "elapsed_seconds",
        "metric",
        "host",
        "job",
        "log",
        "recorded",
        "axes",
    ]
    assert all(list(cell) == keys for cell in cells.values())
    assert cells["works"]["metric"] == {"name": "reward", "value": 0.625, "unit": "", "step": 4}
    assert cells["done"]["elapsed_seconds"] == pytest.approx(60, abs=1)
    assert (cells["gone"]["state"], cells["gone"]["recorded"], cells["done"]["recorded"]) == ("lost", False, True)
    assert (cells["waits"]["job"], cells["waits"]["log"]) == ("12_3", None)
    show_status(runs, Jobs(slurm), as_json=True, failed=True)
    bad = json.loads(capsys.readouterr().out)
    assert [cell["cell_id"] for sweep in bad["sweeps"] for cell in sweep["cells"]] == ["raised", "gone"]
    assert bad["totals"] == document["totals"]
    assert bad["sweeps"][0]["cells"][1]["log_lines"] == ["what gone said"]


def test_a_job_that_failed_before_its_cell_is_shown_with_its_log(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sweep = sweep_of(tmp_path / "sweep", "a", "b")
    file = submit(sweep, [["a"], ["b"]], [("5_0", [0]), ("5_1", [1])])
    log = write_log(file, "5_0", "bash: line 3: nvcc: command not found\n")
    said = {job_id: JobState(job_id, "FAILED", "exit code 3:0", "n1", "sacct") for job_id in ("5_0", "5_1")}
    jobs = Jobs(FakeSlurm(known=said))
    assert show_status(sweep, jobs) == 1
    shown = capsys.readouterr().out
    assert "2 cells: 2 failed" in shown and f"  failed a: {log}\n" in shown
    assert "  failed b: job 5_1 did not run it: squeue does not list job 5_1; sacct says FAILED" in shown
    assert show_status(sweep, jobs, failed=True) == 1
    shown = capsys.readouterr().out
    assert "failed a: job 5_0 did not run it: squeue does not list job 5_0; sacct says FAILED (exit code 3:0)" in shown
    assert f"  {log}\n    bash: line 3: nvcc: command not found\n" in shown
    assert "  there is no log\n" in shown
    show_status(sweep, jobs, failed=True, as_json=True)
    a, b = json.loads(capsys.readouterr().out)["sweeps"][0]["cells"]
    assert (a["state"], a["job"], a["log"], a["recorded"]) == ("failed", "5_0", str(log), True)
    assert (b["log"], b["log_lines"]) == (None, [])


class Sleep:
    """Instead of waiting, the next thing happens."""

    def __init__(self, *events: object) -> None:
        self.events, self.slept = list(events), 0

    def sleep(self, seconds: float) -> None:
        self.slept += 1
        if self.events:
            self.events.pop(0)()  # type: ignore[operator]


@pytest.mark.parametrize("terminal", [True, False])
def test_watching_ends_when_nothing_is_under_way(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, terminal: bool
) -> None:
    sweep = sweep_of(tmp_path / "sweep", *(f"cell-{number:02d}" for number in range(40)))
    works = attempt(sweep, "cell-39", job="9", heartbeat=5)
    submit(sweep, [["cell-38"]], [("10", [0])])
    slurm = FakeSlurm(listed={"9": JobState("9", "RUNNING"), "10": JobState("10", "PENDING")})
    clock = Sleep(lambda: finish(works, Verdict.MEASURED), slurm.listed.clear)
    monkeypatch.setattr(watching, "time", clock)
    monkeypatch.setattr("scalerlt.launching.jobs.REMEMBER_SECONDS", -1.0)
    file = io.StringIO()
    consoles = Console(file=file, force_terminal=terminal, width=100, height=12, markup=False, highlight=False)
    monkeypatch.setattr(watching, "_console", lambda: consoles)
    assert watch(sweep, Jobs(slurm), 5.0) == 1, "nobody knows how job 10 ended, which has not run its cell"
    assert clock.slept == 3, "once more, when nothing is under way: a job may be on its way back into the queue"
    shown = file.getvalue()
    screens = shown.split("Z\n") if not terminal else shown.split("... and 33 more")
    assert len(screens) >= 4
    if terminal:
        assert "cell-39" in screens[0].splitlines()[1], "what runs comes first"
        assert "\x1b[2K" in shown, "in place"


@pytest.mark.parametrize("width", [80, 110, 140])
def test_a_terminal_shows_which_cell_is_which(tmp_path: Path, width: int) -> None:
    """Names that begin alike, and reasons that are sentences."""
    names = [f"gsm8k_reward-tiny_ouro-fp32-small-layer-s{seed}-b5b55423a{seed}" for seed in range(3)]
    sweep = sweep_of(tmp_path / "adhoc-gsm8k_reward", *names)
    attempt(sweep, names[0], job=None, verdict=Verdict.TIMEOUT, reason="exceeded its time limit of 15 s (phase train)")
    console = Console(file=io.StringIO(), width=width, force_terminal=True, color_system=None)
    with console.capture() as captured:
        watching._print_whole(console, sweep, watching.status_of_sweeps(sweep))
    shown = captured.get()
    rows = [line for line in shown.splitlines() if "timeout" in line or "planned" in line][:3]
    assert all(name[-13:] in row for name, row in zip(names, rows, strict=True)), shown
    assert "adhoc" not in shown.split("\n\n")[0] and "adhoc-gsm8k_reward: 3 cells: 2 planned, 1 timeout" in shown
    assert names[1] in shown if width == 140 else f"s1-{names[1][-10:]} " in shown and names[1] not in shown
    assert "exceeded its time" in rows[0], "a reason has room for some words"


def test_a_screen_of_what_failed_may_be_empty(tmp_path: Path) -> None:
    seen = watching.status_of_sweeps(sweep_of(tmp_path / "sweep", "a"))
    console = Console(file=io.StringIO(), width=100, height=20)
    with console.capture() as captured:
        console.print(watching._screen(seen, console.size, failed=True))
    assert "sweep: 1 cell: 1 planned" in captured.get()


@pytest.mark.parametrize(("height", "logs"), [(30, 3), (16, 2), (10, 0)])
def test_a_screen_has_the_logs_that_it_has_room_for(runs: Path, slurm: FakeSlurm, height: int, logs: int) -> None:
    console = Console(file=io.StringIO(), width=200, height=height)
    with console.capture() as captured:
        console.print(watching._screen(watching.status_of_sweeps(runs, Jobs(slurm)), console.size, failed=False))
    lines = captured.get().splitlines()
    assert len(lines) <= height - 1, "the last line is the cursor's"
    shown = [f"{state} {runs}/one/{cell}/attempt-001/stderr.log" for state, cell in LOOKED_AT][:logs]
    assert "".join(lines).count("/stderr.log") == logs and all(log in "".join(lines) for log in shown)


def test_watching_what_does_not_run_ends_at_once(
    runs: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    clock = Sleep()
    monkeypatch.setattr(watching, "time", clock)
    assert watch(runs / "two", Jobs(), 5.0) == 0
    assert clock.slept == 0
    assert capsys.readouterr().out.count("1 cell: 1 planned") == 1


def test_last_lines(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_bytes(b"10%\r50%\r100%\nend \xff\n\n")
    assert last_lines(log) == ["100%", "end \ufffd"]
    assert last_lines(tmp_path / "none") == last_lines(None) == []


def command(*arguments: str | Path, path: str | None = None) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": search_path()} | ({"PATH": path} if path else {})
    given = [sys.executable, "-m", "scalerlt", "status", *map(str, arguments)]
    return subprocess.run(given, env=environment, capture_output=True, text=True, check=False)


def test_the_command_puts_in_order_what_it_is_told_to(tmp_path: Path) -> None:
    sweep = sweep_of(tmp_path / "sweep", "a", "b")
    path = attempt(sweep, "a", job=None)
    (newer := attempt(sweep, "b", job=None)).joinpath("record.json").write_text('{"schema_version": 9}')
    ran = command(sweep, "--reconcile", "--json")
    assert ran.returncode == 1
    assert Record.read(path / "record.json").verdict is Verdict.LOST
    assert "a, attempt 1: its supervisor (pid 4321 on another-host) died without a record" in ran.stderr
    assert "left alone:" in ran.stderr and "written by a later version" in ran.stderr
    assert (newer / "record.json").read_text() == '{"schema_version": 9}'
    cells = json.loads(ran.stdout)["sweeps"][0]["cells"]
    assert [(cell["state"], cell["recorded"]) for cell in cells] == [("lost", True), ("lost", False)]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--watch", "--json"], "--json prints one document"),
        (["--watch", "0"], "--watch 0: give seconds"),
        (["runs", "--watch", "often"], "--watch often: give seconds"),
        (["--watch", "nowhere"], "nowhere: there is no such runs directory"),
    ],
)
def test_a_wrong_request(
    arguments: list[str],
    said: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "runs").mkdir()
    assert main(["status", *arguments]) == 2
    assert said in capsys.readouterr().err


def test_the_directory_may_follow_watch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))  # without a Slurm
    sweep = sweep_of(tmp_path / "sweep", "a")
    assert main(["status", "--watch", str(sweep)]) == 0
    assert main(["status", "--watch", "0.5", str(sweep)]) == 0
    assert capsys.readouterr().out.count("1 cell: 1 planned") == 2
