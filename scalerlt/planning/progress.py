"""Says how far a plan is, to whoever waits at a terminal for a long one."""

import sys
import time
from collections.abc import Iterator, Sequence
from typing import TypeVar

T = TypeVar("T")
PATIENCE_SECONDS = 2.0
_EVERY_SECONDS = 0.2


def with_progress(cells: Sequence[T], doing: str) -> Iterator[T]:
    """The cells; from the third second on a line on standard error counts them, where that is a terminal."""
    if not sys.stderr.isatty():
        yield from cells
        return
    started = last = time.monotonic()
    shown = False
    for done, cell in enumerate(cells):
        moment = time.monotonic()
        if moment - started > PATIENCE_SECONDS and moment - last > _EVERY_SECONDS:
            print(f"\r{doing}: {done} of {len(cells)} cells", end="", file=sys.stderr, flush=True)
            last, shown = moment, True
        yield cell
    if shown:
        print("\r\033[K", end="", file=sys.stderr, flush=True)
