"""What is written into a cluster's folder before its daemons start: slurm.conf, gres.conf and slurmdbd.conf."""

import os
import pwd
import socket
from dataclasses import dataclass
from pathlib import Path

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


@dataclass(frozen=True)
class Configuration:
    """A cluster as its files describe it.

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
    cpus: int = max(8, 2 * (os.cpu_count() or 1))
    memory_mb: int = 6000

    @property
    def conf(self) -> Path:
        """What SLURM_CONF must name to speak with this cluster."""
        return self.directory / "slurm.conf"

    @property
    def node_names(self) -> list[str]:
        """The names of all nodes."""
        return _names("n", self.nodes) + _names("f", self.fragile)

    def write(self) -> None:
        """Write slurm.conf, with ports that are free now, and gres.conf; once, for another start finds them again."""
        if self.conf.exists() and (self.directory / "gres.conf").exists():
            return
        port, *ports = _free_ports(1 + len(self.node_names))
        gres = f"Gres=gpu:fake:{self.gpus}" if self.gpus else ""
        nodes = [
            NODE.format(name=name, host=host(), port=port, cpus=self.cpus, memory=self.memory_mb, gres=gres)
            for name, port in zip(self.node_names, ports, strict=True)
        ]
        accounting = WITHOUT_ACCOUNTING
        if self.accounting:
            port_of_slurmdbd = (self.directory / "slurmdbd.port").read_text()
            accounting = WITH_ACCOUNTING.format(directory=self.directory, port=port_of_slurmdbd)
        text = SLURM_CONF.format(
            directory=self.directory,
            host=host(),
            user=user(),
            port=port,
            accounting=accounting,
            nodes="\n".join(nodes),
            main=",".join(_names("n", self.nodes)),
            fragile=",".join(_names("f", self.fragile)),
        )
        files = [f"NodeName={name} Name=gpu Type=fake File=/dev/tty[0-{self.gpus - 1}]" for name in self.node_names]
        (self.directory / "gres.conf").write_text("\n".join(files if self.gpus else []) + "\n")
        (self.directory / "state").mkdir(exist_ok=True)
        self.conf.write_text(text)

    def write_slurmdbd(self) -> None:
        """Write slurmdbd.conf, with a port that is free now."""
        port = self.directory / "slurmdbd.port"
        port.write_text(str(_free_ports(1)[0]))
        conf = self.directory / "slurmdbd.conf"
        conf.touch(mode=0o600)
        conf.write_text(SLURMDBD_CONF.format(directory=self.directory, host=host(), user=user(), port=port.read_text()))


def host() -> str:
    """This host's short name."""
    return socket.gethostname().partition(".")[0]


def user() -> str:
    """Whose daemons they are."""
    return pwd.getpwuid(os.getuid()).pw_name


def _names(letter: str, number: int) -> list[str]:
    return [f"{letter}{count + 1}" for count in range(number)]


def _free_ports(number: int) -> list[int]:
    probes = [socket.socket() for _ in range(number)]
    try:
        for probe in probes:
            probe.bind(("127.0.0.1", 0))
        return [probe.getsockname()[1] for probe in probes]
    finally:
        for probe in probes:
            probe.close()
