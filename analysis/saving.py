"""Saving figures beside the rest of the work: drawing them into files is half of the time of a large report."""

import multiprocessing
import os
import threading
from collections.abc import Callable, Sequence
from pathlib import Path

from scalerlt.analysis.figures import Picture, save

WORTH_A_PROCESS = 8
"""Figures from which on other processes save them."""


def start_saving(pictures: Sequence[Picture], directory: Path) -> Callable[[], list[Path]]:
    """Begin to save the figures; the returned function waits for the files and gives their paths.

    Other processes do it where there are many figures, a spare core, and no other threads, which a fork would break.
    What one of them did not come to is saved when the files are asked for, and fails then as it would have at once.
    """
    spare = len(os.sched_getaffinity(0)) - 1
    if len(pictures) < WORTH_A_PROCESS or spare < 1 or threading.active_count() > 1:
        return lambda: _save_all(pictures, directory)
    shares = [pictures[first :: min(spare, 4)] for first in range(min(spare, 4))]
    context = multiprocessing.get_context("fork")  # a figure need not be picklable
    workers = [context.Process(target=_save_all, args=(share, directory)) for share in shares]
    for worker in workers:
        worker.start()

    def finish() -> list[Path]:
        for worker in workers:
            worker.join()
        paths: list[Path] = []
        for worker, share in zip(workers, shares, strict=True):
            done = [directory / f"{one.name}.{ending}" for one in share for ending in ("pdf", "png")]
            paths += done if worker.exitcode == 0 else _save_all(share, directory)
        return paths

    return finish


def _save_all(pictures: Sequence[Picture], directory: Path) -> list[Path]:
    return [path for picture in pictures for path in save(picture, directory)]
