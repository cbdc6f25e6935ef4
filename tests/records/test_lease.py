"""Whether the process that holds an attempt still lives, told on its own host."""

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from scalerlt.records.lease import Lease, start_ticks

pytestmark = pytest.mark.skipif(not psutil.LINUX, reason="start times in ticks are Linux's")


@contextmanager
def sleeping(program: Path) -> Iterator[int]:
    """A process of that name."""
    program.symlink_to("/bin/sleep")
    process = subprocess.Popen([program, "600"])
    try:
        yield process.pid
    finally:
        process.kill()
        process.wait()


def test_a_step_of_the_clock_kills_no_holder(monkeypatch: pytest.MonkeyPatch) -> None:
    lease, boot_time = Lease.of_this_process(), psutil.boot_time()
    monkeypatch.setattr("psutil._pslinux.boot_time", lambda: boot_time + 5)
    assert psutil.Process().create_time() > boot_time + 5, "as psutil tells it then"
    assert lease.is_alive()
    monkeypatch.setattr("psutil._pslinux.boot_time", lambda: boot_time - 3600)
    assert lease.is_alive()
    assert Lease.of_this_process().start_ticks == lease.start_ticks


def test_a_pid_that_is_used_again_is_another_holder() -> None:
    lease = Lease.of_this_process()
    for ticks in (lease.start_ticks - 1, lease.start_ticks + 1, 1.0):
        assert not lease.model_copy(update={"start_ticks": ticks}).is_alive()
    assert not lease.model_copy(update={"boot_id": "another"}).is_alive()


def test_a_lease_of_an_earlier_version_counts_while_its_holder_lives() -> None:
    """It says when its process started in seconds since 1970."""
    started = psutil.Process().create_time()
    lease = Lease.of_this_process()
    assert lease.model_copy(update={"start_ticks": started}).is_alive()
    assert not lease.model_copy(update={"start_ticks": started - 2}).is_alive()


@pytest.mark.parametrize("name", ["sleep", "a b", "1) S 2 (3", ")"])
def test_the_name_of_a_program_hides_no_start_time(tmp_path: Path, name: str) -> None:
    with sleeping(tmp_path / name) as pid:
        seconds = start_ticks(pid) / os.sysconf("SC_CLK_TCK")
        assert abs(psutil.boot_time() + seconds - psutil.Process(pid).create_time()) < 0.5
        lease = Lease.of_this_process().model_copy(update={"pid": pid, "start_ticks": start_ticks(pid)})
        assert lease.is_alive()
    assert not lease.is_alive()


def test_a_holder_that_nobody_has_waited_for_is_dead() -> None:
    process = subprocess.Popen(["/bin/sleep", "600"])
    try:
        held = Lease.of_this_process().model_copy(update={"pid": process.pid, "start_ticks": start_ticks(process.pid)})
        assert held.is_alive()
        process.kill()
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        assert psutil.Process(process.pid).status() == psutil.STATUS_ZOMBIE and not held.is_alive()
    finally:
        process.kill()
        process.wait()
