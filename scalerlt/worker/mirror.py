"""The supervisor's end of a mirror: a process that reads the attempt's files, and can do the cell no harm."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from scalerlt.schema import Cell
from scalerlt.schema.tracker import Tracker
from scalerlt.worker.processes import search_path, signal_session, signals_held_back
from scalerlt.worker.starting import wait_readable

PATIENCE_SECONDS = 10.0
"""What a mirror may cost an attempt, from the end of its measuring on."""
HURRIED_SECONDS = 3.0
"""The same where the job is about to end."""
LOOK_SECONDS = 0.2
LOG = "mirror.log"


def mirror_of(cell: Cell, attempt: Path, must_end: Callable[[], bool]) -> "Mirror | None":
    """The mirror that a cell asks for, of an attempt at it."""
    return Mirror(cell, attempt, must_end) if isinstance(cell.tracker, Tracker) else None


class Mirror:
    """One attempt's mirror.

    It follows the attempt from its start; where figures are times it starts when the measuring is over.

    Args:
        attempt: the attempt's directory.
        must_end: whether there is no time for a mirror, because the job or the user ends the attempt.
    """

    def __init__(self, cell: Cell, attempt: Path, must_end: Callable[[], bool]) -> None:
        self._must_end = must_end
        self._name = cell.tracker.name
        self._attempt = attempt
        self._process: subprocess.Popen[bytes] | None = None
        self._said = b""
        self._is_ready = False
        self._deadline = 0.0
        self._fault = ""
        if not cell.experiment.timed:
            self._start()

    def ready(self) -> list[str]:
        """Say that the measuring is over and wait until the mirror stands; not where the attempt must end now.

        Returns:
            What the record should say: that there will be no mirror, and why.
        """
        self._deadline = time.monotonic() + PATIENCE_SECONDS
        if self._process is None and not self._fault:
            self._start()
        if self._process is None:
            return [f"{self._name} unavailable: {self._fault}"]
        self._tell(b"over\n")
        while (message := self._next_message()) is None:
            if self._must_end():
                return []
            if self._left() == 0.0:
                self._kill()
                self._clear()
                return [f"{self._name} unavailable: not started within {PATIENCE_SECONDS:g} s"]
        if (fault := message.get("fault")) is not None:
            return [f"{self._name} unavailable: {fault}"]
        notes: list[str] = message["notes"]
        self._is_ready = self._process.poll() is None
        if not self._is_ready:
            notes.append(f"{self._name} unavailable: it failed while the attempt ran (see mirrors/{LOG})")
        return notes

    def close(self) -> None:
        """The record is written: let the mirror take it in and end; a mirror that does not is ended, with a warning."""
        if self._process is None:
            return
        assert self._process.stdin is not None and self._process.stdout is not None
        self._tell(None)
        while (code := self._process.poll()) is None and self._left() > 0.0:
            if self._must_end():
                self._deadline = min(self._deadline, time.monotonic() + HURRIED_SECONDS)
                self._must_end = lambda: False  # said once
            try:
                self._process.wait(min(self._left(), LOOK_SECONDS))
            except subprocess.TimeoutExpired:
                pass
        if code is None:
            self._kill()
            self._warn("was not done in time")
        elif code and self._is_ready:
            self._warn("failed")
        self._process.stdout.close()

    def _start(self) -> None:
        folder = self._attempt / "mirrors"
        try:
            folder.mkdir(exist_ok=True)
            with (folder / LOG).open("ab") as log, signals_held_back():
                self._process = subprocess.Popen(
                    [sys.executable, "-P", "-m", "scalerlt.tracking", str(self._attempt)],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=log,
                    env={**os.environ, "OPENBLAS_NUM_THREADS": "1", "PYTHONPATH": search_path()},
                    start_new_session=True,
                )
        except OSError as error:
            self._fault = f"its process cannot be started ({error})"

    def _clear(self) -> None:
        """Remove what a mirror that never stood has left: it would be uploaded as if it were the attempt's run."""
        for path in (self._attempt / "mirrors").iterdir():
            if path.is_dir():
                shutil.rmtree(path, ignore_errors=True)
            elif path.name != LOG:
                path.unlink(missing_ok=True)

    def _tell(self, word: bytes | None) -> None:
        """Write to the mirror, or close its input."""
        assert self._process is not None and self._process.stdin is not None
        try:
            if word is None:
                self._process.stdin.close()
            else:
                self._process.stdin.write(word)
                self._process.stdin.flush()
        except BrokenPipeError:
            pass  # it has ended; its output says why

    def _next_message(self) -> dict[str, Any] | None:
        """What the mirror says next, its death included; None if it says nothing for a moment."""
        assert self._process is not None and self._process.stdout is not None
        channel = self._process.stdout.fileno()
        while b"\n" not in self._said:
            if not wait_readable([channel], min(self._left(), LOOK_SECONDS)):
                return None
            added = os.read(channel, 1 << 16)
            if not added:
                return {"fault": f"its process ended (see mirrors/{LOG})"}
            self._said += added
        line, _, self._said = self._said.partition(b"\n")
        message: dict[str, Any] = json.loads(line)
        return message

    def _left(self) -> float:
        return max(self._deadline - time.monotonic(), 0.0)

    def _kill(self) -> None:
        assert self._process is not None
        signal_session(self._process.pid, signal.SIGKILL)
        self._process.wait()

    def _warn(self, what: str) -> None:
        log = self._attempt / "mirrors" / LOG
        print(f"warning: the mirror at {self._name} {what}; the cell is recorded all the same ({log})", file=sys.stderr)
