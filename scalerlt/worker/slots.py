"""What each slot of a job has for itself: its part of the CPUs and GPUs, and, while it measures time, its peace."""

import os
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

LOOK_SECONDS = 0.2
T = TypeVar("T")
_CORE = ("physical_package_id", "core_id")


@dataclass(frozen=True)
class Share:
    """One slot's part of a job.

    Attributes:
        cpus: what its processes may run on.
        gpus: what they may see, as CUDA_VISIBLE_DEVICES names it; None: whatever the job sees.
    """

    number: int
    cpus: frozenset[int]
    gpus: tuple[str, ...] | None

    @property
    def environment(self) -> dict[str, str]:
        """The variables that its processes get."""
        return {} if self.gpus is None else {"CUDA_VISIBLE_DEVICES": ",".join(self.gpus)}

    def plain(self) -> dict[str, Any]:
        """The share as a record holds it."""
        gpus = None if self.gpus is None else list(self.gpus)
        return {"slot": self.number, "cpus": sorted(self.cpus), "gpus": gpus}


def shares(slots: int, cpus: Sequence[int], gpus: Sequence[str] | None) -> list[Share]:
    """Divide a job's CPUs and GPUs among its slots, in their order.

    Args:
        slots: how many there are to be; with GPUs no more than there are of these.
        cpus: those next to each other share a core. With fewer than slots, several slots share one.
        gpus: None when no cell needs one, and nothing is to be divided.
    """
    slots = slots if gpus is None else min(slots, max(1, len(gpus)))
    parts = [frozenset(_part(cpus, number, slots) or [cpus[number % len(cpus)]]) for number in range(slots)]
    return [
        Share(number, parts[number], tuple(_part(gpus, number, slots)) if gpus is not None else None)
        for number in range(slots)
    ]


def usable_cpus() -> list[int]:
    """The CPUs that this thread may use, the hardware threads of one core beside each other."""
    return sorted(os.sched_getaffinity(0), key=lambda cpu: (*map(partial(_topology, cpu), _CORE), cpu))


def visible_gpus(variables: Mapping[str, str] = os.environ) -> list[str] | None:
    """The GPUs that CUDA_VISIBLE_DEVICES names, UUIDs and MIG instances as they are; None when it is not set."""
    named = variables.get("CUDA_VISIBLE_DEVICES")
    return None if named is None else [name.strip() for name in named.split(",") if name.strip()]


class Company:
    """The cells that run or have run beside one.

    Attributes:
        runs: whether the cell itself does.
    """

    def __init__(self, cell_id: str, running: Mapping[str, "Company"], changing: threading.Condition) -> None:
        self.cell_id = cell_id
        self.cells: set[str] = set()
        self.runs = False
        self._running = running
        self._changing = changing

    def begin(self) -> None:
        """The cell starts now, not when it got its turn: until then it may turn out to be done, or to have no time."""
        with self._changing:
            for other in self._others():
                other.cells.add(self.cell_id)
                self.cells.add(other.cell_id)
            self.runs = True

    def tell(self) -> list[str]:
        """Their ids, in order. What starts from now on is not counted, as little as it counts this cell."""
        with self._changing:
            self.runs = False
            return sorted(self.cells)

    def leave(self) -> None:
        """The cell's turn is over; where it started and was somebody else's after all, it has been beside nobody."""
        if self.runs:
            self.runs = False
            for other in self._others():
                other.cells.discard(self.cell_id)

    def _others(self) -> list["Company"]:
        return [company for company in self._running.values() if company is not self and company.runs]


class Neighbours:
    """The cells that one job runs at the same time; a cell that measures time is alone.

    Cells get their turn in the order in which they ask for it, so that one that wants to be alone does not wait for
    ever.
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._waiting: list[object] = []
        self._running: dict[str, Company] = {}
        self._alone = False

    @contextmanager
    def turn(self, cell_id: str, *, alone: bool, give_up: Callable[[], bool]) -> Iterator[Company | None]:
        """Wait until the cell may run, and keep others away from one that is to be alone.

        Args:
            give_up: asked while waiting.

        Yields:
            Its company; None after giving up.
        """
        ticket = object()
        with self._changed:
            self._waiting.append(ticket)
            while not (given_up := give_up()) and not self._may_run(ticket, alone):
                self._changed.wait(LOOK_SECONDS)
            self._waiting.remove(ticket)
            self._changed.notify_all()
            if not given_up:
                self._begin(cell_id, alone)
        try:
            yield None if given_up else self._running[cell_id]
        finally:
            if not given_up:
                with self._changed:
                    self._running.pop(cell_id).leave()
                    self._alone = False
                    self._changed.notify_all()

    def _may_run(self, ticket: object, alone: bool) -> bool:
        return self._waiting[0] is ticket and not self._alone and not (alone and self._running)

    def _begin(self, cell_id: str, alone: bool) -> None:
        self._alone = alone
        self._running[cell_id] = Company(cell_id, self._running, self._changed)


def _part(things: Sequence[T], number: int, of: int) -> list[T]:
    return list(things[number * len(things) // of : (number + 1) * len(things) // of])


def _topology(cpu: int, what: str) -> int:
    try:
        return int(Path(f"/sys/devices/system/cpu/cpu{cpu}/topology/{what}").read_text())
    except (OSError, ValueError):
        return 0
