"""Experiments without torch, for what is told of processes and their ends; ranks meet and fail as they do over gloo."""

import os
import select
import socket
import time

from scalerlt.records.recorder import Recorder
from scalerlt.schema import Cell


def ends(cell: Cell, recorder: Recorder) -> None:
    recorder.metric("affinity", len(os.sched_getaffinity(0)))


def shows_its_share(cell: Cell, recorder: Recorder) -> None:
    recorder.metric("gpu", os.environ["CUDA_VISIBLE_DEVICES"])
    recorder.metric("cpus", ",".join(map(str, sorted(os.sched_getaffinity(0)))))


def hangs(cell: Cell, recorder: Recorder) -> None:
    with recorder.phase("generate"):
        time.sleep(600)


def waits_for_the_others(cell: Cell, recorder: Recorder) -> None:
    partners = _partners()
    recorder.metric("pid", os.getpid())
    with recorder.phase("all_reduce"):
        _wait(partners)


def second_rank_raises(cell: Cell, recorder: Recorder) -> None:
    partners = _partners()
    with recorder.phase("all_reduce"):
        if os.environ["RANK"] == "1":
            raise ValueError("only here")
        _wait(partners)


_HELD: list[socket.socket] = []
"""As a process group does, the connections last until the process ends, which is after its last word."""


def _partners() -> list[socket.socket]:
    """Of rank 0 all others, of each of them rank 0."""
    meeting = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    if os.environ["RANK"] == "0":
        with socket.create_server(meeting) as server:
            _HELD.extend(server.accept()[0] for _ in range(int(os.environ["WORLD_SIZE"]) - 1))
        return _HELD
    while True:
        try:
            _HELD.append(socket.create_connection(meeting))
            return _HELD
        except ConnectionRefusedError:
            time.sleep(0.02)


def _wait(partners: list[socket.socket]) -> None:
    select.select(partners, [], [])  # nobody says anything: it is the end of one
    raise ConnectionError("a partner is gone")
