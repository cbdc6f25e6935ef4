"""Queues in real processes that are interrupted, killed, or run beside one another."""

import itertools
import os
import pty
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from launching.conftest import Start, wait_until
from worker.frozen import freeze

from scalerlt.launching.interrupts import Interrupts
from scalerlt.launching.status import status
from scalerlt.records.record import Record, Verdict
from scalerlt.worker.processes import search_path

QUEUE = str(Path(__file__).with_name("queue_process.py"))


def record(sweep: Path, cell_id: str, attempt: int = 1) -> Record:
    return Record.read(sweep / cell_id / f"attempt-{attempt:03d}" / "record.json")


def running_in(sweep: Path, cell_id: str, phase: str) -> bool:
    journal = sweep / cell_id / "attempt-001" / ".progress-rank0"
    return journal.exists() and f'"{phase}"' in journal.read_text()


def on_terminal(sweep: Path) -> tuple[subprocess.Popen[bytes], int]:
    """A queue as the foreground job of a terminal of its own; the terminal's other end."""
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-c", TAKE_TERMINAL, sys.executable, QUEUE, str(sweep)],
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        env={**os.environ, "PYTHONPATH": search_path(), "TERM": "xterm", "COLUMNS": "200"},
        start_new_session=True,
    )
    os.close(theirs)
    return process, ours


TAKE_TERMINAL = """
import fcntl, os, sys, termios
fcntl.ioctl(0, termios.TIOCSCTTY, 0)
os.execv(sys.argv[1], sys.argv[1:])
"""


def drain(terminal: int) -> str:
    """What was written to the terminal, to its end."""
    pieces = []
    while True:
        try:
            piece = os.read(terminal, 65536)
        except OSError:
            break
        if not piece:
            break
        pieces.append(piece)
    os.close(terminal)
    return b"".join(pieces).decode(errors="replace")


def test_ctrl_c_once_finishes_the_running_cell(tmp_path: Path) -> None:
    sweep = tmp_path / "sweep"
    freeze(sweep, "waits_for_a_file", cell_id="a")
    freeze(sweep, "measures", cell_id="b")
    queue, terminal = on_terminal(sweep)
    wait_until(lambda: running_in(sweep, "a", "experiment"))
    os.write(terminal, b"\x03")  # the terminal sends SIGINT to everything in the foreground
    seen = b""
    while b"finishing the running cell" not in seen:
        seen += os.read(terminal, 65536)
    (sweep / "a" / "go").touch()
    shown = drain(terminal)
    assert queue.wait(timeout=200) == 130
    assert record(sweep, "a").verdict is Verdict.MEASURED
    assert not (sweep / "b" / "attempt-001").exists()
    assert "2 cells: 1 measured, 1 planned" in shown


def test_ctrl_c_twice_ends_it(tmp_path: Path) -> None:
    sweep = tmp_path / "sweep"
    freeze(sweep, "hangs", cell_id="a")
    freeze(sweep, "measures", cell_id="b")
    queue, terminal = on_terminal(sweep)
    wait_until(lambda: running_in(sweep, "a", "generate"))
    for expected in (b"finishing the running cell", b"ending the running cell"):
        os.write(terminal, b"\x03")
        seen = b""
        while expected not in seen:
            seen += os.read(terminal, 65536)
    shown = drain(terminal)
    assert queue.wait(timeout=200) == 130
    ended = record(sweep, "a")
    assert (ended.verdict, ended.reason) == (Verdict.KILLED, "interrupted")
    assert ended.metrics["before"].value == 1.5
    assert ended.ranks[0].signal == signal.SIGTERM, "ended by the queue; the terminal's SIGINT did not reach it"
    assert not (sweep / "b" / "attempt-001").exists()
    assert "killed a: " in shown


def test_a_queue_that_is_killed_leaves_a_lost_attempt_and_the_next_runs_it_again(
    tmp_path: Path, start_queue: Start
) -> None:
    sweep = tmp_path / "sweep"
    freeze(sweep, "waits_for_a_file", cell_id="a")
    first = start_queue(sweep)
    wait_until(lambda: running_in(sweep, "a", "experiment"))
    (running,) = status(sweep)
    assert (running.state, running.reason) == ("running", "phase experiment")
    first.kill()
    first.wait()
    (dead,) = status(sweep)
    assert (dead.state, dead.attempt) == ("lost", 1)
    assert f"pid {first.pid}" in (dead.reason or "")

    (sweep / "a" / "go").touch()
    second = start_queue(sweep)
    output, _ = second.communicate(timeout=200)
    assert second.returncode == 0
    assert "attempt 1: its supervisor" in output
    lost = record(sweep, "a")
    assert lost.verdict is Verdict.LOST and f"pid {first.pid}" in (lost.reason or "")
    assert lost.environment["host"] and lost.provenance["packages"]
    assert lost.ranks[0].phase == "experiment"
    assert record(sweep, "a", 2).verdict is Verdict.MEASURED
    assert [path.name for path in (sweep / "a").glob("attempt-*/.progress*")] == []


def test_queues_wait_for_one_another_and_run_no_cell_twice(tmp_path: Path, start_queue: Start) -> None:
    """One sweep runs; the same sweep started again and another one wait, and say for whom."""
    one, two = tmp_path / "one", tmp_path / "two"
    freeze(one, "waits_for_a_file", cell_id="a")
    freeze(one, "is_slow", cell_id="b")
    freeze(two, "is_slow")
    first = start_queue(one)
    wait_until(lambda: (one / "a" / "attempt-001").exists())
    again, other = start_queue(one), start_queue(two)
    for waiting in (again, other):
        assert waiting.stdout is not None
        line = waiting.stdout.readline()
        if line.startswith("not to run"):  # of one sweep, the cell that runs is the other's
            line = waiting.stdout.readline()
        assert line == f"waiting for device cpu: sweep {one} (pid {first.pid}) measures on it\n"
    (one / "a" / "go").touch()
    for queue in (first, again, other):
        queue.communicate(timeout=200)
        assert queue.returncode == 0
    spans = [
        (float(metrics["began"].value or 0), float(metrics["ended"].value or 0))  # of one clock for the whole host
        for metrics in (record(one, "a").metrics, record(one, "b").metrics, record(two, "is_slow").metrics)
    ]
    assert spans == sorted(spans)
    assert all(ended <= began for (_, ended), (began, _) in itertools.pairwise(spans))
    assert [path.name for path in one.glob("*/attempt-*")] == ["attempt-001"] * 2
    assert len(list((one / "plans").iterdir())) == 2


@pytest.mark.parametrize(
    ("sent", "finish", "end_now"),
    [
        ([], False, False),
        ([signal.SIGINT], True, False),
        ([signal.SIGINT, signal.SIGINT], True, True),
        ([signal.SIGTERM], True, True),
        ([signal.SIGHUP], True, True),  # the terminal was closed
    ],
)
def test_what_a_signal_means(sent: list[signal.Signals], finish: bool, end_now: bool) -> None:
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    inherited = [signal.signal(number, signal.SIG_DFL) for number in numbers]  # which may be nohup's
    try:
        with Interrupts() as interrupts:
            for number in sent:
                os.kill(os.getpid(), number)
            assert (interrupts.finish.is_set(), interrupts.end_now.is_set()) == (finish, end_now)
        assert [signal.getsignal(number) for number in numbers] == [signal.SIG_DFL] * 3
    finally:
        for number, handler in zip(numbers, inherited, strict=True):
            signal.signal(number, handler)


def test_a_signal_while_another_is_handled_is_handled_too() -> None:
    """At each step of the handler, whatever it holds there."""
    inherited = signal.signal(signal.SIGHUP, signal.SIG_DFL), sys.gettrace()
    try:
        for step in range(40):
            steps = itertools.count()

            def trace(*_: object, step: int = step, steps: Iterator[int] = steps) -> object:
                if next(steps) == step:
                    os.kill(os.getpid(), signal.SIGTERM)
                return trace

            with Interrupts() as interrupts:
                sys.settrace(trace)
                os.kill(os.getpid(), signal.SIGHUP)
                sys.settrace(inherited[1])
                assert interrupts.finish.is_set() and interrupts.end_now.is_set()
    finally:
        sys.settrace(inherited[1])
        signal.signal(signal.SIGHUP, inherited[0])


def test_what_nohup_ignores_stays_ignored() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with Interrupts() as interrupts:
            os.kill(os.getpid(), signal.SIGHUP)
            assert not interrupts.finish.is_set()
    finally:
        signal.signal(signal.SIGHUP, before)
