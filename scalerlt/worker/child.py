"""The child: runs one cell's experiment in a process of its own, and notes in its journal how it ended.

The same for a forked child and a fresh interpreter. `python -m scalerlt.worker.child CELL ATTEMPT RANK PARENT` is the
latter.
"""

import faulthandler
import importlib
import io
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from scalerlt.errors import Preempted, Unsupported
from scalerlt.records.base import UnwritableFile
from scalerlt.records.journal import Ending
from scalerlt.records.record import Failure, Verdict
from scalerlt.records.recorder import Recorder
from scalerlt.schema import Cell
from scalerlt.schema.frozen import load_frozen
from scalerlt.worker.processes import (
    HELD_BACK,
    PREEMPT,
    UNWRITABLE,
    lift_data_limit,
    limit_data,
    resident_bytes,
    start_own_session,
)

Experiment = Callable[[Cell, Recorder], None]

OUT_OF_MEMORY = (
    "can't allocate memory",
    "cannot allocate memory",
    "bad_alloc",
    "out of memory",
    "cublas_status_alloc_failed",
)
"""What allocators say that raise a plain RuntimeError or OSError."""


def run(cell_file: Path, attempt: Path, rank: int) -> int:
    """Run the experiment of a frozen cell; its exceptions, too, become an ending in the journal.

    Standard output and error are expected to be the attempt's logs already.

    Returns:
        The exit code: 0 if the experiment came to its end, UNWRITABLE if the journal cannot say how it ended, else 1.
    """
    try:
        return _run(cell_file, attempt, rank)
    except UnwritableFile as fault:
        with suppress(OSError):  # the log is on the same disk
            print(f"error: {fault}", file=sys.stderr, flush=True)
        return UNWRITABLE


def _run(cell_file: Path, attempt: Path, rank: int) -> int:
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    faulthandler.enable()
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(line_buffering=True)  # a killed cell's log holds what it printed
    recorder = Recorder(attempt, rank)
    _take_signals(recorder)
    began: float | None = None
    try:
        with recorder.phase("import"):
            _, cell = load_frozen(cell_file)
            experiment = _prepare(cell)
        began = time.monotonic()
        with recorder.phase("experiment"):
            experiment(cell, recorder)
        ending = Ending(verdict=Verdict.MEASURED)
    except BaseException as error:  # SystemExit, too, ends a cell without an answer
        lift_data_limit()
        with suppress(OSError):  # the disk is full; the ending has the traceback, too
            traceback.print_exc()
        ending = _ending(error, recorder.phase_name)
    if began is not None:
        ending.experiment_seconds = time.monotonic() - began
    recorder.end(ending)
    recorder.close()
    with suppress(OSError):
        sys.stdout.flush()
        sys.stderr.flush()
    return 0 if ending.verdict is Verdict.MEASURED else 1


def _take_signals(recorder: Recorder) -> None:
    """Say what the signals mean that were held back while this process started."""

    def ask(*_: object) -> None:
        recorder.preempted = True

    signal.signal(PREEMPT, ask)
    if "SLURM_JOB_ID" in os.environ:
        # Slurm signals every process of a job; whether it means the end is for the supervisor to find out
        signal.signal(signal.SIGTERM, lambda *_: None)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, HELD_BACK)


def _prepare(cell: Cell) -> Experiment:
    import torch

    torch.set_num_threads(cell.device.threads)
    if cell.device.memory_limit_bytes is not None:
        limit_data(cell.device.memory_limit_bytes)
    module, _, name = cell.experiment.target.rpartition(".")
    experiment: Experiment = getattr(importlib.import_module(module), name)
    return experiment


def _ending(error: BaseException, phase: str) -> Ending:
    if isinstance(error, Unsupported):
        return Ending(verdict=Verdict.UNSUPPORTED, reason=str(error))
    if isinstance(error, Preempted):
        return Ending(verdict=Verdict.PREEMPTED, reason=str(error))
    return Ending(
        verdict=Verdict.OOM if _is_out_of_memory(error) else Verdict.FAILED,
        failure=Failure(
            type=type(error).__name__,
            message=str(error),
            phase=phase,
            traceback="".join(traceback.format_exception(error)),
            rss_bytes=resident_bytes(os.getpid()),
            cuda_peak_allocated_bytes=_cuda_peak(),
        ),
    )


def _is_out_of_memory(error: BaseException) -> bool:
    torch = sys.modules.get("torch")
    if isinstance(error, MemoryError) or (torch is not None and isinstance(error, torch.OutOfMemoryError)):
        return True
    return isinstance(error, RuntimeError | OSError) and any(text in str(error).lower() for text in OUT_OF_MEMORY)


def _cuda_peak() -> int | None:
    torch = sys.modules.get("torch")
    return torch.cuda.max_memory_allocated() if torch is not None and torch.cuda.is_initialized() else None


if __name__ == "__main__":
    cell_argument, attempt_argument, rank_argument, parent_argument = sys.argv[1:]
    start_own_session(int(parent_argument))
    # no interpreter shutdown: the result is handed over, and a crash in a library's clean-up must not undo it
    os._exit(run(Path(cell_argument), Path(attempt_argument), int(rank_argument)))
