"""lease.json: which process holds an attempt, so that any shell can tell a running cell from a lost one."""

import os
import socket
from datetime import datetime
from pathlib import Path
from typing import Literal

import psutil
from pydantic import Field

from scalerlt.records.base import Document, Moment, now

STALE_AFTER_SECONDS = 120.0


class Lease(Document):
    """Who runs an attempt. A process is known by host, boot, pid and start time: a pid alone is used again.

    None of them depends on the wall clock, which may be set while the process runs.
    """

    schema_version: Literal[1] = 1
    host: str
    boot_id: str
    pid: int = Field(gt=0, lt=2**31)
    start_ticks: float
    """Clock ticks since boot; of an earlier version, or where there are none, seconds since 1970."""
    slurm_job_id: str | None = None
    started: Moment
    heartbeat: Moment
    """Renewed every few seconds by the supervisor; the only sign of life that another host can see."""

    @classmethod
    def of_this_process(cls, slurm_job_id: str | None = None) -> "Lease":
        """A lease held by the calling process."""
        pid, moment = os.getpid(), now()
        return cls(
            host=socket.gethostname(),
            boot_id=boot_id(),
            pid=pid,
            start_ticks=start_ticks(pid),
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
                is_same = self.start_ticks == start_ticks(self.pid) or _is_near(self.start_ticks, process.create_time())
                return is_same and process.status() != psutil.STATUS_ZOMBIE
            except (psutil.NoSuchProcess, FileNotFoundError, ProcessLookupError):
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
    """An identifier that changes with every boot of this host; a constant where there is none."""
    path = Path("/proc/sys/kernel/random/boot_id")
    return path.read_text().strip() if path.exists() else "unknown"


def start_ticks(pid: int) -> float:
    """When a process started: in clock ticks since boot, but where there is no Linux in seconds since 1970.

    psutil adds the time of the boot, which the kernel counts back from the wall clock: a step of the clock, by NTP or
    when a virtual machine is resumed, would make another process of it.
    """
    if not psutil.LINUX:
        return psutil.Process(pid).create_time()
    behind_the_name = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2]  # a name may hold blanks and brackets
    return float(behind_the_name.split()[19])  # field 22 of proc_pid_stat(5), where the state is field 3


def _is_near(seconds: float, other: float) -> bool:
    """Whether two times as psutil tells them are the same process's: how an earlier version wrote its leases."""
    return abs(seconds - other) < 1.0


def _seconds_between(earlier: str, later: str) -> float:
    return (datetime.fromisoformat(later) - datetime.fromisoformat(earlier)).total_seconds()
