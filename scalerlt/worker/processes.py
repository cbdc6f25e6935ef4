"""Facts about processes that Linux tells, and the ending of whole sessions."""

import ctypes
import os
import resource
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

PAGE_BYTES = resource.getpagesize()
PREEMPT = signal.SIGUSR2
"""Asks a rank to save its state and end; what submitit has Slurm send."""
HELD_BACK = frozenset({PREEMPT, signal.SIGTERM})
"""Signals that wait until a child can tell what they mean: unasked for, either would end it."""
UNWRITABLE = os.EX_IOERR
"""Exit code of a rank that could not write its journal: nobody can read how it ended."""
_PR_SET_PDEATHSIG = 1


class Raised:
    """A flag for handlers of signals.

    Setting a threading.Event takes a lock: a signal that came while the handler of another held it would wait for ever.
    """

    def __init__(self) -> None:
        self._is_set = False

    def is_set(self) -> bool:
        """Whether it was set."""
        return self._is_set

    def set(self) -> None:
        """Set it, for good."""
        self._is_set = True


def start_own_session(parent: int) -> None:
    """Leave the parent's terminal and process group, and die when the parent dies.

    Args:
        parent: pid of the process that must be alive; the caller exits when it no longer is.
    """
    if os.getsid(0) != os.getpid():
        os.setsid()
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:  # it died before the kernel was told
        os._exit(1)


@contextmanager
def signals_held_back() -> Iterator[None]:
    """What this thread starts meanwhile has HELD_BACK blocked, and they wait for it to be ready."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, HELD_BACK)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def session_members(session: int) -> list[int]:
    """Pids of all processes of a session, children that were adopted and zombies included."""
    members = []
    for entry in os.scandir("/proc"):
        if entry.name.isdigit():
            try:
                with open(f"/proc/{entry.name}/stat", "rb") as file:
                    after_name = file.read().rpartition(b")")[2]
            except OSError:
                continue  # gone since
            if int(after_name.split()[3]) == session:
                members.append(int(entry.name))
    return members


def signal_session(session: int, number: signal.Signals) -> None:
    """Send a signal to every process of a session; the leader must not have been waited for."""
    for pid in {session, *session_members(session)}:
        try:
            os.kill(pid, number)
        except ProcessLookupError:
            pass


class ResidentMemory:
    """Resident set size of a session's processes; cheap enough to be asked several times a second."""

    _SHARE_OF_TIME = 0.005

    def __init__(self, session: int) -> None:
        self._leader = session  # counted from the start, before it has made its session
        self._members = [session]
        self._look_again = 0.0

    def bytes(self) -> int:
        """Bytes resident now, shared pages counted once per process; 0 when no process is left.

        The list of members may be a second old, older where /proc is long: searching it takes at most 0.5 % of a core.
        """
        if (began := time.monotonic()) >= self._look_again:
            self._members = [self._leader, *(pid for pid in session_members(self._leader) if pid != self._leader)]
            ended = time.monotonic()
            self._look_again = ended + max(1.0, (ended - began) / self._SHARE_OF_TIME)
        return sum(resident_bytes(pid) for pid in self._members)


def resident_bytes(pid: int) -> int:
    """Resident set size of one process; 0 when it is gone."""
    try:
        return int(Path(f"/proc/{pid}/statm").read_bytes().split()[1]) * PAGE_BYTES
    except OSError:
        return 0


def data_bytes() -> int:
    """What this process has allocated in the sense of RLIMIT_DATA (private writable memory, VmData)."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmData:"):
            return int(line.split()[1]) * 1024
    raise RuntimeError("/proc/self/status has no VmData")


def limit_data(limit: int) -> None:
    """Let this process allocate `limit` bytes beyond what it has; allocations above fail."""
    hard = resource.getrlimit(resource.RLIMIT_DATA)[1]
    resource.setrlimit(resource.RLIMIT_DATA, (data_bytes() + limit, hard))


def lift_data_limit() -> None:
    """Undo limit_data, so that a process that ran out of memory can still report it."""
    hard = resource.getrlimit(resource.RLIMIT_DATA)[1]
    resource.setrlimit(resource.RLIMIT_DATA, (hard, hard))


def threads_of_this_process() -> int:
    """Number of threads, those of libraries included."""
    return len(os.listdir("/proc/self/task"))


def search_path() -> str:
    """This process's sys.path as a PYTHONPATH: a child imports from where its parent does."""
    return os.pathsep.join(entry or os.getcwd() for entry in sys.path)
