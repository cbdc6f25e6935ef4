"""Waiting for what other processes do: for as long as a busy machine may take, and no longer than it does take."""

import time
from collections.abc import Callable

import psutil

LONG = 120.0
"""Seconds; a test that does not fail never waits for so long."""


def wait_until(condition: Callable[[], bool], seconds: float = LONG) -> None:
    until = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < until, "it never came to that"
        time.sleep(0.02)


def gone(pid: int, seconds: float = LONG) -> bool:
    """Whether a process ends within some time; a zombie that nobody collects has ended."""
    until = time.monotonic() + seconds
    while True:
        try:
            if psutil.Process(pid).status() == psutil.STATUS_ZOMBIE:
                return True
        except psutil.NoSuchProcess:
            return True
        if time.monotonic() >= until:
            return False
        time.sleep(0.02)
