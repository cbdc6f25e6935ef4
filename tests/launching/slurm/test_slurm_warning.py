"""Slurm's warning, SIGUSR2, to the process of a job that has only just begun: real processes, signalled at once."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from scalerlt.launching.slurm.submit import HELD_BACK

STARTS = """
import subprocess, sys
print("starts", flush=True)
sys.stdin.readline()  # it goes on when the test has signalled it
from scalerlt.worker.ending import Signals

with Signals() as signals:
    print(signals.next(0.5), flush=True)
    subprocess.run(["grep", "-E", "^Sig(Blk|Ign)", "/proc/self/status"])
"""
USR2 = 1 << (signal.SIGUSR2 - 1)


@contextmanager
def started(**variables: str) -> Iterator["subprocess.Popen[str]"]:
    """A job's process, as its script starts it, before its handlers stand.

    By then the shell is gone: it too blocks signals for a moment where it starts something.
    """
    process = subprocess.Popen(
        ["sh", "-c", HELD_BACK, "sh", sys.executable, "-c", STARTS],
        env={**os.environ, **variables},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    try:
        assert process.stdout.readline() == "starts\n"
        yield process
    finally:
        process.kill()
        process.communicate()


def held(pid: int) -> Mapping[str, bool]:
    """Whether a process has USR2 blocked, and ignored."""
    return masks(Path(f"/proc/{pid}/status").read_text())


def masks(text: str) -> Mapping[str, bool]:
    pairs = (line.split(":\t") for line in text.splitlines() if line.startswith(("SigBlk", "SigIgn")))
    return {name: bool(int(mask, 16) & USR2) for name, mask in pairs}


def warned(process: "subprocess.Popen[str]") -> str:
    """Signals it, lets it go on, and returns what it says until its end."""
    process.send_signal(signal.SIGUSR2)
    said, _ = process.communicate("\n", timeout=60)
    assert process.returncode == 0, "the signal ended no process"
    return said


def test_a_warning_before_the_handlers_stand_is_heard_when_they_do() -> None:
    with started() as process:
        assert held(process.pid)["SigBlk"]
        said = warned(process)
    assert said.startswith(f"{int(signal.SIGUSR2)}\n")
    assert masks(said) == {"SigBlk": False, "SigIgn": False}, "what the job starts gets its signals"


def test_where_env_cannot_hold_it_back_it_is_ignored_meanwhile(tmp_path: Path) -> None:
    """Of coreutils before 8.31; the clock tells the worker what it has missed."""
    old = tmp_path / "env"
    old.write_text("#!/bin/sh\necho \"env: unrecognized option '$1'\" >&2\nexit 125\n")
    old.chmod(0o755)
    with started(PATH=f"{tmp_path}{os.pathsep}{os.environ['PATH']}") as process:
        assert held(process.pid) == {"SigBlk": False, "SigIgn": True}
        said = warned(process)
    assert said.startswith("None\n")
    assert masks(said) == {"SigBlk": False, "SigIgn": False}
