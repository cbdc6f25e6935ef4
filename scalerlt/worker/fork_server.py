"""The fork server: a thin process that has torch imported and forks a child for each CPU cell.

A forked child starts in milliseconds where a fresh interpreter takes seconds to import torch, and is as clean: the
server has started no thread (OpenMP's would be missing in the child), has not touched CUDA, and runs no cell itself.

`python -m scalerlt.worker.fork_server FD MODULE...` is the server. It talks over a socket of whole messages, each a
JSON object, lives in a session of its own, and ends, with all that it started, when the other end closes.
"""

import gc
import importlib
import json
import os
import signal
import socket
import subprocess
import sys
import traceback
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal

from scalerlt.errors import UserError
from scalerlt.records.provenance import provenance
from scalerlt.worker.processes import (
    search_path,
    signal_session,
    signals_held_back,
    start_own_session,
    threads_of_this_process,
)
from scalerlt.worker.starting import ONE_BLAS_THREAD, Exit, Job, OnThisHost, wait_readable

_MESSAGE_BYTES = 1 << 16


class ForkServer(OnThisHost):
    """The supervisor's end: starts the server when it is first needed, and again should it have died.

    Args:
        preload: modules that the server imports once for all its children; they must start no thread.

    Attributes:
        provenance: the code that the server imported, and so the code of its children, whatever is edited meanwhile.
    """

    kind: Literal["fork", "spawn"] = "fork"

    def __init__(self, preload: Sequence[str] = ()) -> None:
        super().__init__()
        self.provenance: dict[str, Any] = {}
        self._preload = tuple(preload)
        self._process: subprocess.Popen[bytes] | None = None
        self._socket: socket.socket | None = None
        self._running: set[int] = set()
        self._exits: list[Exit] = []

    def __enter__(self) -> "ForkServer":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def pid(self) -> int | None:
        """The server's pid; None while there is none."""
        return self._process.pid if self._process is not None else None

    @property
    def is_alive(self) -> bool:
        """Whether the server runs."""
        return self._process is not None and self._process.poll() is None

    def ensure(self) -> None:
        """Start the server unless it runs; takes as long as importing torch.

        Raises:
            UserError: torch cannot be imported, or importing it starts threads.
        """
        if self.is_alive:
            return
        self.close()
        self.provenance = provenance()
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs, signals_held_back():
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-m", "scalerlt.worker.fork_server", str(theirs.fileno()), *self._preload],
                stdin=subprocess.DEVNULL,
                env={**os.environ, **ONE_BLAS_THREAD, "PYTHONPATH": search_path()},
                pass_fds=[theirs.fileno()],
                start_new_session=True,
            )
        self._socket = ours
        greeting = _receive(ours)
        if greeting is None or "fault" in greeting:
            self.close()
            raise UserError("no fork server: " + (greeting["fault"] if greeting else "it ended while it started"))

    def start(self, job: Job) -> int:
        """Have a child forked for one rank; returns its pid, which is its session too."""
        assert self._socket is not None, "ensure() comes first"
        job.make_logs()
        self._socket.send(json.dumps(job.plain()).encode())
        while (message := _receive(self._socket)) is not None and "started" not in message:
            self._take(message)  # another rank ended in the meantime
        if message is None:
            raise ConnectionResetError("the fork server died while it started a cell")
        self._running.add(message["started"])
        return int(message["started"])

    def wait(self, seconds: float) -> list[Exit]:
        """Sleep until a child ends, at most so long. What a child leaves running in its session is killed with it.

        When the server itself dies, the kernel kills its children: they are reported as killed.
        """
        assert self._socket is not None and self._process is not None, "ensure() comes first"
        if not self._exits and wait_readable([self._socket.fileno()], seconds):
            if (message := _receive(self._socket)) is not None:
                self._take(message)
            else:
                self._process.kill()  # no server without a connection
                self._process.wait()
                self._exits += [Exit(pid, None, signal.SIGKILL) for pid in sorted(self._running)]
        exits, self._exits = self._exits, []
        self._running -= {ended.handle for ended in exits}
        return self.forget(exits)

    def close(self) -> None:
        """End the server and whatever runs in it."""
        if self._socket is not None:
            self._socket.close()
        if self._process is not None:
            self._process.wait()
        self._process = self._socket = None
        self._running, self._exits = set(), []

    def _take(self, message: dict[str, Any]) -> None:
        self._exits.append(Exit.of(message["ended"], message["status"]))


def preloaded(configs: list[dict[str, Any]]) -> list[str]:
    """What the fork server imports once for all cells, which starts no thread: torch's compiler and our experiments.

    The first optimizer of a process would import the compiler, which takes seconds, in every cell.
    """
    experiments = {config["experiment"]["_target_"].rpartition(".")[0] for config in configs}
    ours = sorted(module for module in experiments if module.startswith("scalerlt."))
    return ["torch._dynamo", *ours]


def serve(connection: socket.socket) -> None:
    """Fork a child for each job that comes, tell of each child's end, and return when the other end closes."""
    children: dict[int, int] = {}  # pid by pidfd
    while True:
        for descriptor in wait_readable([connection.fileno(), *children], None):
            if descriptor in children:
                pid = children.pop(descriptor)
                os.close(descriptor)
                signal_session(pid, signal.SIGKILL)  # before it is waited for: until then the pid is its own
                _send(connection, {"ended": pid, "status": os.waitpid(pid, 0)[1]})
            elif (job := _receive(connection)) is not None:
                pid = _fork(Job(**job), [connection.fileno(), *children])
                children[os.pidfd_open(pid)] = pid
                _send(connection, {"started": pid})
            else:
                for pid in children.values():
                    signal_session(pid, signal.SIGKILL)
                return


def _fork(job: Job, descriptors: list[int]) -> int:
    server = os.getpid()
    if pid := os.fork():
        return pid
    code = 1
    try:
        from scalerlt.worker import child

        for descriptor in descriptors:
            os.close(descriptor)
        start_own_session(server)
        for stream, target in (("stdout", 1), ("stderr", 2)):
            with job.log(stream).open("ab") as file:  # type: ignore[arg-type]
                os.dup2(file.fileno(), target)
        os.environ.update(job.environment)
        code = child.run(Path(job.cell_file), Path(job.attempt), job.rank)
    except BaseException:  # the supervisor records that it ended without a result
        traceback.print_exc()
    finally:
        os._exit(code)  # never back into the server's loop


def _send(connection: socket.socket, message: dict[str, Any]) -> None:
    try:
        connection.send(json.dumps(message).encode())
    except BrokenPipeError:
        pass  # the other end has closed; the next receive says so


def _receive(connection: socket.socket) -> dict[str, Any] | None:
    try:
        message = connection.recv(_MESSAGE_BYTES)
    except ConnectionResetError:
        return None
    return json.loads(message) if message else None


def main() -> None:
    """Import what every cell needs, make sure that nothing of it has started a thread, and serve."""
    connection = socket.socket(fileno=int(sys.argv[1]))
    connection.set_inheritable(False)
    try:
        import torch  # noqa: F401

        import scalerlt.worker.child  # noqa: F401
    except ImportError as error:
        _send(connection, {"fault": f"torch cannot be imported ({error}): pip install 'scalerlt[torch]'"})
        return
    for module in sys.argv[2:]:
        with suppress(ImportError):  # the cells that need it meet the same error, and record it
            importlib.import_module(module)
    if (threads := threads_of_this_process()) != 1:
        fault = (
            f"{threads} threads run after importing {', '.join(['torch', *sys.argv[2:]])}, and a fork would lose them; "
            "name a variable in device.env that stops them: such cells get an interpreter of their own"
        )
        _send(connection, {"fault": fault})
        return
    gc.collect()
    gc.freeze()  # a collection in a child shall not touch, and so copy, the pages it shares with the server
    _send(connection, {"ready": os.getpid()})
    serve(connection)


if __name__ == "__main__":
    main()
