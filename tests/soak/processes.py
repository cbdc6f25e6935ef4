"""The queues of a soak, started as a user starts them, and everything that is done to them."""

import json
import os
import random
import secrets
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import psutil
from soak import evidence
from soak.orders import Order, draw

MARK = "SCALERLT_SOAK"
"""In the environment of every process that comes from a queue, however it was started."""
LOOK_SECONDS = 0.05
PATIENCE_SECONDS = 900.0


def wait_for(condition: Callable[[], bool], what: str, seconds: float = PATIENCE_SECONDS) -> None:
    """Wait for something that another process does; TimeoutError when it does not come."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError(f"in {seconds:.0f} s there was no sign of this: {what}")
        time.sleep(LOOK_SECONDS)


def search_path() -> str:
    """What this process imports from, as a PYTHONPATH."""
    return os.pathsep.join(entry or os.getcwd() for entry in sys.path)


def marked(mark: str) -> list[int]:
    """Pids of all processes that have a mark in their environment, zombies not among them."""
    found = []
    for entry in os.scandir("/proc"):
        try:
            if entry.name.isdigit() and f"{MARK}={mark}".encode() in Path(entry.path, "environ").read_bytes():
                found.append(int(entry.name))
        except OSError:
            continue  # gone since, or another user's
    return found


@dataclass
class Queue:
    """One `scalerlt sweep` in a process of its own."""

    number: int
    process: subprocess.Popen[bytes]
    mark: str
    output: Path

    @property
    def runs(self) -> bool:
        """Whether it has not ended."""
        return self.process.poll() is None

    @property
    def waits(self) -> bool:
        """Whether it has found the device taken."""
        return "waiting for device" in self.said()

    def said(self) -> str:
        """What it has shown so far."""
        return self.output.read_text(errors="replace")

    def descendants(self) -> list[int]:
        """Pids of its processes: the fork server, and the child of the running cell."""
        try:
            return [process.pid for process in psutil.Process(self.process.pid).children(recursive=True)]
        except psutil.NoSuchProcess:
            return []


@dataclass
class Soak:
    """The folder of one soak: a user's folder, with the evidence beside it.

    Attributes:
        seed, chance: what is left to chance.
        timeout: seconds that a cell may take.
        mark: in the environment of all its processes, with a number for each queue.
        variables: of its environment.
        starts: how often the sweep was started.
    """

    folder: Path
    orders: dict[int, Order]
    seed: int
    chance: random.Random
    timeout: float
    mark: str
    variables: dict[str, str] = field(default_factory=dict)
    starts: int = 0
    queues: list[Queue] = field(default_factory=list)

    @classmethod
    def drawn(cls, folder: Path, cells: int, seed: int, timeout: float, *, strikes: bool = True) -> "Soak":
        """A soak of so many cells, all that is left to chance in it drawn from a seed."""
        chance = random.Random(seed)
        return cls(folder.absolute(), draw(cells, chance, strikes=strikes), seed, chance, timeout, secrets.token_hex(8))

    @property
    def sweep(self) -> Path:
        """runs/<sweep>."""
        return self.folder / "runs" / "adhoc-soaked"

    def prepare(self) -> None:
        """Write what the cells and their experiment need."""
        (self.folder / "conf/experiment").mkdir(parents=True)
        (self.folder / "evidence").mkdir()
        (self.folder / "conf/experiment/soaked.yaml").write_text(
            "name: soaked\n_target_: soak.probes.cell\n_check_: null\nwarmup: 0\nrepeats: 1\n"
        )
        plain = {seed: order.plain() for seed, order in self.orders.items()}
        (self.folder / evidence.ORDERS).write_text(json.dumps(plain, indent=1))

    @property
    def request(self) -> list[str]:
        """The overrides of the sweep."""
        cells = f"seed=range(0,{len(self.orders)})"
        return ["experiment=soaked", "device=cpu", "device.threads=1", f"resources.timeout_s={self.timeout}", cells]

    def command(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run a command of scalerlt to its end."""
        return subprocess.run(
            [sys.executable, "-m", "scalerlt", *arguments],
            cwd=self.folder,
            env=self._environment(f"{self.mark}-command", "locks"),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=PATIENCE_SECONDS,
        )

    def start(self, host: str = "locks") -> Queue:
        """Start the sweep, or start it again.

        Args:
            host: the folder of its device locks: queues with folders of their own do not wait for each other, as if
                they ran on two hosts that share the runs directory.
        """
        self.starts += 1
        number = self.starts
        output = self.folder / f"queue-{number}.log"
        mark = f"{self.mark}-{number:02d}"
        with output.open("wb") as file:
            process = subprocess.Popen(
                [sys.executable, "-m", "scalerlt", "-m", "--config-dir", "conf", *self.request],
                cwd=self.folder,
                env=self._environment(mark, host),
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self.queues.append(Queue(number, process, mark, output))
        return self.queues[-1]

    def _environment(self, mark: str, host: str) -> dict[str, str]:
        locks = self.folder / host
        locks.mkdir(exist_ok=True)
        own = {"PYTHONPATH": search_path(), "TMPDIR": str(locks), "OMP_NUM_THREADS": "1", MARK: mark}
        return {**os.environ, **self.variables, **own}

    def attempts(self) -> set[Path]:
        """Every attempt's directory."""
        return set(self.sweep.glob("*/attempt-*"))

    def unrecorded(self) -> list[Path]:
        """The attempts without a record."""
        return [attempt for attempt in self.attempts() if not (attempt / "record.json").exists()]

    def recorded(self) -> int:
        """How many cells have a record."""
        return len({record.parents[1] for record in self.sweep.glob("*/attempt-*/record.json")})

    def running(self, queue: Queue) -> Path | None:
        """The attempt that a queue is at; None between two cells."""
        return next((attempt for attempt in self.unrecorded() if holder(attempt) == queue.process.pid), None)

    def note_strike(self, kind: str, queue: Queue, pids: list[int], attempt: Path | None = None) -> None:
        """Leave evidence of something that is done to processes."""
        named = None if attempt is None else f"{attempt.parent.name}/{attempt.name}"
        entry = {"kind": kind, "queue": queue.process.pid, "number": queue.number, "pids": pids, "attempt": named}
        evidence.append(self.folder / evidence.STRIKES, entry)

    def end(self) -> None:
        """Kill whatever still runs."""
        for queue in self.queues:
            for pid in (queue.process.pid, *marked(queue.mark)):
                try:
                    os.kill(pid, signal.SIGKILL)
                except ProcessLookupError:
                    pass
            queue.process.wait()


def holder(attempt: Path) -> int | None:
    """The pid in an attempt's lease; None where there is none."""
    try:
        pid: int = json.loads((attempt / "lease.json").read_text())["pid"]
        return pid
    except (OSError, ValueError, KeyError):
        return None


def interrupt(soak: Soak, queue: Queue, kind: str) -> str:
    """End a queue in one of the ways in which queues end, at a moment drawn by chance; returns which moment.

    Args:
        kind: `Ctrl-C`, `Ctrl-C twice`, `SIGTERM`, `kill -9` (of the queue alone) or `kill -9 of all` (and its
            processes).
    """
    moment = soak.chance.choice(["anywhere", "claim", "record"]) if kind.startswith("kill") else "anywhere"
    _await_moment(soak, queue, moment)
    pids = queue.descendants()
    soak.note_strike(kind, queue, pids)
    match kind:
        case "Ctrl-C":
            _signal(queue, signal.SIGINT)
        case "Ctrl-C twice":
            _signal(queue, signal.SIGINT)
            time.sleep(0.1)
            _signal(queue, signal.SIGINT)
        case "SIGTERM":
            _kill(queue.process.pid, signal.SIGTERM)
        case "kill -9":
            _kill(queue.process.pid, signal.SIGKILL)
        case "kill -9 of all":
            for pid in (queue.process.pid, *pids):
                _kill(pid, signal.SIGKILL)
    queue.process.wait(timeout=PATIENCE_SECONDS)
    return moment


def _await_moment(soak: Soak, queue: Queue, moment: str) -> None:
    """Wait for a moment in a cell's life: as it is claimed, as its record is written, or any."""
    seen = soak.attempts()
    if moment == "anywhere":
        time.sleep(soak.chance.uniform(0.0, 1.0))
    elif moment == "claim":
        while queue.runs and not soak.attempts() - seen:
            pass  # the moment lasts some milliseconds
    else:
        while queue.runs and (attempt := soak.running(queue)) is None:
            time.sleep(LOOK_SECONDS / 10)
        while queue.runs and not any(name.startswith((".record", "record")) for name in os.listdir(attempt)):
            time.sleep(0.0002)


def _signal(queue: Queue, number: signal.Signals) -> None:
    """As a terminal does: to the foreground process group."""
    try:
        os.killpg(queue.process.pid, number)
    except ProcessLookupError:
        pass


def _kill(pid: int, number: signal.Signals) -> None:
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        pass


class Strikes(threading.Thread):
    """Kills the children and the fork servers that the orders name, while their cells work for the first time."""

    def __init__(self, soak: Soak) -> None:
        super().__init__(name="strikes", daemon=True)
        self._soak = soak
        self._left = {seed: order for seed, order in soak.orders.items() if order.strike is not None}
        self._stopped = threading.Event()
        self._fault: BaseException | None = None

    def run(self) -> None:
        """Until all have been struck, or `stop`."""
        try:
            due: dict[int, tuple[float, Path]] = {}
            while self._left and not self._stopped.wait(LOOK_SECONDS):
                for seed, attempt in self._begun():
                    due.setdefault(seed, (time.monotonic() + (self._left[seed].after or 0.0), attempt))
                for seed, (moment, attempt) in list(due.items()):
                    if time.monotonic() >= moment:
                        if self._strike(attempt, self._left[seed].strike or ""):
                            del self._left[seed]
                        del due[seed]  # else it was over already, and the next attempt is struck, should there be one
        except BaseException as fault:  # raised again by whoever stops it
            self._fault = fault

    def stop(self) -> None:
        """Strike no more."""
        self._stopped.set()
        self.join()
        if self._fault is not None:
            raise self._fault

    def _begun(self) -> Iterator[tuple[int, Path]]:
        for seed in self._left:
            for attempt in self._soak.sweep.glob(f"*-s{seed}-*/attempt-*"):
                if not (attempt / "record.json").exists() and holder(attempt) is not None:
                    yield seed, attempt

    def _strike(self, attempt: Path, kind: str) -> bool:
        """Kill the attempt's process, or the server; returns whether there was one."""
        found = _processes(holder(attempt))
        if (attempt / "record.json").exists() or found is None:
            return False
        server, children = found
        struck = [server] if kind == "server" else children
        queue = next(queue for queue in self._soak.queues if queue.process.pid == holder(attempt))
        self._soak.note_strike(kind, queue, [server, *children] if kind == "server" else children, attempt)
        for pid in struck:
            _kill(pid, signal.SIGKILL)
        return True


def _processes(queue: int | None) -> tuple[int, list[int]] | None:
    """A queue's fork server, and the children that it has at this moment; None where there is none of either."""
    try:
        for server in psutil.Process(queue).children() if queue is not None else []:
            if any("fork_server" in word for word in server.cmdline()):
                children = [child.pid for child in server.children()]
                return (server.pid, children) if children else None
    except psutil.Error:
        pass
    return None
