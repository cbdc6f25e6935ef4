"""Experiments that behave in every way a cell can; run in real children by the tests."""

import ctypes
import os
import signal
import subprocess
import sys
import time

import torch

from scalerlt.errors import Preempted, Unsupported
from scalerlt.records.journal import Journal
from scalerlt.records.recorder import Recorder
from scalerlt.schema import Cell

Megabyte = 2**20
_kept: list[torch.Tensor] = []
_chain: tuple[object, ...] = ()


def measures(cell: Cell, recorder: Recorder) -> None:
    with recorder.measuring("time"):
        recorder.metric("answer", 42, "1")
        recorder.metric("threads", torch.get_num_threads())
        recorder.metric("pid", os.getpid())


def nothing(cell: Cell, recorder: Recorder) -> None:
    pass


def raises(cell: Cell, recorder: Recorder) -> None:
    recorder.metric("before", 1.5, "s")
    with recorder.phase("backward"):
        raise ValueError("the loss is NaN\nat step 3")


def leaves_by_sys_exit(cell: Cell, recorder: Recorder) -> None:
    sys.exit(3)


def exits_with_9(cell: Cell, recorder: Recorder) -> None:
    recorder.metric("before", 1.5, "s")
    os._exit(9)


def exits_silently(cell: Cell, recorder: Recorder) -> None:
    os._exit(0)


def kills_itself(cell: Cell, recorder: Recorder) -> None:
    recorder.repeated("before", [1.0, 3.0, float("inf")], "s", scope="decode")
    with recorder.measuring("memory"):
        time.sleep(0.5)  # long enough to be seen with its memory
        os.kill(os.getpid(), signal.SIGKILL)


def segfaults(cell: Cell, recorder: Recorder) -> None:
    ctypes.string_at(0)


def hangs(cell: Cell, recorder: Recorder) -> None:
    recorder.metric("before", 1.5, "s")
    with recorder.phase("generate"):
        recorder.progress(2, 7, "prompts")
        time.sleep(600)


def hangs_and_ignores_sigterm(cell: Cell, recorder: Recorder) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    hangs(cell, recorder)


def hangs_with_a_subprocess(cell: Cell, recorder: Recorder) -> None:
    helper = subprocess.Popen(["sleep", "600"], process_group=0)
    recorder.metric("helper", helper.pid)
    hangs(cell, recorder)


def leaves_a_subprocess(cell: Cell, recorder: Recorder) -> None:
    recorder.metric("helper", subprocess.Popen(["sleep", "600"]).pid)


def allocates_by_torch(cell: Cell, recorder: Recorder) -> None:
    kept = torch.ones(32 * Megabyte)  # 128 MiB
    recorder.metric("sum", float(kept.sum()))
    with recorder.phase("forward"):
        torch.ones(64 * Megabyte)  # 256 MiB


def allocates_by_python(cell: Cell, recorder: Recorder) -> None:
    """Fills every hole and keeps it all: not even the report of it fits."""
    global _chain
    size = Megabyte
    while True:
        try:
            _chain = (bytes(size), _chain)  # a list would have to grow in one piece
        except MemoryError:
            if size < 16:
                raise
            size //= 2


def fills_memory(cell: Cell, recorder: Recorder) -> None:
    _kept.extend(torch.ones(4 * Megabyte) for _ in range(64))  # touched, 1 GiB in all


def is_unsupported(cell: Cell, recorder: Recorder) -> None:
    raise Unsupported("fp64 has no kernel on this device")


def prints(cell: Cell, recorder: Recorder) -> None:
    print("to the output")
    print("to the error", file=sys.stderr)
    recorder.series(step=1, reward=0.5)
    recorder.series(step=2, reward=float("nan"))
    os.kill(os.getpid(), signal.SIGKILL)


def leaks(cell: Cell, recorder: Recorder) -> None:
    recorder.metric("rss", _resident(), "B")
    _kept.append(torch.ones(50 * Megabyte))  # 200 MiB


def is_slow(cell: Cell, recorder: Recorder) -> None:
    recorder.metric("began", time.monotonic(), "s")
    for step in range(6):
        recorder.progress(step, 6, "steps")
        time.sleep(0.1)
    recorder.metric("ended", time.monotonic(), "s")


def saves_when_asked(cell: Cell, recorder: Recorder) -> None:
    """Counts steps; of an attempt after the first it needs but one more."""
    recorder.progress(1, 100, "steps")
    if recorder.attempt.name != "attempt-001":
        recorder.continues(int(recorder.attempt.name[-3:]) - 1)
        return
    while not recorder.preempted:
        time.sleep(0.02)
    raise Preempted("saved after step 1")


def saves_when_let(cell: Cell, recorder: Recorder) -> None:
    """Asked to end it goes on until `go` lies beside the cell."""
    recorder.progress(1, 100, "steps")
    while not (recorder.preempted and (recorder.attempt.parent / "go").exists()):
        time.sleep(0.02)
    raise Preempted("saved after step 1")


def waits_for_a_file(cell: Cell, recorder: Recorder) -> None:
    """Ends once `go` lies beside the cell: tests decide when."""
    recorder.metric("began", time.monotonic(), "s")
    while not (recorder.attempt.parent / "go").exists():
        time.sleep(0.02)
    recorder.metric("answer", 42)
    recorder.metric("ended", time.monotonic(), "s")


def shows_its_start(cell: Cell, recorder: Recorder) -> None:
    recorder.metric("variable", os.environ.get("SCALERLT_PROBE", "unset"))
    recorder.metric("session", os.getsid(0))
    recorder.metric("parent", os.getppid())
    recorder.metric("pid", os.getpid())
    recorder.metric("tasks", len(os.listdir("/proc/self/task")))


def all_reduces(cell: Cell, recorder: Recorder) -> None:
    import torch.distributed as dist

    dist.init_process_group("gloo")
    total = torch.tensor([float(dist.get_rank() + 1)])
    dist.all_reduce(total)
    recorder.metric("total", float(total))
    recorder.metric("rank", dist.get_rank())
    for step in (1, 2):
        recorder.series(rank=dist.get_rank(), step=step)
    dist.destroy_process_group()


def second_rank_dies(cell: Cell, recorder: Recorder) -> None:
    rank = int(os.environ["RANK"])
    recorder.metric("rank", rank)
    with recorder.phase("all_reduce"):
        while rank == 1:
            if Journal.of(recorder.attempt, 0).phase == "all_reduce":  # it waits
                os.kill(os.getpid(), signal.SIGKILL)
            time.sleep(0.02)
        time.sleep(600)


def second_rank_raises(cell: Cell, recorder: Recorder) -> None:
    import torch.distributed as dist

    dist.init_process_group("gloo")
    with recorder.phase("all_reduce"):
        if dist.get_rank() == 1:
            raise ValueError("only here")
        dist.all_reduce(torch.ones(1))


def _resident() -> int:
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGESIZE")
