"""The experiment of a soak's cells: does what orders.json says, and leaves evidence of it."""

import json
import os
import signal
import subprocess
import time
from collections.abc import Callable

from soak import evidence

from scalerlt.errors import Unsupported
from scalerlt.records.recorder import Recorder
from scalerlt.schema import Cell

STEP_SECONDS = 0.05


def cell(cell: Cell, recorder: Recorder) -> None:
    """Works for a while, then does as it is ordered: at the first attempt that comes so far, or at every one."""
    folder, attempt = recorder.attempt.parents[3], int(recorder.attempt.name.removeprefix("attempt-"))
    trace = evidence.of_seed(folder, cell.seed)
    order = json.loads((folder / evidence.ORDERS).read_text())[str(cell.seed)]

    def note(what: str) -> None:
        evidence.append(trace, {"attempt": attempt, "what": what, "pid": os.getpid()})

    note("began")
    recorder.metric("pid", os.getpid())
    with recorder.measuring("time"):
        steps = round(order["seconds"] / STEP_SECONDS)
        for step in range(steps):
            time.sleep(STEP_SECONDS)
            recorder.series(step=step, reward=float(cell.seed))
            recorder.progress(step, steps, "steps")
            note("alive")
        act = order["act"]
        if act in ACTS and (order["always"] or act not in {line["what"] for line in evidence.lines(trace)}):
            note(act)
            ACTS[act]()
        recorder.metric("answer", 1000 + cell.seed)
    note("ended")


def _raise() -> None:
    raise ValueError("as ordered")


def _exit() -> None:
    os._exit(9)


def _hang() -> None:
    time.sleep(3600)


def _hang_stubbornly() -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    subprocess.Popen(["sleep", "3600"], process_group=0)
    _hang()


def _die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def _say_unsupported() -> None:
    raise Unsupported("as ordered")


def _run_out_of_memory() -> None:
    raise MemoryError("as ordered")


ACTS: dict[str, Callable[[], None]] = {
    "raise": _raise,
    "exit": _exit,
    "hang": _hang,
    "stubborn": _hang_stubbornly,
    "die": _die,
    "unsupported": _say_unsupported,
    "oom": _run_out_of_memory,
}
