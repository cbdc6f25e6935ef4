"""A real Slurm on this host, all of it in one folder: several nodes with fake GPUs, with accounting or without.

    python tests/slurm/cluster.py start DIR [--accounting]      prints the SLURM_CONF to export
    python tests/slurm/cluster.py stop DIR

Needs Debian's slurm-wlm and munge, with accounting also slurmdbd and mariadb-server; no systemd, no cgroups, nothing in
/etc or /var. Every daemon runs in the foreground under this module's care: its pid and start time stand in
DIR/daemons/NAME.json, and `stop` ends those and the processes of the cluster's own jobs, nothing else. Several clusters
can run at once. A node's name is no host name: Slurm knows its address (NodeAddr), a resolver does not.
"""

import argparse
import json
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

PROGRAMS = {"slurm-wlm": ("slurmctld", "slurmd", "sbatch"), "munge": ("munged",)}
ACCOUNTING_PROGRAMS = {"slurmdbd": ("slurmdbd",), "mariadb-server": ("mariadbd", "mariadb-install-db")}

SLURM_CONF = """\
ClusterName=tests
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={port}
SlurmUser={user}
SlurmdUser={user}
AuthType=auth/munge
# a job that is queued again waits until its credential has expired, two minutes by default
AuthInfo=socket={directory}/munge.socket,cred_expire=5
CredType=cred/munge
MpiDefault=none
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SwitchType=switch/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU_Memory
SchedulerType=sched/backfill
SchedulerParameters=batch_sched_delay=0,sched_interval=1,bf_interval=1,sched_min_interval=0
StateSaveLocation={directory}/state
SlurmdSpoolDir={directory}/spool.%n
SlurmctldPidFile={directory}/slurmctld.pid
SlurmdPidFile={directory}/slurmd.%n.pid
SlurmctldLogFile={directory}/slurmctld.log
SlurmdLogFile={directory}/slurmd.%n.log
SlurmdParameters=config_overrides
ReturnToService=2
JobRequeue=1
MinJobAge=300
MailProg=/bin/true
KillWait=3
SlurmdTimeout=60
SlurmctldTimeout=60
DefMemPerCPU=512
GresTypes=gpu
{accounting}
{nodes}
PartitionName=main Nodes={main} Default=YES MaxTime=INFINITE State=UP
PartitionName=fragile Nodes={fragile} MaxTime=INFINITE State=UP
"""

WITHOUT_ACCOUNTING = """\
AccountingStorageType=accounting_storage/none
JobAcctGatherType=jobacct_gather/none
"""

# without cgroups, sampling is what enforces a job's memory limit
WITH_ACCOUNTING = """\
AccountingStorageType=accounting_storage/slurmdbd
AccountingStorageHost=127.0.0.1
AccountingStoragePort={port}
AccountingStoragePass={directory}/munge.socket
AccountingStorageTRES=gres/gpu
JobAcctGatherType=jobacct_gather/linux
JobAcctGatherFrequency=task=1
JobAcctGatherParams=OverMemoryKill
"""

SLURMDBD_CONF = """\
AuthType=auth/munge
AuthInfo=socket={directory}/munge.socket
DbdHost={host}
DbdAddr=127.0.0.1
DbdPort={port}
SlurmUser={user}
StorageType=accounting_storage/mysql
StorageHost=localhost
StorageUser=slurm
StoragePass=slurm
StorageLoc=accounting
LogFile={directory}/slurmdbd.log
PidFile={directory}/slurmdbd.pid
"""

NODE = "NodeName={name} NodeHostname={host} NodeAddr=127.0.0.1 Port={port} CPUs={cpus} RealMemory={memory} {gres}"


GUARDED = "SLURMD_OF_NODE"
"""Set for a node's daemon, whose slurmstepd processes inherit it."""


def missing_packages(accounting: bool) -> list[str]:
    """Debian packages that a cluster needs and this machine lacks."""
    wanted = PROGRAMS | (ACCOUNTING_PROGRAMS if accounting else {})
    return [package for package, programs in wanted.items() if not all(map(_program, programs))]


def _program(name: str) -> str | None:
    return shutil.which(name, path=f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin")


@dataclass(frozen=True)
class Cluster:
    """A cluster, known by its folder.

    Attributes:
        directory: absolute, short (a Unix socket's path lies in it) and writable by its owner alone.
        nodes: of the partition `main`: n1, n2, ...
        fragile: of the partition `fragile`, f1, f2, ..., for those who let nodes fail.
        gpus, cpus, memory_mb: what each node is said to have, whatever this host has.
    """

    directory: Path
    accounting: bool = False
    nodes: int = 2
    fragile: int = 3
    gpus: int = 2
    cpus: int = 8
    memory_mb: int = 6000

    @property
    def conf(self) -> Path:
        """What SLURM_CONF must name to speak with this cluster."""
        return self.directory / "slurm.conf"

    @property
    def environment(self) -> dict[str, str]:
        """This process's environment, without Slurm's variables, pointing at the cluster."""
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("SLURM_", "SBATCH_"))}
        return {**kept, "SLURM_CONF": str(self.conf)}

    def ask(self, *command: str, seconds: float = 10.0) -> str:
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
        (self.directory / "daemons").mkdir(exist_ok=True)
        self._start_munge()
        if self.accounting:
            self._start_accounting()
        self._write_conf()
        self._daemon("slurmctld", "-D", "-i")
        for node in self.node_names:
            self.start_node(node)
        self._wait("the nodes", lambda: self.states() == ["idle"] * len(self.node_names))

    def stop(self) -> None:
        """End the cluster's jobs and its daemons."""
        if self._process("slurmctld"):
            for pattern in (["--state=PENDING"], []):
                subprocess.run(
                    ["scancel", "--full", "--signal=KILL" if not pattern else "--quiet", *pattern, f"--user={_user()}"],
                    env=self.environment,
                    capture_output=True,
                    timeout=20,
                )
        self.kill_jobs()
        names = sorted(path.stem for path in (self.directory / "daemons").glob("*.json"))
        for name in sorted(names, key=lambda name: (name.startswith("m"), name)):  # munged and mariadbd last
            self._end(name)

    @property
    def node_names(self) -> list[str]:
        """The names of all nodes."""
        return self._names("n", self.nodes) + self._names("f", self.fragile)

    @staticmethod
    def _names(letter: str, number: int) -> list[str]:
        return [f"{letter}{count + 1}" for count in range(number)]

    def states(self) -> list[str]:
        """The state of each node, as sinfo says it."""
        return self.ask("sinfo", "--noheader", "--Node", "--format=%T").split()

    def start_node(self, node: str) -> None:
        """Start the daemon of one node."""
        (self.directory / f"spool.{node}").mkdir(exist_ok=True)
        self._daemon("slurmd", "-D", "-N", node, name=f"slurmd.{node}", **{GUARDED: node})

    def fail_node(self, node: str) -> None:
        """A node without power: its daemon and the processes of its jobs are gone at once, and Slurm hears of it."""
        pid = self._process(f"slurmd.{node}")
        if pid is not None:
            os.kill(pid, signal.SIGKILL)
        self.kill_jobs(node)
        self.ask("scontrol", "update", f"NodeName={node}", "State=DOWN", "Reason=no power")

    def repair_node(self, node: str) -> None:
        """A node that failed is back: when its daemon has told Slurm, jobs start there again (ReturnToService)."""
        self.start_node(node)
        ask = ["sinfo", "--noheader", "--Node", f"--nodes={node}", "--states=idle,mixed,allocated,completing"]
        self._wait(node, lambda: node in self.ask(*ask))

    def kill_jobs(self, node: str | None = None) -> None:
        """Kill the processes of the cluster's jobs, of one node's where it is named."""
        for pid in self._of_jobs({node} if node else set(self.node_names)):
            with _no_such_process_is_fine():
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
        self._daemon("munged", "--foreground", "--force", "--num-threads=2", *options)
        ask = ["munge", f"--socket={self.directory}/munge.socket", "--no-input"]
        self._wait("munge", lambda: subprocess.run(ask, capture_output=True, timeout=5).returncode == 0)

    def _start_accounting(self) -> None:
        """MariaDB on a socket alone, and slurmdbd."""
        data, database_socket = self.directory / "database", self.directory / "mariadb.socket"
        common = ["--no-defaults", f"--datadir={data}", f"--user={_user()}"]
        if not data.exists():
            install = ["mariadb-install-db", *common, "--auth-root-authentication-method=normal", "--skip-test-db"]
            done = subprocess.run(install, capture_output=True, text=True, stdin=subprocess.DEVNULL)
            if done.returncode:
                raise RuntimeError(f"the database could not be made: {done.stderr or done.stdout}")
        self._daemon(
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
        self._wait("the database", lambda: subprocess.run(ask, capture_output=True, timeout=20).returncode == 0)
        port = self.directory / "slurmdbd.port"
        port.write_text(str(_free_ports(1)[0]))
        conf = self.directory / "slurmdbd.conf"
        conf.touch(mode=0o600)
        conf.write_text(
            SLURMDBD_CONF.format(directory=self.directory, host=_host(), user=_user(), port=port.read_text())
        )
        self._write_conf()  # slurmdbd reads the name of the socket from it
        self._daemon("slurmdbd", "-D", MYSQL_UNIX_PORT=str(database_socket))
        for entity in (["cluster", "tests"], ["account", "lab", "cluster=tests"], ["user", _user(), "account=lab"]):
            self._wait("slurmdbd", lambda entity=entity: self._adds(entity))

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

    def _write_conf(self) -> None:
        if self.conf.exists() and (self.directory / "gres.conf").exists():
            return
        port, *ports = _free_ports(1 + len(self.node_names))
        gres = f"Gres=gpu:fake:{self.gpus}" if self.gpus else ""
        nodes = [
            NODE.format(name=name, host=_host(), port=port, cpus=self.cpus, memory=self.memory_mb, gres=gres)
            for name, port in zip(self.node_names, ports, strict=True)
        ]
        accounting = WITHOUT_ACCOUNTING
        if self.accounting:
            port_of_slurmdbd = (self.directory / "slurmdbd.port").read_text()
            accounting = WITH_ACCOUNTING.format(directory=self.directory, port=port_of_slurmdbd)
        text = SLURM_CONF.format(
            directory=self.directory,
            host=_host(),
            user=_user(),
            port=port,
            accounting=accounting,
            nodes="\n".join(nodes),
            main=",".join(self._names("n", self.nodes)),
            fragile=",".join(self._names("f", self.fragile)),
        )
        files = [f"NodeName={name} Name=gpu Type=fake File=/dev/tty[0-{self.gpus - 1}]" for name in self.node_names]
        (self.directory / "gres.conf").write_text("\n".join(files if self.gpus else []) + "\n")
        (self.directory / "state").mkdir(exist_ok=True)
        self.conf.write_text(text)

    def _daemon(self, program: str, *options: str, name: str | None = None, **variables: str) -> None:
        name = name or program
        if self._process(name):
            return
        path = _program(program)
        if path is None:
            raise RuntimeError(f"{program} is not installed")
        environment = {**self.environment, "PATH": f"{os.environ['PATH']}:/usr/sbin:/sbin", **variables}
        with (self.directory / f"{name}.out").open("ab") as out:
            process = subprocess.Popen(
                [path, *options],
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                start_new_session=True,
                cwd=self.directory,
            )
        entry = {"pid": process.pid, "start_ticks": _start_ticks(process.pid)}
        (self.directory / "daemons" / f"{name}.json").write_text(json.dumps(entry))

    def _recorded(self, name: str) -> tuple[int, int | None]:
        try:
            entry = json.loads((self.directory / "daemons" / f"{name}.json").read_text())
        except FileNotFoundError:
            return (0, None)
        return entry["pid"], entry["start_ticks"]

    def _process(self, name: str) -> int | None:
        """The pid of a daemon that this cluster started and that still runs."""
        pid, ticks = self._recorded(name)
        return pid if pid and ticks is not None and _start_ticks(pid) == ticks else None

    def _end(self, name: str) -> None:
        pid = self._process(name)
        if pid is not None:
            for number, patience in ((signal.SIGTERM, 10.0), (signal.SIGKILL, 5.0)):
                with _no_such_process_is_fine():
                    os.kill(pid, number)
                deadline = time.monotonic() + patience
                while self._process(name) is not None and time.monotonic() < deadline:
                    _reap(pid)
                    time.sleep(0.05)
                if self._process(name) is None:
                    break
        (self.directory / "daemons" / f"{name}.json").unlink(missing_ok=True)

    def _wait(self, what: str, ready: Callable[[], bool], seconds: float = 60.0) -> None:
        deadline = time.monotonic() + seconds
        while True:
            try:
                if ready():
                    return
                fault = ""
            except (RuntimeError, subprocess.TimeoutExpired) as error:
                fault = f": {error}"
            if time.monotonic() > deadline:
                raise RuntimeError(f"{what} did not come up in {seconds:.0f} s{fault}\n{self.logs()}")
            time.sleep(0.1)

    def logs(self, lines: int = 15) -> str:
        """The last lines of every daemon's log."""
        tails = []
        for path in sorted([*self.directory.glob("*.log"), *self.directory.glob("*.out")]):
            tail = path.read_text(errors="replace").splitlines()[-lines:]
            tails.append("\n".join([f"--- {path.name}", *tail]))
        return "\n".join(tails)


@contextmanager
def running(cluster: Cluster) -> Iterator[Cluster]:
    """A cluster that is stopped at the end, whatever happens."""
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.stop()


@contextmanager
def _no_such_process_is_fine() -> Iterator[None]:
    try:
        yield
    except ProcessLookupError:
        pass


def _reap(pid: int) -> None:
    try:
        os.waitpid(pid, os.WNOHANG)
    except ChildProcessError:
        pass  # it was started by another process, as by the command `start`


def _start_ticks(pid: int) -> int | None:
    """When a process began, which tells it from another with its pid; None when it has ended."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return None if fields[0] in "ZX" else int(fields[19])


def _free_ports(number: int) -> list[int]:
    probes = [socket.socket() for _ in range(number)]
    try:
        for probe in probes:
            probe.bind(("127.0.0.1", 0))
        return [probe.getsockname()[1] for probe in probes]
    finally:
        for probe in probes:
            probe.close()


def _host() -> str:
    return socket.gethostname().partition(".")[0]


def _user() -> str:
    import pwd

    return pwd.getpwuid(os.getuid()).pw_name


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
