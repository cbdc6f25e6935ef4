"""Starting the processes of an attempt, one per rank, and hearing of their ends; here as fresh interpreters."""

import os
import select
import signal
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal, NamedTuple, Protocol

from scalerlt.worker.processes import search_path, signal_session

ONE_BLAS_THREAD = {"OPENBLAS_NUM_THREADS": "1"}
"""numpy's OpenBLAS starts threads when it is imported, which a server that forks cannot have; and it would use every
core, whatever `device.threads` says. Forked and fresh interpreters get the same."""


@dataclass(frozen=True)
class Job:
    """One rank of one attempt.

    Attributes:
        cell_file, attempt: absolute paths.
        environment: variables to set on top of the parent's.
    """

    cell_file: str
    attempt: str
    rank: int
    environment: Mapping[str, str]

    def log(self, stream: Literal["stdout", "stderr"]) -> Path:
        """The file that takes the rank's standard output or error."""
        return Path(self.attempt) / (f"{stream}.log" if self.rank == 0 else f"{stream}-rank{self.rank}.log")

    def plain(self) -> dict[str, object]:
        """The job as JSON can hold it."""
        return asdict(self)


class Exit(NamedTuple):
    """The end of a process."""

    pid: int
    exit_code: int | None
    signal: int | None

    @classmethod
    def of(cls, pid: int, wait_status: int) -> "Exit":
        """From what waitpid tells."""
        code = os.waitstatus_to_exitcode(wait_status)
        return cls(pid, code, None) if code >= 0 else cls(pid, None, -code)


class Starter(Protocol):
    """Starts children in sessions of their own, and tells of their ends."""

    kind: Literal["fork", "spawn"]

    def start(self, job: Job) -> int:
        """Start a rank; returns its pid, which is its session too."""
        ...

    def wait(self, seconds: float) -> list[Exit]:
        """Sleep until a child ends, at most so long. What a child leaves running in its session is killed with it."""
        ...


class Spawner:
    """Starts each child as a fresh Python interpreter."""

    kind: Literal["fork", "spawn"] = "spawn"

    def __init__(self) -> None:
        self._children: dict[int, subprocess.Popen[bytes]] = {}  # by pidfd

    def start(self, job: Job) -> int:
        """Start a rank; returns its pid, which is its session too."""
        arguments = [job.cell_file, job.attempt, str(job.rank), str(os.getpid())]
        with job.log("stdout").open("ab") as out, job.log("stderr").open("ab") as err:
            child = subprocess.Popen(
                [sys.executable, "-P", "-m", "scalerlt.worker.child", *arguments],
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                env={**os.environ, **ONE_BLAS_THREAD, "PYTHONPATH": search_path(), **job.environment},
                start_new_session=True,
            )
        self._children[os.pidfd_open(child.pid)] = child
        return child.pid

    def wait(self, seconds: float) -> list[Exit]:
        """Sleep until a child ends, at most so long. What a child leaves running in its session is killed with it."""
        exits = []
        for pidfd in wait_readable(self._children, seconds):
            child = self._children.pop(pidfd)
            os.close(pidfd)
            signal_session(child.pid, signal.SIGKILL)  # before it is waited for: until then the pid is its own
            code = child.wait()
            exits.append(Exit(child.pid, code, None) if code >= 0 else Exit(child.pid, None, -code))
        return exits


def wait_readable(descriptors: Mapping[int, object] | list[int], seconds: float | None) -> list[int]:
    """Sleep until one of the file descriptors can be read, at most so long; returns those that can."""
    poll = select.poll()
    for descriptor in descriptors:
        poll.register(descriptor, select.POLLIN)
    return [descriptor for descriptor, _ in poll.poll(None if seconds is None else seconds * 1000)]
