"""lease.json: which process holds an attempt, so that any shell can tell a running cell from a lost one."""

import socket
from datetime import datetime
from pathlib import Path
from typing import Literal

import psutil
from pydantic import Field

from scalerlt.records.base import Document, Moment, now

STALE_AFTER_SECONDS = 120.0


class Lease(Document):
    """Who runs an attempt. A process is known by host, boot, pid and start time: a pid alone is used again."""

    schema_version: Literal[1] = 1
    host: str
    boot_id: str
    pid: int = Field(gt=0, lt=2**31)
    start_ticks: float
    slurm_job_id: str | None = None
    started: Moment
    heartbeat: Moment
    """Renewed every few seconds by the supervisor; the only sign of life that another host can see."""

    @classmethod
    def of_this_process(cls, slurm_job_id: str | None = None) -> "Lease":
        """A lease held by the calling process."""
        process = psutil.Process()
        moment = now()
        return cls(
            host=socket.gethostname(),
            boot_id=boot_id(),
            pid=process.pid,
            start_ticks=process.create_time(),
            slurm_job_id=slurm_job_id,
            started=moment,
            heartbeat=moment,
        )

    def is_alive(self, moment: str | None = None) -> bool:
        """Whether the holder still runs: by its process on this host, by its heartbeat on another."""
        if self.is_of_this_host:
            if self.boot_id != boot_id():
                return False
            try:
                process = psutil.Process(self.pid)
                return abs(process.create_time() - self.start_ticks) < 1.0 and process.status() != psutil.STATUS_ZOMBIE
            except psutil.NoSuchProcess:
                return False
        return self.age_seconds(moment) < STALE_AFTER_SECONDS

    @property
    def is_of_this_host(self) -> bool:
        """Whether its process can be looked for here."""
        return self.host == socket.gethostname()

    def age_seconds(self, moment: str | None = None) -> float:
        """How old its heartbeat is."""
        return _seconds_between(self.heartbeat, moment or now())


def boot_id() -> str:
    """An identifier that changes with every boot of this host."""
    path = Path("/proc/sys/kernel/random/boot_id")
    return path.read_text().strip() if path.exists() else f"boot-{psutil.boot_time():.0f}"


def _seconds_between(earlier: str, later: str) -> float:
    return (datetime.fromisoformat(later) - datetime.fromisoformat(earlier)).total_seconds()
