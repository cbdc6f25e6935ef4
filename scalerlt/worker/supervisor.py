"""The supervisor: runs one cell in processes of its own, and leaves one record whatever happens to them.

It never imports torch.
"""

import json
import os
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal

from scalerlt.errors import UserError
from scalerlt.measure.environment import environment, too_few_cpus
from scalerlt.measure.load import crowded
from scalerlt.records.base import UnwritableFile, finite, now, write_atomically
from scalerlt.records.cell import FrozenCell
from scalerlt.records.lease import Lease
from scalerlt.records.provenance import another_code, provenance
from scalerlt.records.queue import Asked
from scalerlt.records.record import Record
from scalerlt.records.store import ENVIRONMENT_FILE, LEASE_FILE, RECORD_FILE, CellDirectory
from scalerlt.schema import Cell
from scalerlt.schema.frozen import load_frozen
from scalerlt.schema.parallel import SEVERAL_NODES
from scalerlt.worker.fork_server import ForkServer, preloaded
from scalerlt.worker.mirror import Mirror, mirror_of
from scalerlt.worker.nodes import Leader
from scalerlt.worker.processes import Raised
from scalerlt.worker.ranks import jobs_of, meeting_place
from scalerlt.worker.shortfall import of_hosts
from scalerlt.worker.starting import Spawner, Starter
from scalerlt.worker.verdict import INTERRUPTED, Outcome, Rank, of_error
from scalerlt.worker.watch import Flag, Glimpse, Preemption, Watch

__all__ = ["ForkServer", "Glimpse", "NotRecorded", "Placement", "Raised", "Supervisor", "crowded", "preloaded"]

NEEDED = ("torch", "safetensors")
"""Packages of the extra that cells are run with; planning, status and report do without."""


class NotRecorded(UnwritableFile):
    """An attempt is over, and its record cannot be written; what it had measured is kept. The message says both."""


@dataclass(frozen=True)
class Placement:
    """Where in a Slurm job an attempt runs.

    Attributes:
        environment: variables that its processes have beside the job's own.
        slurm: what the record says of the job.
        notes: what a reader of the numbers should know of it.
        asked: what each of its nodes was asked for.
        submitted: the code that was submitted, as records.provenance tells it.
        beside: the cells that the job has run meanwhile; asked when the attempt has ended.
    """

    environment: Mapping[str, str] = field(default_factory=dict)
    slurm: Mapping[str, Any] = field(default_factory=dict)
    notes: Sequence[str] = ()
    asked: Asked = field(default_factory=Asked)
    submitted: Mapping[str, Any] = field(default_factory=dict)
    beside: Callable[[], list[str]] = list


NOWHERE = Placement()


class Supervisor:
    """Runs cells, one after another.

    Args:
        server: forks the children of CPU cells; without one every cell gets a fresh interpreter.
        nodes: has the ranks of cells of several nodes started on the others.

    Raises:
        UserError: a package that every cell needs is not installed.
    """

    def __init__(self, server: ForkServer | None = None, nodes: Leader | None = None) -> None:
        if missing := [name for name in NEEDED if find_spec(name) is None]:
            raise UserError(f"no cell can run here without {' and '.join(missing)}: pip install 'scalerlt[torch]'")
        self._server = server
        self._nodes = nodes
        self._spawner = Spawner()

    def run(
        self,
        cell_file: Path,
        *,
        plan: str | None = None,
        order: int | None = None,
        bundle: str | None = None,
        seen: int | None = None,
        stop: Flag | None = None,
        preempt: Preemption | None = None,
        placement: Placement = NOWHERE,
        on_event: Callable[[Glimpse], None] | None = None,
    ) -> Record:
        """Run one attempt at a cell and write its record.

        Args:
            cell_file: a frozen `cell.yaml`; attempts are made beside it.
            plan, order, bundle: noted in the record.
            seen: number of the newest attempt when it was decided to run the cell (see CellDirectory.claim).
            stop: when set, the running processes are killed and the record says `interrupted`.
            preempt: when set, the running processes are asked to save their state, and it says what is recorded.
            placement: where in a Slurm job the attempt runs.
            on_event: called with a Glimpse about five times a second; must return at once.

        Raises:
            UnreadableDocument: `cell_file` is no frozen cell, or none any more. Nothing was started.
            CellClaimed: another process runs the cell, or has since it was decided to. Nothing was started.
            UserError: this machine can have no fork server (the message says why). Nothing was started.
            UnwritableFile: no attempt can be made here. Nothing was started.
            NotRecorded: the record cannot be written.
        """
        cell_file = cell_file.absolute()
        frozen, cell = load_frozen(cell_file)
        if self._server is not None:
            self._server.ensure()
        under = {"plan": plan, "order": order, "bundle": bundle}
        attempt = _Attempt.claim(cell_file, frozen, under, placement, seen)
        try:
            starter = self._starter(cell)
            attempt.start = starter.kind
            attempt.collect_facts(cell, provenance() if starter is not self._server else self._server.provenance)
            flags = [flag for flag in (stop, preempt) if flag is not None]
            attempt.mirror = mirror_of(cell, attempt.path, lambda: any(flag.is_set() for flag in flags))
            watch = Watch(attempt.path, starter, attempt.lease, cell.resources.timeout_s, stop, preempt, on_event)
            attempt.ranks = watch.ranks
            first = self._nodes.hosts[0] if self._nodes is not None and cell.parallel.nodes > 1 else None
            try:
                with meeting_place(cell, first) as meeting:
                    outcome = watch.run(jobs_of(cell, cell_file, attempt.path, meeting, placement.environment))
            finally:
                attempt.add_hosts(cell, starter.environments())
            if starter is self._server and not self._server.is_alive:
                attempt.notes.append("the fork server died, and the cell with it")
        except KeyboardInterrupt:
            attempt.record(INTERRUPTED)
            raise
        except Exception as error:
            outcome = of_error(error)
        return attempt.record(outcome)

    def _starter(self, cell: Cell) -> Starter:
        if cell.parallel.nodes > 1:
            if self._nodes is None:
                raise UserError(f"parallel.nodes={cell.parallel.nodes} needs as many nodes; {SEVERAL_NODES}")
            return self._nodes.starter(cell.parallel.nodes)
        # CUDA does not survive a fork, and import-time variables come too late in one
        if self._server is None or cell.device.type != "cpu" or cell.device.env:
            return self._spawner
        return self._server


@dataclass
class _Attempt:
    """One attempt: claimed, run by a Watch, recorded."""

    cell_file: Path
    frozen: FrozenCell
    under: dict[str, Any]
    """Plan, order and bundle."""
    number: int
    path: Path
    lease: Lease
    clock: float
    placement: Placement
    start: Literal["fork", "spawn"] | None = None
    facts: dict[str, Any] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    ranks: list[Rank] = field(default_factory=list)
    mirror: Mirror | None = None

    @classmethod
    def claim(
        cls, cell_file: Path, frozen: FrozenCell, under: dict[str, Any], placement: Placement, seen: int | None
    ) -> "_Attempt":
        clock = time.monotonic()
        number, path = CellDirectory(cell_file.parent).claim(seen)
        lease = Lease.of_this_process(os.environ.get("SLURM_JOB_ID"))
        try:
            lease.write(path / LEASE_FILE)
        except UnwritableFile:
            with suppress(OSError):  # nothing was tried
                path.rmdir()
            raise
        return cls(cell_file, frozen, under, number, path, lease, clock, placement)

    def collect_facts(self, cell: Cell, code: dict[str, Any]) -> None:
        """Note on what machine the attempt runs, and what code, in environment.json too."""
        here = environment(self.placement.environment)
        self.facts = {"environment": here, "provenance": code}
        found = (
            too_few_cpus(len(here["affinity"]), cell.device.threads, cell.parallel.ranks_per_node),
            another_code(code, self.placement.submitted),
        )
        self.notes = [*self.placement.notes, *filter(None, found)]
        write_atomically(self.path / ENVIRONMENT_FILE, json.dumps(finite(self.facts), indent=1) + "\n")

    def add_hosts(self, cell: Cell, hosts: dict[str, dict[str, Any]]) -> None:
        """Note what the other hosts of its ranks have told of themselves."""
        self.facts["hosts"] = hosts
        self.notes += of_hosts(hosts, cell, self.placement.asked)

    def record(self, outcome: Outcome) -> Record:
        """Write record.json, and remove the journals that it was made from; a mirror may delay both by seconds."""
        ended, clock = now(), time.monotonic()
        if self.mirror is not None:
            self.notes += self.mirror.ready()
        seconds = [rank.journal.ending.experiment_seconds for rank in self.ranks if rank.journal.ending]
        measured = [value for value in seconds if value is not None]
        first = self.ranks[0].journal if self.ranks else None
        record = Record(
            sweep=self.frozen.sweep,
            cell_id=self.frozen.cell_id,
            axes=self.frozen.axes,
            attempt=self.number,
            continues=first.continues if first else None,
            verdict=outcome.verdict,
            reason=outcome.reason,
            passes=first.passes if first else [],
            metrics=first.metrics if first else {},
            notes=list(dict.fromkeys(self.notes + [note for rank in self.ranks for note in rank.journal.notes])),
            failure=outcome.failure,
            **self.under,
            beside=self.placement.beside(),
            start=self.start,
            started=self.lease.started,
            ended=ended,
            overhead_seconds=clock - self.clock - max(measured) if measured else None,
            inputs={key: file.sha256 for key, file in self.frozen.inputs.items()},
            **self.facts,
            slurm=dict(self.placement.slurm),
            ranks=[rank.report() for rank in self.ranks],
        )
        try:
            self._write(record)
        finally:
            if self.mirror is not None:
                self.mirror.close()
        return record

    def _write(self, record: Record) -> None:
        try:
            record.write(self.path / RECORD_FILE)
        except UnwritableFile as fault:
            reason = f" ({record.reason})" if record.reason else ""
            raise NotRecorded(f"{fault}; the attempt ended {record.verdict}{reason}") from fault
        for rank in self.ranks:
            with suppress(OSError):  # whoever puts the sweep in order removes it
                rank.journal.path.unlink()
