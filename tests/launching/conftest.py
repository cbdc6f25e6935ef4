import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from scalerlt.launching import local
from scalerlt.worker.fork_server import ForkServer
from scalerlt.worker.processes import search_path

Start = Callable[[Path], subprocess.Popen[str]]


@pytest.fixture(autouse=True)
def own_device_locks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The host's real locks are left to whoever measures on it."""
    locks = tmp_path / "locks"
    locks.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(locks))
    monkeypatch.setenv("TMPDIR", str(locks))


@pytest.fixture(autouse=True)
def alone_on_the_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever else runs where the tests do."""
    monkeypatch.setattr(local, "crowded", lambda: None)


@pytest.fixture(scope="session")
def kept_server() -> Iterator[ForkServer]:
    with ForkServer() as server:
        yield server


@pytest.fixture
def one_server(kept_server: ForkServer, monkeypatch: pytest.MonkeyPatch) -> ForkServer:
    """Queues of this process share one fork server, that torch be imported once."""
    monkeypatch.setattr(kept_server, "close", lambda: None, raising=True)
    monkeypatch.setattr(local, "ForkServer", lambda preload: kept_server)
    return kept_server


@pytest.fixture
def start_queue() -> Iterator[Start]:
    """Starts queues in processes of their own; whatever still runs at the end is killed."""
    running: list[subprocess.Popen[str]] = []

    def start(sweep: Path) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, str(Path(__file__).with_name("queue_process.py")), str(sweep)],
            env={**os.environ, "PYTHONPATH": search_path()},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        running.append(process)
        return process

    yield start
    for process in running:
        process.kill()
        process.communicate()


def wait_until(condition: Callable[[], bool], seconds: float = 240.0) -> None:
    """Wait for something that another process does; on a busy machine it may only just have begun to import torch."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.03)
