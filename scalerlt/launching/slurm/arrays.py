"""How many jobs a submission has, and how they are put into arrays."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from scalerlt.planning.launcher import SlurmSettings

LARGEST_ARRAY = 1001
"""Slurm's default of MaxArraySize, where the cluster does not tell its own."""


@dataclass(frozen=True)
class JobArray:
    """Jobs that one `sbatch` submits.

    Attributes:
        items: for each job the index of the only item that it may take; None: the jobs share the queue.
        parallelism: how many of them may run at the same time.
        after_previous: whether the array waits for the end of the one before it.
    """

    items: list[int | None]
    parallelism: int
    after_previous: bool = False


def job_count(items: int, settings: SlurmSettings) -> int:
    """How many jobs work through so many items: one each, or as few as the slots and `max_jobs` allow."""
    needed = math.ceil(items / settings.pack.slots)
    return needed if settings.max_jobs is None else min(needed, settings.max_jobs)


def arrays(items: int, settings: SlurmSettings, largest: int = LARGEST_ARRAY) -> list[JobArray]:
    """The arrays of a submission, none larger than the cluster allows.

    The limit of `array_parallelism` holds for all together: it is divided among the arrays, or, when there are more
    arrays than that, each waits for the one before it.

    Args:
        items: how many there are.
        largest: the cluster's MaxArraySize; 0 or 1 where it has no arrays.
    """
    jobs = job_count(items, settings)
    taken: list[int | None] = list(range(items)) if jobs == items else [None] * jobs
    parts = _parts(taken, max(largest, 1))
    limit = settings.array_parallelism
    if limit is None:
        return [JobArray(part, len(part)) for part in parts]
    if limit < len(parts):
        return [JobArray(part, min(limit, len(part)), after_previous=index > 0) for index, part in enumerate(parts)]
    shares = [limit // len(parts) + (index < limit % len(parts)) for index in range(len(parts))]
    return [JobArray(part, min(share, len(part))) for part, share in zip(parts, shares, strict=True)]


def _parts(taken: Sequence[int | None], largest: int) -> list[list[int | None]]:
    """Parts of nearly equal length."""
    count = math.ceil(len(taken) / largest)
    bounds = [round(index * len(taken) / count) for index in range(count + 1)]
    return [list(taken[begin:end]) for begin, end in pairwise(bounds)]
