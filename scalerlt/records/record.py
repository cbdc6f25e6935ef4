"""record.json: what one attempt at a cell leaves, whatever happened to it."""

import math
import sys
from enum import StrEnum
from typing import Any, Literal

from pydantic import Field, field_validator

from scalerlt.records.base import NON_FINITE, Document, Moment, Part, Scalar


class Verdict(StrEnum):
    """How an attempt ended."""

    MEASURED = "measured"
    UNSUPPORTED = "unsupported"
    OOM = "oom"
    TIMEOUT = "timeout"
    KILLED = "killed"
    FAILED = "failed"
    LOST = "lost"
    PREEMPTED = "preempted"

    @property
    def answers(self) -> bool:
        """Whether the cell has its answer: it is not run again, and a sweep of such cells exits with 0."""
        return self in (Verdict.MEASURED, Verdict.UNSUPPORTED, Verdict.OOM)


class Spread(Part):
    """How the repeated values of a metric lie within one process (never a sample of cohorts)."""

    minimum: float
    maximum: float
    standard_deviation: float | None = None
    """With n - 1 in the denominator; None for a single value."""


class Metric(Part):
    """One measured figure, or the reason why there is none."""

    status: Literal["measured", "not_measured", "unsupported"] = "measured"
    value: float | int | bool | str | None = None
    unit: str = ""
    n: int | None = None
    """Number of repeats behind `value`."""
    values: list[float] | None = None
    """Each repeat, in the order of measuring."""
    spread: Spread | None = None
    reason: str | None = None
    """Why it is not measured or unsupported."""
    scope: str | None = None
    """What a timing covers: decode, rollout, actor_update, rl_step, ..."""
    method: str | None = None
    """How a memory figure or an error was obtained."""

    @field_validator("value", mode="before")
    @classmethod
    def _read_non_finite(cls, value: Any) -> Any:
        if isinstance(value, int) and abs(value) > sys.float_info.max:
            return math.inf if value > 0 else -math.inf  # as 1e400 is read; no arithmetic on a figure may overflow
        return NON_FINITE.get(value, value) if isinstance(value, str) else value


class Failure(Part):
    """What went wrong, where, and how much memory was in use."""

    type: str
    message: str
    phase: str | None = None
    traceback: str | None = None
    signal: int | None = None
    exit_code: int | None = None
    rss_bytes: int | None = None
    """Last resident set size seen: by the rank itself when it raised, else by the supervisor."""
    cuda_peak_allocated_bytes: int | None = None
    """Peak of the CUDA allocator until then."""


class RankReport(Part):
    """What one process of a cell reports: one per rank."""

    rank: int
    host: str | None = None
    """Where it ran; of a cell of several nodes the name that Slurm gives the node."""
    pid: int | None = None
    exit_code: int | None = None
    signal: int | None = None
    started: str | None = None
    ended: str | None = None
    experiment_seconds: float | None = None
    """Wall time of the experiment's function; starting an interpreter and imports are outside."""
    rss_peak_bytes: int | None = None
    """Highest resident set size that the supervisor saw, five times a second, of the rank and its subprocesses."""
    phase: str | None = None
    """The phase that it was in when it ended without a result."""
    metrics: dict[str, Metric] = Field(default_factory=dict)
    """What ranks other than 0 measured; rank 0's metrics are the record's."""


class Record(Document):
    """The record of one attempt. Complete when it validates, not when the file exists."""

    schema_version: Literal[1] = 1
    sweep: str
    cell_id: str
    axes: dict[str, Scalar]
    """Every scientific key of the configuration, flat (`batch.group_size`), a config group by its option's name."""
    attempt: int
    continues: int | None = None
    verdict: Verdict
    reason: str | None = None
    passes: list[str] = Field(default_factory=list)
    """The passes that ran in the process, in order: warm_up, time, memory, reference."""
    metrics: dict[str, Metric] = Field(default_factory=dict)
    notes: list[str] = Field(default_factory=list)
    """Warnings a reader of the numbers should see (fewer CPUs than asked for, inputs changed, ...)."""
    failure: Failure | None = None
    plan: str | None = None
    """File name of the plan under which the attempt ran."""
    order: int | None = None
    bundle: str | None = None
    beside: list[str] = Field(default_factory=list)
    """The cells that the same Slurm job ran at some moment of this attempt."""
    start: Literal["fork", "spawn"] | None = None
    started: Moment
    ended: Moment
    overhead_seconds: float | None = None
    """Wall time of the attempt outside the experiment: starting, watching and recording it."""
    inputs: dict[str, str] = Field(default_factory=dict)
    """SHA-256 of each file input, by its configuration key."""
    provenance: dict[str, Any] = Field(default_factory=dict)
    environment: dict[str, Any] = Field(default_factory=dict)
    """The host of the supervisor and of rank 0, as they were allowed to use it."""
    hosts: dict[str, dict[str, Any]] = Field(default_factory=dict)
    """Of a cell of several nodes the same of each other host, by the name that Slurm gives it."""
    slurm: dict[str, Any] = Field(default_factory=dict)
    """Of an attempt in a Slurm job: the job's id, nodes and restarts, and its CPUs and GPUs on the first node
    (`job_cpus`, `job_gpus`); of these the cell's own (`cpus`, `gpus`), and the slot that ran it."""
    ranks: list[RankReport] = Field(default_factory=list)
