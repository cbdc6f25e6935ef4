"""`python -m scalerlt.tracking ATTEMPT`: mirror one attempt, while it runs or after it has ended.

The supervisor starts it, writes a line to its standard input when the measuring is over, and closes the input when the
record is written. It answers with JSON lines: {"ready": true, "notes": [...]} once the mirror
stands, {"fault": "..."} when there will be none, or no whole one.
"""

import contextlib
import importlib
import json
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, TextIO

from scalerlt.errors import UserError
from scalerlt.records.store import RECORD_FILE
from scalerlt.tracking.following import Answers, Follower, MakeMirror, Mirror, Mirrored

POLL_SECONDS = 2.0
LAST_SECONDS = 10.0
"""How long this process lives on at most once the other end has closed: nobody else might end it."""


class Supervision:
    """What the supervisor says, over standard input: that the measuring is over, and that the record is written."""

    def __init__(self) -> None:
        self.over = threading.Event()
        self.closed = threading.Event()
        self._thread = threading.Thread(target=self._listen, daemon=True)

    def listen(self) -> None:
        """Begin to listen."""
        self._thread.start()

    def _listen(self) -> None:
        while os.read(0, 4096):
            self.over.set()
        self.closed.set()
        self.over.set()
        time.sleep(LAST_SECONDS)
        os._exit(1)  # the mirror hangs


def mirror(mirrored: Mirrored, supervision: Supervision, tell: Callable[[dict[str, Any]], None]) -> None:
    """Feed a mirror from an attempt's files until the attempt has ended."""
    follower = Follower(mirrored.attempt)
    made: Mirror | None = None
    ended = False
    while not ended:
        # Looked at first: what is read afterwards is then all there is.
        ended = supervision.closed.is_set() or (mirrored.attempt / RECORD_FILE).exists()
        over = ended or supervision.over.is_set()
        added = follower.read_on()
        if made is None and (added or over):  # before its first row nobody can tell whether an attempt goes on
            made = make(replace(mirrored, hurried=over))
            tell({"ready": True, "notes": made.notes})
        for event in added:
            assert made is not None
            if isinstance(event, Answers):
                made.answers(event)
            else:
                made.row(event)
        if not ended:
            (supervision.closed if over else supervision.over).wait(POLL_SECONDS)
    assert made is not None
    made.end(mirrored.record())


def make(mirrored: Mirrored) -> Mirror:
    """The mirror that the cell's tracker names."""
    values = mirrored.frozen.config.get("tracker", {"name": "none"})
    if "_target_" not in values:
        raise UserError(f"{mirrored.frozen.cell_id} has tracker={values['name']}: there is nothing to mirror it to")
    module, _, name = values["_target_"].rpartition(".")
    target: MakeMirror = getattr(importlib.import_module(module), name)
    return target(mirrored, values)


def main() -> int:
    """Mirror the attempt that the command line names; every failure becomes one line of JSON."""
    signals = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR2)
    for number in signals:  # Slurm sends them to every process of a job; the supervisor knows what they mean
        signal.signal(number, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, signals)
    channel = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # what libraries print is no word to the supervisor

    def tell(message: dict[str, Any]) -> None:
        _tell(channel, message)

    try:
        mirrored = Mirrored(Path(sys.argv[1]).absolute())
        mirrored.folder.mkdir(exist_ok=True)
        supervision = Supervision()
        if not (mirrored.attempt / RECORD_FILE).exists():
            supervision.listen()
        mirror(mirrored, supervision, tell)
    except Exception as error:
        traceback.print_exc()
        tell({"fault": _sentence(error)})
        return 1
    return 0


def _sentence(error: Exception) -> str:
    said = str(error).strip().splitlines()[:1]
    return said[0] if said and isinstance(error, UserError) else ": ".join([type(error).__name__, *said])


def _tell(channel: TextIO, message: dict[str, Any]) -> None:
    with contextlib.suppress(BrokenPipeError):
        channel.write(json.dumps(message) + "\n")
        channel.flush()


if __name__ == "__main__":
    sys.exit(main())
