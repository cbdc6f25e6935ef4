"""Starting the processes of an attempt, one per rank, and hearing of their ends; here as fresh interpreters."""

import os
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple, Protocol

from scalerlt.errors import UserError
from scalerlt.measure.environment import gpus
from scalerlt.records.base import writing
from scalerlt.worker.processes import ResidentMemory, search_path, signal_session, signals_held_back

ONE_BLAS_THREAD = {"OPENBLAS_NUM_THREADS": "1"}
"""numpy's OpenBLAS starts threads when it is imported, which a server that forks cannot have; and it would use every
core, whatever `device.threads` says. Forked and fresh interpreters get the same."""
VISIBLE = "CUDA_VISIBLE_DEVICES"


@dataclass(frozen=True)
class Job:
    """One rank of one attempt.

    Attributes:
        cell_file, attempt: absolute paths.
        environment: variables to set on top of the parent's.
        node: which of the attempt's nodes runs it; 0 is the supervisor's own.
        device: which of the GPUs that its node makes visible it has for itself; None: all.
    """

    cell_file: str
    attempt: str
    rank: int
    environment: Mapping[str, str]
    node: int = 0
    device: int | None = None

    def log(self, stream: Literal["stdout", "stderr"]) -> Path:
        """The file that takes the rank's standard output or error."""
        return Path(self.attempt) / (f"{stream}.log" if self.rank == 0 else f"{stream}-rank{self.rank}.log")

    def make_logs(self) -> None:
        """Make the files of its output, before there is a process that could not say that they cannot be made.

        Raises:
            UnwritableFile: one of them cannot be.
        """
        for stream in ("stdout", "stderr"):
            with writing(log := self.log(stream)):
                log.touch()

    def plain(self) -> dict[str, object]:
        """The job as JSON can hold it."""
        return asdict(self)


class Exit(NamedTuple):
    """The end of a rank.

    Attributes:
        handle: what `Starter.start` returned.
        ended: when, in UTC, ISO 8601; None: just now.
        kernel_killed: of another node: whether the kernel killed a process there for want of memory.
        lost: why nobody can tell how it ended.
        fault: of another node: why it could not be started there.
    """

    handle: int
    exit_code: int | None
    signal: int | None
    ended: str | None = None
    kernel_killed: bool = False
    lost: str | None = None
    fault: str | None = None

    @classmethod
    def of(cls, pid: int, wait_status: int) -> "Exit":
        """From what waitpid tells."""
        code = os.waitstatus_to_exitcode(wait_status)
        return cls(pid, code, None) if code >= 0 else cls(pid, None, -code)


class Sight(NamedTuple):
    """A rank as its host sees it.

    Attributes:
        pid: None while its node has not told it.
        rss_bytes: resident memory of its session, 0 when nothing is left of it; and the highest seen.
    """

    host: str
    pid: int | None
    rss_bytes: int
    rss_peak_bytes: int


class Starter(Protocol):
    """Starts children in sessions of their own, and tells of their ends."""

    kind: Literal["fork", "spawn"]

    def start(self, job: Job) -> int:
        """Start a rank; returns a handle: on this host its pid, which is its session too."""
        ...

    def wait(self, seconds: float) -> list[Exit]:
        """Sleep until a child ends, at most so long. What a child leaves running in its session is killed with it."""
        ...

    def signal(self, handle: int, number: signal.Signals, *, leader_only: bool = False) -> None:
        """Send a signal to every process of a rank that was not reported as ended, or to its first alone."""
        ...

    def look(self, handle: int) -> Sight:
        """A rank that was not reported as ended."""
        ...

    def heard_from_all(self, since: float) -> bool:
        """Whether `wait` has told of all ends up to a moment of the monotonic clock."""
        ...

    def environments(self) -> dict[str, dict[str, Any]]:
        """Of each other host that has or had ranks what it has told of itself (measure.environment), by its name."""
        ...


class OnThisHost:
    """What a starter does with children of its own host."""

    def __init__(self) -> None:
        self._memory: dict[int, ResidentMemory] = {}

    def signal(self, handle: int, number: signal.Signals, *, leader_only: bool = False) -> None:
        """Send a signal to every process of a child's session, or to the child alone."""
        if leader_only:
            os.kill(handle, number)
        else:
            signal_session(handle, number)

    def look(self, handle: int) -> Sight:
        """A child and its memory."""
        resident = self._memory.setdefault(handle, ResidentMemory(handle)).bytes()
        return Sight(socket.gethostname(), handle, resident, resident)

    def heard_from_all(self, since: float) -> bool:
        """An end on this host is known at once."""
        return True

    def environments(self) -> dict[str, dict[str, Any]]:
        """There are no other hosts."""
        return {}

    def forget(self, exits: list[Exit]) -> list[Exit]:
        """Look at children that have ended no more: their pids may come again."""
        for ended in exits:
            self._memory.pop(ended.handle, None)
        return exits


class Spawner(OnThisHost):
    """Starts each child as a fresh Python interpreter."""

    kind: Literal["fork", "spawn"] = "spawn"

    def __init__(self) -> None:
        super().__init__()
        self._children: dict[int, subprocess.Popen[bytes]] = {}  # by pidfd

    def start(self, job: Job) -> int:
        """Start a rank; returns its pid, which is its session too."""
        job.make_logs()
        arguments = [job.cell_file, job.attempt, str(job.rank), str(os.getpid())]
        with job.log("stdout").open("ab") as out, job.log("stderr").open("ab") as err, signals_held_back():
            child = subprocess.Popen(
                [sys.executable, "-P", "-m", "scalerlt.worker.child", *arguments],
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                env={
                    **os.environ,
                    **ONE_BLAS_THREAD,
                    "PYTHONPATH": search_path(),
                    **job.environment,
                    **_own_device(job),
                },
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
        return self.forget(exits)


def _own_device(job: Job) -> dict[str, str]:
    if job.device is None:
        return {}
    visible = {**os.environ, **job.environment}.get(VISIBLE)
    devices = [gpu["index"] for gpu in gpus()] if visible is None else [name for name in visible.split(",") if name]
    if job.device >= len(devices):
        raise UserError(f"rank {job.rank} needs GPU {job.device + 1} of its node, and {len(devices)} are visible there")
    return {VISIBLE: devices[job.device].strip()}


def wait_readable(descriptors: Mapping[int, object] | list[int], seconds: float | None) -> list[int]:
    """Sleep until one of the file descriptors can be read, at most so long; returns those that can."""
    poll = select.poll()
    for descriptor in descriptors:
        poll.register(descriptor, select.POLLIN)
    return [descriptor for descriptor, _ in poll.poll(None if seconds is None else seconds * 1000)]
