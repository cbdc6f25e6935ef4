"""The fork server: single-threaded, robust against its children, and never left behind."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
from worker.frozen import freeze
from worker.waiting import gone

from scalerlt.errors import UserError
from scalerlt.records.record import Verdict
from scalerlt.worker.fork_server import ForkServer
from scalerlt.worker.processes import search_path
from scalerlt.worker.supervisor import Supervisor


def test_it_forks_survives_its_children_and_has_one_thread(server: ForkServer, tmp_path: Path) -> None:
    supervisor = Supervisor(server)
    server.ensure()
    pid = server.pid
    assert supervisor.run(freeze(tmp_path, "segfaults")).verdict is Verdict.KILLED
    assert supervisor.run(freeze(tmp_path, "exits_with_9")).verdict is Verdict.FAILED
    record = supervisor.run(freeze(tmp_path, "shows_its_start"))
    assert server.pid == pid == record.metrics["parent"].value
    assert psutil.Process(pid).num_threads() == 1
    assert os.getsid(pid or 0) == pid, "Ctrl-C in a terminal goes to the session of the shell"
    assert not psutil.Process(pid).children(), "every child was waited for"


def test_a_server_that_died_is_started_again(tmp_path: Path) -> None:
    with ForkServer() as server:
        supervisor = Supervisor(server)
        server.ensure()
        first = server.pid

        def kill_the_server(_: object) -> None:
            if server.pid == first and server.is_alive:
                os.kill(first, signal.SIGKILL)

        record = supervisor.run(freeze(tmp_path, "hangs"), on_event=kill_the_server)
        assert record.verdict is Verdict.KILLED
        assert record.notes == ["the fork server died, and the cell with it"]
        assert gone(record.ranks[0].pid or 0), "the kernel ends a child whose server is gone"
        assert supervisor.run(freeze(tmp_path, "nothing")).verdict is Verdict.MEASURED
        assert server.pid != first


SUPERVISE = """
import sys
from pathlib import Path
from scalerlt.worker.supervisor import ForkServer, Supervisor

server = ForkServer() if sys.argv[2] == "fork" else None
Supervisor(server).run(Path(sys.argv[1]))
"""


@pytest.mark.parametrize("start", ["fork", "spawn"])
def test_nothing_outlives_a_supervisor_that_is_killed(tmp_path: Path, start: str) -> None:
    cell_file = freeze(tmp_path, "hangs_with_a_subprocess" if start == "fork" else "hangs")
    supervisor = subprocess.Popen(
        [sys.executable, "-c", SUPERVISE, str(cell_file), start], env={**os.environ, "PYTHONPATH": search_path()}
    )
    journal = cell_file.parent / "attempt-001" / ".progress-rank0"
    while not (journal.exists() and "generate" in journal.read_text()):
        assert supervisor.poll() is None
        time.sleep(0.05)
    below = psutil.Process(supervisor.pid).children(recursive=True)
    assert len(below) == (3 if start == "fork" else 1)
    supervisor.kill()
    supervisor.wait()
    assert all(gone(process.pid) for process in below)


def test_a_second_thread_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A module named torch that starts a thread when it is imported, as a BLAS may."""
    (tmp_path / "torch.py").write_text(
        "import threading, time\nthreading.Thread(target=time.sleep, args=(600,), daemon=True).start()\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    with ForkServer() as server, pytest.raises(UserError, match="2 threads run after importing torch"):
        server.ensure()


def test_a_machine_without_torch_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "torch.py").write_text("raise ImportError('there is none')\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    with ForkServer() as server, pytest.raises(UserError, match=r"there is none.*pip install 'scalerlt\[torch\]'"):
        server.ensure()


def test_children_run_the_code_that_the_server_imported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An edit while a sweep runs changes no cell, and the provenance says what ran."""
    module = tmp_path / "edited.py"
    source = "def run(cell, recorder):\n    recorder.metric('version', {})\n"
    module.write_text(source.format(1))
    monkeypatch.syspath_prepend(str(tmp_path))
    edited = {"name": "probe", "_target_": "edited.run", "warmup": 0, "repeats": 1}
    cell_file = freeze(tmp_path / "sweep", "nothing", experiment=edited)
    with ForkServer(["edited", "no.such.module"]) as server:
        server.ensure()
        module.write_text(source.format(2))
        record = Supervisor(server).run(cell_file)
        assert record.metrics["version"].value == 1
        assert record.provenance == server.provenance
