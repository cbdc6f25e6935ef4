"""The Slurm job that this process belongs to: its ids, what it may use, when it ends, and what Slurm says of it."""

import os
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

SECONDS = 10.0
"""How long Slurm may take to answer."""


@dataclass(frozen=True)
class SlurmJob:
    """One job, or one task of an array, by the variables that Slurm sets for its processes.

    Attributes:
        job_id: as Slurm's commands show it: `123`, or `123_4`; None outside of Slurm.
        raw_id: the number that the job has for itself, which of a task differs from its array's.
        restarts: how often it was requeued before.
        end: when its time limit ends it, in seconds of the epoch, where Slurm tells its processes.
    """

    job_id: str | None
    raw_id: str | None
    restarts: int
    end: float | None = None

    @classmethod
    def of_this_process(cls, variables: Mapping[str, str] = os.environ) -> "SlurmJob":
        """The job that the environment tells of."""
        raw_id, array, task = (variables.get(f"SLURM_{name}") for name in ("JOB_ID", "ARRAY_JOB_ID", "ARRAY_TASK_ID"))
        return cls(
            job_id=f"{array}_{task}" if array and task else raw_id,
            raw_id=raw_id,
            restarts=int(variables.get("SLURM_RESTART_COUNT") or 0),
            end=_number(variables.get("SLURM_JOB_END_TIME")),
        )

    def says(self) -> dict[str, str]:
        """What Slurm says of the job: `scontrol show job`, key by key; empty when it says nothing in time."""
        if self.job_id is None:  # the raw id of an array's last task is the array's: all its tasks would answer
            return {}
        told = _ask("scontrol", "show", "job", "--oneliner", self.job_id)
        return dict(word.split("=", 1) for word in told.split() if "=" in word) if told else {}

    def ends_at(self) -> float | None:
        """The same as it is now, for the limit may be changed; None where nobody knows."""
        return end_of(self.says()) or self.end

    def requeue(self) -> str | None:
        """Put the job back into Slurm's queue, which ends this process; returns why that failed, else None."""
        assert self.job_id is not None
        try:
            asked = subprocess.run(
                ["scontrol", "requeue", self.job_id], capture_output=True, text=True, timeout=60, check=False
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            return str(error)
        return (asked.stderr.strip() or f"exit code {asked.returncode}") if asked.returncode else None

    def plain(self) -> dict[str, Any]:
        """Its part of a record."""
        if self.job_id is None:
            return {}
        nodes = os.environ.get("SLURM_JOB_NODELIST")
        return {"job_id": self.job_id, "raw_id": self.raw_id, "restarts": self.restarts, "nodes": nodes}


def is_requeued(says: Mapping[str, str], restarts: int) -> bool:
    """Whether Slurm has already put a job back into its queue, or is about to: it preempts it, or was told to."""
    return int(_number(says.get("Restarts")) or 0) > restarts or says.get("JobState") in ("REQUEUED", "PENDING")


def is_preempted(says: Mapping[str, str], restarts: int) -> bool:
    """Whether Slurm takes the job's nodes away for another's sake."""
    named = says.get("JobState") == "PREEMPTED" or "preempt" in says.get("Reason", "").lower()
    return named or _moment(says.get("PreemptTime")) is not None or is_requeued(says, restarts)


def end_of(says: Mapping[str, str]) -> float | None:
    """When a job ends, in seconds of the epoch, by what Slurm says of it."""
    return _moment(says.get("EndTime"))


def in_words(says: Mapping[str, str]) -> str:
    """What Slurm says, for a reason: `Slurm says JobState=PREEMPTED`."""
    told = [
        f"{key}={says[key]}"
        for key in ("JobState", "Reason", "PreemptTime", "Restarts")
        if says.get(key, "None") not in ("None", "0")
    ]
    return f"Slurm says {' '.join(told)}" if told else "Slurm says nothing"


def _ask(*command: str) -> str:
    try:
        asked = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return asked.stdout if asked.returncode == 0 else ""


def _moment(text: str | None) -> float | None:
    try:
        return datetime.fromisoformat(text or "").timestamp()  # Slurm writes its host's own time
    except ValueError:
        return None  # None, Unknown, N/A


def _number(text: str | None) -> float | None:
    try:
        return float(text or "")
    except ValueError:
        return None
