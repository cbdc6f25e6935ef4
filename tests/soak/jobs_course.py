"""A soak on a real Slurm: jobs that share a queue are cancelled, preempted, requeued and killed, and a node fails.

`make soak-slurm` runs it and prints its figures; needs what `make test-slurm` needs.
"""

import argparse
import os
import secrets
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from slurm.cluster import Cluster, running
from soak import evidence, reader
from soak.orders import ANSWERS
from soak.processes import Soak, wait_for
from soak.report import Report, figures, judge

SUBMISSION = [
    "hydra/launcher=slurm",
    "hydra.launcher.wait=false",
    "hydra.launcher.max_jobs=3",
    "hydra.launcher.cpus_per_task=2",
    "hydra.launcher.mem_gb=2",  # with accounting it is a limit, and two slots with torch take 1.2 GB
    "hydra.launcher.timeout_min=30",
    "hydra.launcher.signal_delay_s=5",
    "hydra.launcher.pack.slots=2",
    "hydra.launcher.pack.timed=shared",
]
ACTIVE = "PENDING,RUNNING,COMPLETING,SUSPENDED"
GOES_ON = frozenset({"preempted", "lost", "killed"})
"""Verdicts after which jobs of the same submission try a cell again, when their own job was ended."""
MOST_SUBMISSIONS = 6


class JobsCourse:
    """One soak on a cluster, from its start to the reading of its files.

    Args:
        say: told what happens.
    """

    def __init__(self, soak: Soak, cluster: Cluster, say: Callable[[str], None]) -> None:
        self._soak = soak
        self._cluster = cluster
        self._say = say
        self._interruptions: Counter[str] = Counter()
        self._submitted: list[subprocess.CompletedProcess[str]] = []

    def run(self) -> Report:
        """All of it."""
        soak = self._soak
        soak.prepare()
        soak.variables["SLURM_CONF"] = str(self._cluster.conf)
        with running(self._cluster):
            began = time.monotonic()
            self._disturbed()
            self._undisturbed()
            wall = time.monotonic() - began
            return self._read(wall)

    def _disturbed(self) -> None:
        self._submit()
        for kind, share in (("scancel", 0.1), ("preemption", 0.25), ("requeue", 0.4), ("kill -9 of a job", 0.55)):
            self._strike(kind, share)
        self._await_jobs()
        self._submit()
        self._strike("node failure", 0.75)
        self._await_jobs()

    def _undisturbed(self) -> None:
        always_bad = sum(order.standing not in ANSWERS for order in self._soak.orders.values())
        for _ in range(MOST_SUBMISSIONS):
            before = self._soak.attempts()
            self._submit()
            self._await_jobs()
            if len(self._soak.attempts() - before) == always_bad:
                return

    def _submit(self) -> None:
        done = self._soak.command("-m", "--config-dir", "conf", *self._soak.request, *SUBMISSION)
        self._submitted.append(done)
        self._soak.starts += 1
        self._say(f"submission {len(self._submitted)}: {self._soak.recorded()} cells with a record")

    def _jobs(self, states: str) -> list[tuple[str, str]]:
        """The jobs in some states: the id that their processes know, and the one that Slurm shows."""
        told = self._cluster.ask("squeue", "-r", "-h", "-t", states, "-o", "%A %i").splitlines()
        return [(line.split()[0], line.split()[1]) for line in told]

    def _await_jobs(self) -> None:
        wait_for(lambda: not self._jobs(ACTIVE), "the end of all jobs")

    def _strike(self, kind: str, share: float) -> None:
        """Do something to one of the jobs that are at work, once so large a share of all cells has a record."""
        soak, cluster = self._soak, self._cluster

        def is_due() -> bool:
            return soak.recorded() >= share * len(soak.orders) and bool(self._at_work())

        wait_for(lambda: is_due() or not self._jobs(ACTIVE), f"{share:.0%} of the cells")
        if not (working := self._at_work()):
            self._say(f"{kind}: too late")
            return
        time.sleep(soak.chance.uniform(0.0, 1.0))
        raw, shown = soak.chance.choice(working)
        struck = [raw]
        if kind == "node failure":
            node = cluster.ask("squeue", "-h", "-j", shown, "-o", "%N").strip()
            struck = [
                line.split()[0] for line in cluster.ask("squeue", "-r", "-h", "-w", node, "-o", "%A").splitlines()
            ]
        for job in struck:
            evidence.append(soak.folder / evidence.STRIKES, {"kind": kind, "job": job, "pids": []})
        match kind:
            case "scancel":
                cluster.ask("scancel", shown)
            case "preemption":
                cluster.ask("scancel", "--signal=USR2", shown)
            case "requeue":
                cluster.ask("scontrol", "requeue", shown)
            case "kill -9 of a job":
                for pid in _processes_of(raw, cluster):
                    _kill(pid)
            case "node failure":
                cluster.fail_node(node)
                cluster.repair_node(node)
        self._interruptions[kind] += 1
        self._say(f"{kind} of job {shown}: {soak.recorded()} cells with a record")

    def _at_work(self) -> list[tuple[str, str]]:
        """The jobs that hold an attempt at this moment."""
        holding = set()
        for attempt in self._soak.unrecorded():
            try:
                holding.add(reader.strict((attempt / "lease.json").read_text())["slurm_job_id"])
            except (OSError, ValueError):
                continue
        return [job for job in self._jobs("RUNNING") if job[0] in holding]

    def _read(self, wall: float) -> Report:
        soak = self._soak
        finding = reader.read(soak.folder, soak.sweep, soak.orders, GOES_ON)
        for number, done in enumerate(self._submitted, 1):
            said = done.stdout + done.stderr
            holds = done.returncode == 0 and "Traceback" not in said
            finding.check("each queue ended as it had to", holds, f"submission {number}: {said[-2000:]}")
        judge(soak, finding)
        return Report(finding, figures(soak, finding, self._interruptions, wall))


def _processes_of(job: str, cluster: Cluster) -> list[int]:
    """The processes of a job, by their environment; not Slurm's own."""
    found = []
    for entry in Path("/proc").iterdir():
        try:
            given = (entry / "environ").read_bytes().split(b"\0") if entry.name.isdigit() else []
        except OSError:
            continue
        if f"SLURM_JOB_ID={job}".encode() in given and f"SLURM_CONF={cluster.conf}".encode() in given:
            found.append(int(entry.name))
    return found


def _kill(pid: int) -> None:
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        pass


def main() -> int:
    """Run a soak; 1 when something is wrong with what it left."""
    parser = argparse.ArgumentParser(prog="soak", description="Runs a sweep on a Slurm that is none too kind.")
    parser.add_argument("--cells", type=int, default=60, metavar="N", help="how many (default: 60)")
    parser.add_argument("--seed", type=int, metavar="N", help="of what is left to chance (default: a new one)")
    parser.add_argument("--timeout", type=float, default=8.0, metavar="S", help="a cell's time limit (default: 8 s)")
    parser.add_argument("--accounting", action="store_true", help="a cluster with accounting")
    parser.add_argument("--folder", type=Path, metavar="DIR", help="a new folder, kept (default: a temporary one)")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # what it has started ends with it
    seed = secrets.randbelow(2**31) if options.seed is None else options.seed
    print(f"seed {seed}", flush=True)
    with tempfile.TemporaryDirectory(prefix="soak-", dir="/tmp") as temporary:  # short: a socket's path lies in it
        folder = options.folder or Path(temporary, "soak")
        soak = Soak.drawn(folder, options.cells, seed, options.timeout, strikes=False)
        cluster = Cluster(Path(temporary, "c"), accounting=options.accounting)
        report = JobsCourse(soak, cluster, say=lambda text: print(text, flush=True)).run()
    print(f"\n{report.table()}")
    for problem in report.problems:
        print(f"WRONG: {problem}")
    return 1 if report.problems else 0


if __name__ == "__main__":
    sys.exit(main())
