"""submissions/NNN/queue.json: the cells that the jobs of one submission work through.

A job is told the path of this file and nothing else. Jobs take items by making `claims/<index>/` beside the file, so
that two never run one.
"""

from typing import Any, Literal

from pydantic import Field

from scalerlt.records.base import Document, Moment, Part

QUEUE_FILE = "queue.json"
CLAIMS = "claims"
"""Beside the queue's file: one directory per item that a job has taken, made exclusively, with the job's lease.json."""


class QueueItem(Part):
    """What a job takes at once: the cells of one bundle that are to run, in plan order, or a cell without one."""

    index: int
    """Its place in the queue, and the name of its claim."""
    bundle: str | None = None
    cells: list[str] = Field(min_length=1)
    seconds: float | None = None
    """What planning expects all its cells to take; None where it cannot tell."""
    timed: bool = False
    """Whether one of its cells measures time, so that nothing else should run beside it."""


class Asked(Part):
    """What each node of a job was asked for; None where the cluster's own default holds."""

    nodes: int = 1
    cpus: int | None = None
    gpus: int | None = None


class Queue(Document):
    """One submission's queue. Written before its first job is submitted and never changed.

    All its jobs have the same resources. Where there are as many jobs as items, each has an item of its own
    (see `Submission`), else they share the whole queue.
    """

    schema_version: Literal[1] = 1
    sweep: str
    plan: str
    """File name of the plan."""
    created: Moment
    items: list[QueueItem]
    tried: dict[str, int] = Field(default_factory=dict)
    """Of each cell that had attempts when it was submitted, the number of the newest.

    A cell with a later record that is neither `preempted` nor `lost` was run since, and is not run again by this queue.
    """
    retry: list[str] = Field(default_factory=list)
    """The words of the request (see planning.retry)."""
    slots: int = Field(default=1, ge=1)
    """How many items a job runs at the same time, each on a part of the job's CPUs and GPUs."""
    timed: Literal["exclusive", "shared"] = "exclusive"
    """Whether an item that measures time has the job for itself."""
    infer_oom: bool = True
    """Whether a cell that is out of memory rules out those with a larger batch that were never tried."""
    timeout_min: int
    """Time limit of a job."""
    signal_delay_s: int
    """Seconds before the limit at which Slurm sends SIGUSR2."""
    max_requeues: int = 10
    """How often a job may put itself back into Slurm's queue."""
    asked: Asked = Field(default_factory=Asked)
    provenance: dict[str, Any] = Field(default_factory=dict)
    """The code that was submitted, as records.provenance tells it."""
    snapshot: str | None = None
    """Where the copy of that code stands which the jobs import; None: they import what stands there when they start."""
