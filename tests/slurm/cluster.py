"""A real Slurm on this host, all of it in one folder: several nodes with fake GPUs, with accounting or without.

    PYTHONPATH=tests python -m slurm.cluster start DIR [--accounting]      prints the SLURM_CONF to export
    PYTHONPATH=tests python -m slurm.cluster stop DIR

Needs Debian's slurm-wlm and munge, with accounting also slurmdbd and mariadb-server; no systemd, no cgroups, nothing in
/etc or /var. `stop` ends the daemons and the processes of the cluster's own jobs, nothing else. Several clusters can
run at once. A node's name is no host name: Slurm knows its address (NodeAddr), a resolver does not.
"""

import argparse
import os
import secrets
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from slurm.configuration import Configuration, user
from slurm.daemons import Daemons, no_such_process_is_fine, program

PROGRAMS = {"slurm-wlm": ("slurmctld", "slurmd", "sbatch"), "munge": ("munged",)}
ACCOUNTING_PROGRAMS = {"slurmdbd": ("slurmdbd",), "mariadb-server": ("mariadbd", "mariadb-install-db")}

GUARDED = "SLURMD_OF_NODE"
"""Set for a node's daemon, whose slurmstepd processes inherit it."""


def missing_packages(accounting: bool) -> list[str]:
    """Debian packages that a cluster needs and this machine lacks."""
    wanted = PROGRAMS | (ACCOUNTING_PROGRAMS if accounting else {})
    return [package for package, programs in wanted.items() if not all(map(program, programs))]


class Cluster(Configuration):
    """A cluster, known by its folder."""

    @property
    def daemons(self) -> Daemons:
        """Of this folder."""
        return Daemons(self.directory, self.environment)

    @property
    def environment(self) -> dict[str, str]:
        """This process's environment, without Slurm's variables, pointing at the cluster."""
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("SLURM_", "SBATCH_"))}
        return {**kept, "SLURM_CONF": str(self.conf)}

    def ask(self, *command: str, seconds: float = 60.0) -> str:
        """What a command of Slurm's prints; its error where it fails."""
        done = subprocess.run(
            command, env=self.environment, capture_output=True, text=True, timeout=seconds, stdin=subprocess.DEVNULL
        )
        if done.returncode:
            raise RuntimeError(f"{' '.join(command)}: {done.stderr.strip() or done.stdout.strip()}")
        return done.stdout

    def start(self) -> None:
        """Start every daemon and wait until all nodes are idle.

        Raises:
            RuntimeError: a daemon ended, or the nodes were not ready in 60 s; the ends of the logs are in the message.
        """
        self.directory.mkdir(parents=True, exist_ok=True)
        self._start_munge()
        if self.accounting:
            self._start_accounting()
        self.write()
        self.daemons.start("slurmctld", "-D", "-i")
        for node in self.node_names:
            self.start_node(node)
        self.daemons.wait("the nodes", lambda: self.states() == ["idle"] * len(self.node_names))

    def stop(self) -> None:
        """End the cluster's jobs and its daemons."""
        if self.daemons.pid("slurmctld"):
            for pattern in (["--state=PENDING"], []):
                subprocess.run(
                    ["scancel", "--full", "--signal=KILL" if not pattern else "--quiet", *pattern, f"--user={user()}"],
                    env=self.environment,
                    capture_output=True,
                    timeout=60,
                )
        self.kill_jobs()
        for name in sorted(self.daemons.names, key=lambda name: name.startswith("m")):  # munged and mariadbd last
            self.daemons.end(name)

    def states(self) -> list[str]:
        """The state of each node, as sinfo says it."""
        return self.ask("sinfo", "--noheader", "--Node", "--format=%T").split()

    def start_node(self, node: str) -> None:
        """Start the daemon of one node."""
        (self.directory / f"spool.{node}").mkdir(exist_ok=True)
        self.daemons.start("slurmd", "-D", "-N", node, name=f"slurmd.{node}", **{GUARDED: node})

    def fail_node(self, node: str) -> None:
        """A node without power: its daemon and the processes of its jobs are gone at once, and Slurm hears of it."""
        pid = self.daemons.pid(f"slurmd.{node}")
        if pid is not None:
            os.kill(pid, signal.SIGKILL)
        self.kill_jobs(node)
        self.ask("scontrol", "update", f"NodeName={node}", "State=DOWN", "Reason=no power")

    def repair_node(self, node: str) -> None:
        """A node that failed is back: when its daemon has told Slurm, jobs start there again (ReturnToService)."""
        self.start_node(node)
        ask = ["sinfo", "--noheader", "--Node", f"--nodes={node}", "--states=idle,mixed,allocated,completing"]
        self.daemons.wait(node, lambda: node in self.ask(*ask))

    def kill_jobs(self, node: str | None = None) -> None:
        """Kill the processes of the cluster's jobs, of one node's where it is named."""
        for pid in self._of_jobs({node} if node else set(self.node_names)):
            with no_such_process_is_fine():
                os.kill(pid, signal.SIGKILL)

    def _of_jobs(self, nodes: set[str]) -> Iterator[int]:
        """The jobs' processes, known by their environment, and those that guard them (slurmstepd)."""
        for entry in Path("/proc").iterdir():
            try:
                name = (entry / "comm").read_text() if entry.name.isdigit() else ""
                given = dict(pair.split("=", 1) for pair in (entry / "environ").read_text().split("\0") if "=" in pair)
            except (OSError, ValueError):
                continue
            guards = name.startswith("slurmstepd") and given.get(GUARDED) in nodes
            works = "SLURM_JOB_ID" in given and given.get("SLURMD_NODENAME") in nodes
            if given.get("SLURM_CONF") == str(self.conf) and (guards or works):
                yield int(entry.name)

    def _start_munge(self) -> None:
        key = self.directory / "munge.key"
        if not key.exists():
            key.touch(mode=0o600)
            key.write_bytes(secrets.token_bytes(128))
        files = {"key-file": "key", "socket": "socket", "log-file": "log", "seed-file": "seed", "pid-file": "pid"}
        options = [f"--{option}={self.directory}/munge.{ending}" for option, ending in files.items()]
        self.daemons.start("munged", "--foreground", "--force", "--num-threads=2", *options)
        ask = ["munge", f"--socket={self.directory}/munge.socket", "--no-input"]
        self.daemons.wait("munge", lambda: subprocess.run(ask, capture_output=True, timeout=5).returncode == 0)

    def _start_accounting(self) -> None:
        """MariaDB on a socket alone, and slurmdbd."""
        data, database_socket = self.directory / "database", self.directory / "mariadb.socket"
        common = ["--no-defaults", f"--datadir={data}", f"--user={user()}"]
        if not data.exists():
            install = ["mariadb-install-db", *common, "--auth-root-authentication-method=normal", "--skip-test-db"]
            done = subprocess.run(install, capture_output=True, text=True, stdin=subprocess.DEVNULL)
            if done.returncode:
                raise RuntimeError(f"the database could not be made: {done.stderr or done.stdout}")
        self.daemons.start(
            "mariadbd",
            *common,
            "--skip-networking",
            f"--socket={database_socket}",
            f"--pid-file={self.directory}/mariadb.pid",
            "--innodb-buffer-pool-size=32M",
            "--innodb-log-file-size=8M",
            "--innodb-flush-log-at-trx-commit=0",
            "--innodb-lock-wait-timeout=900",
            "--performance-schema=OFF",
        )
        grant = "grant all on accounting.* to slurm@localhost identified by 'slurm'"
        account = f"create database if not exists accounting; {grant}"
        ask = ["mariadb", "--no-defaults", f"--socket={database_socket}", "--user=root", "--execute", account]
        self.daemons.wait("the database", lambda: subprocess.run(ask, capture_output=True, timeout=20).returncode == 0)
        self.write_slurmdbd()
        self.write()  # slurmdbd reads the name of the socket from it
        self.daemons.start("slurmdbd", "-D", MYSQL_UNIX_PORT=str(database_socket))
        for entity in (["cluster", "tests"], ["account", "lab", "cluster=tests"], ["user", user(), "account=lab"]):
            self.daemons.wait("slurmdbd", lambda entity=entity: self._adds(entity))

    def _adds(self, entity: list[str]) -> bool:
        done = subprocess.run(
            ["sacctmgr", "--immediate", "add", *entity],
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=20,
            stdin=subprocess.DEVNULL,
        )
        return done.returncode == 0 or "Nothing new added" in done.stdout + done.stderr


@contextmanager
def running(cluster: Cluster) -> Iterator[Cluster]:
    """A cluster that is stopped at the end, whatever happens."""
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.stop()


def main() -> int:
    parser = argparse.ArgumentParser(description="A real Slurm on this host, in a folder of its own.")
    parser.add_argument("command", choices=["start", "stop"])
    parser.add_argument("directory", type=Path)
    parser.add_argument("--accounting", action="store_true", help="with slurmdbd and MariaDB")
    options = parser.parse_args()
    cluster = Cluster(options.directory.absolute(), options.accounting)
    if options.command == "stop":
        cluster.stop()
        return 0
    if missing := missing_packages(options.accounting):
        print(f"apt-get install -y --no-install-recommends {' '.join(missing)}", file=sys.stderr)
        return 2
    cluster.start()
    print(f"export SLURM_CONF={cluster.conf}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
