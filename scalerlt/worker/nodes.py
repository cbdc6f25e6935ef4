"""Cells whose ranks are on several nodes: one task per node, of which the first leads.

The leader is a supervisor like any other: it claims attempts, watches all ranks and writes the one record. The tasks on
the other nodes follow (`worker.follower`): they start their ranks, tell of them, and end them when they are told to or
the leader is gone. Both talk by documents in a folder that all nodes see (`worker.beat`).

In a job of Slurm of several nodes, each of which runs one task of this process:

    place = Place.in_slurm()
    folder = place.folder(submission / "nodes")
    if not place.leads:
        return follow(folder, place)
    with Leader(folder, place.hosts) as leader:
        Supervisor(nodes=leader).run(...)
"""

import os
import re
import signal
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from pydantic import Field

from scalerlt.errors import UserError
from scalerlt.records.base import Part
from scalerlt.worker.beat import Beat, Heard, Message
from scalerlt.worker.starting import Exit, Job, Sight, Spawner

ORDERS_FILE = "orders.json"
REPORT_FILE = "report-{node}.json"
_NUMBERS = r"\d+(?:-\d+)?"


class Sent(Part):
    """A signal to a rank; to its first process alone, or to all of its session."""

    rank: int
    number: int
    leader_only: bool


class Orders(Message):
    """What the leader wants of the other nodes."""

    attempt: int = 0
    """Counts the attempts that have ranks on other nodes; what belongs to an earlier one is to be ended."""
    jobs: list[dict[str, Any]] = Field(default_factory=list)
    """Each a `starting.Job`."""
    signals: list[Sent] = Field(default_factory=list)
    """In the order of sending."""
    over: bool = False
    """Whether there will be no more."""


class RankNews(Part):
    """What a node tells of one of its ranks."""

    rank: int
    pid: int | None = None
    rss_bytes: int = 0
    rss_peak_bytes: int = 0
    ended: str | None = None
    exit_code: int | None = None
    signal: int | None = None
    kernel_killed: bool = False
    fault: str | None = None
    """Why it could not be started."""


class Report(Message):
    """What another node tells the leader."""

    attempt: int = 0
    ranks: list[RankNews] = Field(default_factory=list)
    environment: dict[str, Any] = Field(default_factory=dict)
    """The node as the attempt found it (measure.environment)."""


@dataclass(frozen=True)
class Place:
    """Where among the tasks of its job this process is.

    Attributes:
        node: index of its node among the hosts.
        hosts: the job's nodes, as Slurm names them.
        job: a name that no other run of this or another job has.
    """

    node: int
    hosts: tuple[str, ...]
    job: str

    @property
    def leads(self) -> bool:
        """Whether this is the task that claims cells and writes records."""
        return self.node == 0

    def folder(self, base: Path) -> Path:
        """Where the tasks of this job talk."""
        return base / self.job

    @classmethod
    def in_slurm(cls, variables: Mapping[str, str] = os.environ) -> "Place":
        """The place that Slurm's variables tell of.

        Raises:
            UserError: they tell of none, or of more than one task on a node.
        """
        job = variables.get("SLURM_JOB_ID")
        listed = variables.get("SLURM_STEP_NODELIST") or variables.get("SLURM_JOB_NODELIST")
        if not job or not listed:
            raise UserError("SLURM_JOB_ID and SLURM_JOB_NODELIST are not set: this is no task of a Slurm job")
        if int(variables.get("SLURM_LOCALID") or 0):
            raise UserError("this job has several tasks on a node, and ranks need one; set ntasks-per-node to 1")
        hosts = hosts_of(listed)
        node = int(variables.get("SLURM_NODEID") or 0)
        if node >= len(hosts):
            raise UserError(f"SLURM_NODEID={node} is not among the {len(hosts)} nodes of {listed}")
        return cls(node, tuple(hosts), f"{job}.{variables.get('SLURM_RESTART_COUNT') or 0}")


class Leader:
    """The first node's end: has ranks started on the others.

    Args:
        folder: seen by all nodes, and of this job alone; made when there is none.
        hosts: all nodes, this one first.
    """

    def __init__(self, folder: Path, hosts: Sequence[str]) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.hosts = tuple(hosts)
        self._orders = Orders()
        self._beat = Beat(folder / ORDERS_FILE, lambda: self._orders)
        self._heard = {
            node: Heard(folder / REPORT_FILE.format(node=node), Report, self._beat) for node in range(1, len(hosts))
        }

    def __enter__(self) -> "Leader":
        return self

    def __exit__(self, *_: object) -> None:
        """Tell the others that there will be no more."""
        self._order(jobs=[], signals=[], over=True)
        self._beat.close()

    def starter(self, nodes: int) -> "EveryNode":
        """Starts the ranks of one attempt on the first so many nodes; those of the attempt before are ended.

        Raises:
            UserError: there are not so many.
        """
        if nodes > len(self.hosts):
            raise UserError(f"parallel.nodes={nodes} needs a job of as many nodes, and this one has {len(self.hosts)}")
        self._order(attempt=self._orders.attempt + 1, jobs=[], signals=[])
        return EveryNode(self)

    def start(self, job: Job) -> None:
        """Have another node start a rank."""
        if not any(other["node"] == job.node for other in self._orders.jobs):
            self._heard[job.node].expect()
        self._order(jobs=[*self._orders.jobs, job.plain()])

    def signal(self, rank: int, number: signal.Signals, leader_only: bool) -> None:
        """Have another node send a signal to a rank; a second one like it would change nothing."""
        sent = Sent(rank=rank, number=number, leader_only=leader_only)
        if sent not in self._orders.signals:
            self._order(signals=[*self._orders.signals, sent])

    def heard(self, node: int) -> tuple[Heard[Report], dict[int, RankNews]]:
        """What a node has told, and of which ranks of this attempt."""
        heard = self._heard[node]
        report = heard.latest
        current = report is not None and report.attempt == self._orders.attempt
        return heard, {news.rank: news for news in report.ranks} if report is not None and current else {}

    def environment(self, node: int) -> dict[str, Any]:
        """What a node has told of itself for this attempt; empty when it has told nothing."""
        report = self._heard[node].latest
        return report.environment if report is not None and report.attempt == self._orders.attempt else {}

    def _order(self, **changed: Any) -> None:
        self._orders = self._orders.model_copy(update=changed)  # a new one: the beat's thread reads it at any moment
        self._beat.tell()


class EveryNode:
    """Starts the ranks of one attempt, here and on other nodes. The handle of a rank elsewhere is minus its number."""

    kind: Literal["fork", "spawn"] = "spawn"

    def __init__(self, leader: Leader) -> None:
        self._leader = leader
        self._here = Spawner()
        self._elsewhere: dict[int, int] = {}
        """Node by rank, of those that were not reported as ended."""
        self._nodes: set[int] = set()
        """All others that were told to start a rank."""
        self._last: dict[int, Sight] = {}

    def start(self, job: Job) -> int:
        """Start a rank, or have it started; returns its handle."""
        if job.node == 0:
            return self._here.start(job)
        self._elsewhere[job.rank] = job.node
        self._nodes.add(job.node)
        self._last[job.rank] = Sight(self._leader.hosts[job.node], None, 0, 0)
        self._leader.start(job)
        return -job.rank

    def wait(self, seconds: float) -> list[Exit]:
        """Sleep until a rank here ends, at most so long; then see what the other nodes tell."""
        exits = self._here.wait(seconds)
        for node in set(self._elsewhere.values()):
            heard, _ = self._leader.heard(node)
            heard.look()
            exits += self._ends(node)
        return exits

    def signal(self, handle: int, number: signal.Signals, *, leader_only: bool = False) -> None:
        """Send a signal to a rank, or have it sent."""
        if handle > 0:
            self._here.signal(handle, number, leader_only=leader_only)
        else:
            self._leader.signal(-handle, number, leader_only)

    def look(self, handle: int) -> Sight:
        """A rank, as its node last told."""
        if handle > 0:
            return self._here.look(handle)._replace(host=self._leader.hosts[0])
        return self._last[-handle]

    def heard_from_all(self, since: float) -> bool:
        """Whether each other node that has ranks has told of them since a moment of the monotonic clock."""
        return all(self._leader.heard(node)[0].was_written_since(since) for node in set(self._elsewhere.values()))

    def environments(self) -> dict[str, dict[str, Any]]:
        """Of each other node that has or had ranks what it has told of itself."""
        told = {self._leader.hosts[node]: self._leader.environment(node) for node in sorted(self._nodes)}
        return {host: environment for host, environment in told.items() if environment}

    def _ends(self, node: int) -> list[Exit]:
        heard, news = self._leader.heard(node)
        silence = heard.silence
        exits = []
        for rank in [rank for rank, place in self._elsewhere.items() if place == node]:
            told = news.get(rank)
            if told is not None:
                self._last[rank] = Sight(self._leader.hosts[node], told.pid, told.rss_bytes, told.rss_peak_bytes)
            if told is not None and told.ended is not None:
                end = (told.exit_code, told.signal, told.ended, told.kernel_killed)
                exits.append(Exit(-rank, *end, fault=told.fault))
            elif silence is not None:
                exits.append(Exit(-rank, None, None, lost=f"its node {silence}"))
            else:
                continue
            del self._elsewhere[rank]
        return exits


def hosts_of(listed: str) -> list[str]:
    """The hosts of a node list: `n[1-2,5],m07` is n1, n2, n5 and m07.

    Raises:
        UserError: it is none.
    """
    word = rf"(?:[\w.-]|\[{_NUMBERS}(?:,{_NUMBERS})*\])+"
    if not re.fullmatch(rf"{word}(?:,{word})*", listed):
        raise UserError(f"{listed!r} is not a list of nodes such as n[1-2,5]")
    return [name for word in re.findall(word, listed) for name in _expanded(word)]


def _expanded(word: str) -> Iterator[str]:
    found = re.search(r"\[([\d,-]+)\]", word)
    if found is None:
        yield word
        return
    for part in found[1].split(","):
        first, _, last = part.partition("-")
        for number in range(int(first), int(last or first) + 1):
            yield from _expanded(f"{word[: found.start()]}{number:0{len(first)}d}{word[found.end() :]}")
