"""Daemons that a folder keeps account of: each runs in the foreground, and is ended by its pid and start time."""

import json
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

SBIN = "/usr/sbin:/sbin"


def program(name: str) -> str | None:
    """Where a program is, among a system's own too."""
    return shutil.which(name, path=f"{os.environ.get('PATH', '')}:{SBIN}")


@dataclass(frozen=True)
class Daemons:
    """The daemons of a folder; what is known of them stands in its daemons/NAME.json.

    Attributes:
        environment: in which they run.
    """

    directory: Path
    environment: Mapping[str, str]

    def start(self, program_name: str, *options: str, name: str | None = None, **variables: str) -> None:
        """Start one, unless it runs.

        Args:
            name: what it is known by; None: by its program.
            variables: added to its environment.
        """
        name = name or program_name
        if self.pid(name):
            return
        path = program(program_name)
        if path is None:
            raise RuntimeError(f"{program_name} is not installed")
        environment = {**self.environment, "PATH": f"{os.environ['PATH']}:{SBIN}", **variables}
        with (self.directory / f"{name}.out").open("ab") as out:
            process = subprocess.Popen(
                [path, *options],
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                start_new_session=True,
                cwd=self.directory,
            )
        entry = {"pid": process.pid, "start_ticks": _start_ticks(process.pid)}
        self._file(name).parent.mkdir(exist_ok=True)
        self._file(name).write_text(json.dumps(entry))

    @property
    def names(self) -> list[str]:
        """Those that were started and not ended."""
        return sorted(path.stem for path in (self.directory / "daemons").glob("*.json"))

    def pid(self, name: str) -> int | None:
        """The pid of one that was started here and still runs."""
        try:
            entry = json.loads(self._file(name).read_text())
        except FileNotFoundError:
            return None
        pid, ticks = entry["pid"], entry["start_ticks"]
        return pid if pid and ticks is not None and _start_ticks(pid) == ticks else None

    def end(self, name: str) -> None:
        """End one, and wait for it."""
        pid = self.pid(name)
        if pid is not None:
            for number, patience in ((signal.SIGTERM, 10.0), (signal.SIGKILL, 5.0)):
                with no_such_process_is_fine():
                    os.kill(pid, number)
                deadline = time.monotonic() + patience
                while self.pid(name) is not None and time.monotonic() < deadline:
                    _reap(pid)
                    time.sleep(0.05)
                if self.pid(name) is None:
                    break
        self._file(name).unlink(missing_ok=True)

    def wait(self, what: str, ready: Callable[[], bool], seconds: float = 60.0) -> None:
        """Wait until something of them is ready; RuntimeError, with the ends of the logs, when it is not in time."""
        deadline = time.monotonic() + seconds
        while True:
            try:
                if ready():
                    return
                fault = ""
            except (RuntimeError, subprocess.TimeoutExpired) as error:
                fault = f": {error}"
            if time.monotonic() > deadline:
                raise RuntimeError(f"{what} did not come up in {seconds:.0f} s{fault}\n{self.logs()}")
            time.sleep(0.1)

    def logs(self, lines: int = 15) -> str:
        """The last lines of every log in the folder."""
        tails = []
        for path in sorted([*self.directory.glob("*.log"), *self.directory.glob("*.out")]):
            tail = path.read_text(errors="replace").splitlines()[-lines:]
            tails.append("\n".join([f"--- {path.name}", *tail]))
        return "\n".join(tails)

    def _file(self, name: str) -> Path:
        return self.directory / "daemons" / f"{name}.json"


@contextmanager
def no_such_process_is_fine() -> Iterator[None]:
    """For a signal to a process that may have ended."""
    try:
        yield
    except ProcessLookupError:
        pass


def _reap(pid: int) -> None:
    try:
        os.waitpid(pid, os.WNOHANG)
    except ChildProcessError:
        pass  # it was started by another process, as by the command `start`


def _start_ticks(pid: int) -> int | None:
    """When a process began, which tells it from another with its pid; None when it has ended."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return None if fields[0] in "ZX" else int(fields[19])
