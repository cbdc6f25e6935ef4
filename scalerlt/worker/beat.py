"""Documents by which the tasks of a job talk over the shared file system, rewritten now and then as a sign of life.

Each task writes one and reads the others'. Nobody's clock is compared with another's: a task is silent when so many of
one's own documents have been written since its last one came. A file system that stands still silences nobody.
"""

import math
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Generic, TypeVar

from scalerlt.records.base import Document, UnreadableDocument, UnwritableFile, read_file

BEAT_SECONDS = 2.0
LOST_BEATS = 10
"""So many of one's own beats without one of another's, and that one is taken for gone."""
UNHEARD_BEATS = 60
"""The same of one that was never heard: its interpreter may take a minute to start from a slow disk."""


class Message(Document):
    """What a task says; `beat` grows with each writing."""

    beat: int = 0


M = TypeVar("M", bound=Message)


class Beat:
    """Writes one's own document: every BEAT_SECONDS, and soon when it says something new.

    Args:
        said: gives the document as it is now; called from a thread of its own.

    Attributes:
        count: how often it was written for the time that had passed.
    """

    def __init__(self, path: Path, said: Callable[[], Message]) -> None:
        self.count = 0
        self._path = path
        self._said = said
        self._number = 0
        self._news = threading.Event()
        self._over = False
        self._thread = threading.Thread(target=self._write_on, name=f"beat {path.name}", daemon=True)
        self._thread.start()

    def tell(self) -> None:
        """Write soon."""
        self._news.set()

    def close(self) -> None:
        """Write once more, and then no more."""
        self._over = True
        self._news.set()
        self._thread.join()

    def _write_on(self) -> None:
        due = time.monotonic()
        while not self._over:
            self._news.wait(max(0.0, due - time.monotonic()))
            self._news.clear()
            written = self._write()
            if (moment := time.monotonic()) >= due:
                due = moment + BEAT_SECONDS
                self.count += written
        self._write()

    def _write(self) -> bool:
        self._number += 1
        try:
            self._said().model_copy(update={"beat": self._number}).write(self._path)
        except UnwritableFile:
            return False  # the others take silence for what it is
        return True


class Heard(Generic[M]):
    """Reads another task's document.

    Args:
        own: one's own beat, by which silence is counted.

    Attributes:
        latest: the newest document, or None before the first.
    """

    def __init__(self, path: Path, kind: type[M], own: Beat) -> None:
        self.latest: M | None = None
        self._path = path
        self._kind = kind
        self._own = own
        self._content = b""
        self._at_count = own.count
        self._moments = (-math.inf, -math.inf)

    def look(self) -> bool:
        """Read it; whether it is another than at the last look."""
        try:
            # NFS goes on believing that a name is missing, or is the old file, until its folder is read
            os.listdir(self._path.parent)
            content = read_file(self._path)
            if content == self._content:
                return False
            self.latest = self._kind.parse(content, self._path)
        except (OSError, UnreadableDocument):
            return False
        self._content = content
        self._at_count = self._own.count
        self._moments = (self._moments[1], time.monotonic())
        return True

    def was_written_since(self, moment: float) -> bool:
        """Whether a document has come that was written after a moment of the monotonic clock: the second after it."""
        return self._moments[0] > moment

    def expect(self) -> None:
        """Count silence from now."""
        self._at_count = self._own.count

    @property
    def silence(self) -> str | None:
        """What to say of one that is taken for gone; None of one that is not."""
        beats = UNHEARD_BEATS if self.latest is None else LOST_BEATS
        if self._own.count - self._at_count < beats:
            return None
        words = "has not answered within" if self.latest is None else "has given no sign of life for"
        return f"{words} {beats * BEAT_SECONDS:g} s"
