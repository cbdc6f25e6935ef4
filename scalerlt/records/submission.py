"""submissions/NNN.json: the Slurm jobs that one invocation submitted for the cells of one kind of resources.

Made exclusively before the first `sbatch`, and written again after each, so that no job is forgotten whatever happens
to the shell that submits.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

from pydantic import Field

from scalerlt.records.base import Document, Moment, Part, UnreadableDocument
from scalerlt.records.queue import QUEUE_FILE

SUBMISSIONS = "submissions"


class SubmittedJob(Part):
    """One Slurm job, or one task of an array."""

    job_id: str
    """As Slurm shows it: "123", or "123_4"."""
    items: list[int]
    """Indices of the queue's items that it may take: one of its own, or all, when the jobs share the queue."""
    resources: str = ""
    """What it was asked for, for people."""


class Submission(Document):
    """What was submitted, by whom, and under which job ids."""

    schema_version: Literal[1] = 1
    sweep: str
    plan: str
    """File name of the plan."""
    created: Moment
    host: str
    job_name: str
    """Slurm's name of all its jobs; finds a job whose id could not be written down any more."""
    launcher: dict[str, Any] = Field(default_factory=dict)
    """The launcher's settings, as they were."""
    provenance: dict[str, Any] = Field(default_factory=dict)
    """The code that was submitted."""
    snapshot: str | None = None
    """Where the copy of that code stands which the jobs import, if one was asked for."""
    jobs: list[SubmittedJob] = Field(default_factory=list)
    fault: str | None = None
    """Why not all that was to be submitted was: what sbatch said."""


def submissions(sweep: Path) -> Iterator[tuple[Path, Submission | UnreadableDocument]]:
    """Every submission of a sweep's directory, oldest first; an unreadable one as its fault."""
    for path in sorted((sweep / SUBMISSIONS).glob("[0-9]*.json")):
        try:
            yield path, Submission.read(path)
        except UnreadableDocument as fault:
            yield path, fault


def queue_file(submission_file: Path) -> Path:
    """Where the queue of a submission stands."""
    return submission_file.with_suffix("") / QUEUE_FILE


def scripts_folder(submission_file: Path) -> Path:
    """Where submitit keeps the scripts of a submission's jobs, and where these write their logs."""
    return submission_file.with_suffix("") / "submitit"


def log_of(submission_file: Path, job_id: str) -> Path | None:
    """What a job wrote: its standard error, or its output where that alone has anything; None without a log."""
    logs = [scripts_folder(submission_file) / f"{job_id}_0_log.{stream}" for stream in ("err", "out")]
    sizes = {log: log.stat().st_size for log in logs if log.is_file()}
    return next((log for log, size in sizes.items() if size), next(iter(sizes), None))
