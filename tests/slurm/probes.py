"""Experiments of the cells that the real Slurm runs. What a cell does hangs on its seed, which tells cells apart."""

import json
import os
import signal
import time
from pathlib import Path

import torch

from scalerlt.errors import Preempted
from scalerlt.records.journal import Journal
from scalerlt.records.recorder import Recorder
from scalerlt.records.store import CellDirectory
from scalerlt.schema import Cell

STEP_SECONDS = 0.2


def measures(cell: Cell, recorder: Recorder) -> None:
    """Seed 2 raises, seed 4 leaves without a word, the others measure."""
    recorder.metric("before", 1.5, "s")
    if cell.seed == 2:
        raise ValueError("the loss is NaN")
    if cell.seed == 4:
        os._exit(9)
    with recorder.measuring("time"):
        recorder.metric("answer", 40 + cell.seed, "1")
        _tell_where(recorder)


def counts(cell: Cell, recorder: Recorder) -> None:
    """Counts on from where an earlier attempt stopped, and is done when it has been continued twice."""
    state = {"attempts": 0, "count": 0}
    earlier = [
        attempt for attempt in CellDirectory(recorder.attempt.parent).attempts() if attempt.path != recorder.attempt
    ]
    saved = [attempt for attempt in earlier if (attempt.path / "checkpoints" / "count.json").exists()]
    if saved:
        state = json.loads((saved[-1].path / "checkpoints" / "count.json").read_text())
        recorder.continues(saved[-1].number)
    state["attempts"] += 1
    until = state["count"] + 10 if state["attempts"] == 3 else None
    while state["count"] != until:
        state["count"] += 1
        recorder.series(step=state["count"], reward=float(state["count"]))
        recorder.progress(state["count"], 100, "steps")
        if recorder.preempted:
            (recorder.attempt / "checkpoints").mkdir()
            (recorder.attempt / "checkpoints" / "count.json").write_text(json.dumps(state))
            raise Preempted(f"saved at step {state['count']}")
        time.sleep(STEP_SECONDS)
    recorder.metric("count", state["count"], "steps")
    recorder.metric("attempts", state["attempts"])


def waits(cell: Cell, recorder: Recorder) -> None:
    """Ends once `go` lies in the sweep's directory: the test decides when."""
    sweep = recorder.attempt.parents[1]
    with recorder.phase("wait"):
        while not (sweep / "go").exists():
            time.sleep(0.05)
    with recorder.measuring("time"):
        recorder.metric("answer", 40 + cell.seed, "1")
        recorder.metric("repeats", cell.experiment.repeats)  # type: ignore[attr-defined]
        _tell_where(recorder)


def shares(cell: Cell, recorder: Recorder) -> None:
    """Says on which GPU it was and when.

    Seeds 0 and 1 wait for one another; seed 3 kills itself the first time; those from 8 on end once `go` lies in the
    sweep's directory, or when they are asked to.
    """
    sweep = recorder.attempt.parents[1]
    recorder.metric("gpu", os.environ.get("CUDA_VISIBLE_DEVICES", "unset"))
    recorder.metric("cpus", json.dumps(sorted(os.sched_getaffinity(0))))
    recorder.metric("began", time.time(), "s")
    while cell.seed in (0, 1) and not _has_begun(sweep, 1 - cell.seed):
        time.sleep(0.05)
    while cell.seed >= 8 and not (sweep / "go").exists():
        if recorder.preempted:
            raise Preempted("there is nothing to save")
        time.sleep(0.05)
    if cell.seed == 3 and recorder.attempt.name == "attempt-001":
        os.kill(os.getpid(), signal.SIGKILL)
    recorder.metric("ended", time.time(), "s")


def takes_memory(cell: Cell, recorder: Recorder) -> None:
    """Keeps 1.2 GB."""
    with recorder.phase("fill"):
        kept = torch.ones(300 * 10**6)
        time.sleep(120)
    recorder.metric("sum", float(kept.sum()))


def _has_begun(sweep: Path, seed: int) -> bool:
    """Whether a cell of `shares` has come to its beginning; its journal is removed behind its record."""
    attempts = list(sweep.glob(f"*-s{seed}-*/attempt-*"))
    return any((attempt / "record.json").exists() or "began" in Journal.of(attempt, 0).metrics for attempt in attempts)


def _tell_where(recorder: Recorder) -> None:
    recorder.metric("pid", os.getpid())
    recorder.metric("bind", os.environ.get("SLURM_CPU_BIND", "unset"))
    recorder.metric("array", os.environ.get("SLURM_ARRAY_JOB_ID", "unset"))
    recorder.metric("node", os.environ.get("SLURMD_NODENAME", "unset"))
    recorder.metric("affinity", len(os.sched_getaffinity(0)))
    recorder.metric("offline", os.environ.get("HF_HUB_OFFLINE", "unset"))
    for name in ("FROM_SETUP", "FROM_ENV", "FROM_PYTHON", "SLURM_JOB_GPUS"):
        recorder.metric(name, os.environ.get(name, "unset"))
