"""Wall time of work on a device: a monotonic clock, read only when the device has finished."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial

import torch

Synchronize = Callable[[], None]
"""Returns when the device has done all work that was given to it."""
Clock = Callable[[], float]
"""Seconds since some fixed moment, never going back."""


def synchronizer(device: torch.device) -> Synchronize:
    """What waits for `device`: nothing on a CPU, whose work is done when a call returns."""
    if device.type == "cpu":
        return lambda: None
    if device.type == "cuda":
        return partial(torch.cuda.synchronize, device)
    raise ValueError(f"no synchronisation is known for device type {device.type!r}")


def timed(
    fn: Callable[[], object], *, synchronize: Synchronize, repeats: int, clock: Clock = time.perf_counter
) -> list[float]:
    """Seconds of each of `repeats` calls of `fn`, the device's queue included at both ends.

    Warm-up is a call of its own before it, so that it is excluded, and its own times are kept.
    """
    seconds = []
    for _ in range(repeats):
        synchronize()
        start = clock()
        fn()
        synchronize()
        seconds.append(clock() - start)
    return seconds


class Stopwatch:
    """Seconds from its making, when the device had finished, to each lap.

    A lap does not wait for the device: what it marks has been read from it.

    Attributes:
        laps: in the order in which they came.
    """

    def __init__(self, synchronize: Synchronize, clock: Clock = time.perf_counter) -> None:
        self.laps: list[float] = []
        self._clock = clock
        synchronize()
        self._start = clock()

    def lap(self, what: object = None) -> None:
        """Note how long it took until now; what it marks is not kept."""
        self.laps.append(self._clock() - self._start)


class PhaseTimer:
    """Seconds spent in the named phases of a piece of work, synchronised at every border.

    A phase that is entered several times is summed. What runs in a phase inside another is the inner one's alone, so
    that the phases' sum is the time that any of them ran.
    """

    def __init__(self, synchronize: Synchronize, clock: Clock = time.perf_counter) -> None:
        self._synchronize = synchronize
        self._clock = clock
        self._seconds: dict[str, float] = {}
        self._inside = [0.0]
        """Of each open phase, behind the outermost place, the seconds of the phases inside it."""

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Time what runs inside as (a part of) phase `name`."""
        self._synchronize()
        start = self._clock()
        self._inside.append(0.0)
        yield
        self._synchronize()
        elapsed = self._clock() - start
        inside = self._inside.pop()
        self._inside[-1] += elapsed
        self._seconds[name] = self._seconds.get(name, 0.0) + elapsed - inside

    def take(self) -> dict[str, float]:
        """Seconds by phase since the last call, and start again from nothing."""
        seconds, self._seconds = self._seconds, {}
        return seconds
