"""One submission of a sweep at a time: what another is about to submit is not submitted twice."""

import fcntl
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from scalerlt.records.base import writing
from scalerlt.records.submission import SUBMISSIONS

LOCK = ".lock"
LOOK_SECONDS = 0.2


@contextmanager
def turn(sweep: Path, say: Callable[[str], None], give_up: Callable[[], bool]) -> Iterator[None]:
    """Wait until no other process looks at the sweep's queue and submits; the kernel lets go when a holder ends.

    Across hosts it is as good as the file system's locks are. Without them two submissions may both submit a cell; the
    claims of their jobs then see to it that it runs once.

    Args:
        say: told once that somebody else is at it.
        give_up: asked while waiting; then it goes on without.

    Raises:
        UnwritableFile: the sweep's directory is not to be written to.
    """
    lock = sweep / SUBMISSIONS / LOCK
    with writing(lock):
        lock.parent.mkdir(parents=True, exist_ok=True)
        file = lock.open("a")
    with file:
        said = False
        while not give_up():
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if not said:
                    said = True
                    say(f"waiting: another process submits cells of {sweep}")
                time.sleep(LOOK_SECONDS)
            except OSError:  # a file system without locks
                break
        yield
