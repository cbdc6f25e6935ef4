"""The supervisor: runs one cell in processes of its own, and leaves one record whatever happens to them.

It never imports torch.
"""

import json
import os
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from scalerlt.measure.environment import environment, too_few_cpus
from scalerlt.records.base import finite, now, write_atomically
from scalerlt.records.cell import FrozenCell
from scalerlt.records.lease import Lease
from scalerlt.records.provenance import provenance
from scalerlt.records.record import Record
from scalerlt.records.store import ENVIRONMENT_FILE, LEASE_FILE, RECORD_FILE, CellDirectory
from scalerlt.schema import Cell, load_cell
from scalerlt.worker.fork_server import ForkServer
from scalerlt.worker.starting import Job, Spawner, Starter
from scalerlt.worker.verdict import INTERRUPTED, Outcome, Rank, of_error
from scalerlt.worker.watch import Flag, Glimpse, Watch

__all__ = ["ForkServer", "Glimpse", "Supervisor"]


class Supervisor:
    """Runs cells, one after another.

    Args:
        server: forks the children of CPU cells; without one every cell gets a fresh interpreter.
    """

    def __init__(self, server: ForkServer | None = None) -> None:
        self._server = server
        self._spawner = Spawner()

    def run(
        self,
        cell_file: Path,
        *,
        ranks: int = 1,
        plan: str | None = None,
        order: int | None = None,
        bundle: str | None = None,
        stop: Flag | None = None,
        on_event: Callable[[Glimpse], None] | None = None,
    ) -> Record:
        """Run one attempt at a cell and write its record.

        Args:
            cell_file: a frozen `cell.yaml`; attempts are made beside it.
            ranks: number of processes, all on this host.
            plan, order, bundle: noted in the record.
            stop: when set, the running processes are killed and the record says `interrupted`.
            on_event: called with a Glimpse about five times a second; must return at once.

        Raises:
            UnreadableDocument: `cell_file` is no frozen cell. Nothing was started.
            CellClaimed: another process runs the cell. Nothing was started.
            UserError: this machine can have no fork server (the message says why). Nothing was started.
        """
        cell_file = cell_file.absolute()
        frozen = FrozenCell.read(cell_file)
        if self._server is not None:
            self._server.ensure()
        attempt = _Attempt.claim(cell_file, frozen, {"plan": plan, "order": order, "bundle": bundle})
        try:
            cell = load_cell(frozen.config)
            starter = self._starter(cell)
            attempt.start = starter.kind
            attempt.collect_facts(cell, provenance() if starter is not self._server else self._server.provenance)
            watch = Watch(attempt.path, starter, attempt.lease, cell.resources.timeout_s, stop, on_event)
            attempt.ranks = watch.ranks
            outcome = watch.run(attempt.jobs(cell, ranks))
            if starter is self._server and not self._server.is_alive:
                attempt.notes.append("the fork server died, and the cell with it")
        except KeyboardInterrupt:
            attempt.record(INTERRUPTED)
            raise
        except Exception as error:
            outcome = of_error(error)
        return attempt.record(outcome)

    def _starter(self, cell: Cell) -> Starter:
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
    start: Literal["fork", "spawn"] | None = None
    facts: dict[str, Any] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    ranks: list[Rank] = field(default_factory=list)

    @classmethod
    def claim(cls, cell_file: Path, frozen: FrozenCell, under: dict[str, Any]) -> "_Attempt":
        clock = time.monotonic()
        number, path = CellDirectory(cell_file.parent).claim()
        lease = Lease.of_this_process(os.environ.get("SLURM_JOB_ID"))
        lease.write(path / LEASE_FILE)
        return cls(cell_file, frozen, under, number, path, lease, clock)

    def collect_facts(self, cell: Cell, code: dict[str, Any]) -> None:
        """Note on what machine the attempt runs, and what code, in environment.json too."""
        self.facts = {"environment": environment(), "provenance": code}
        self.notes = [note] if (note := too_few_cpus(cell.device.threads)) else []
        write_atomically(self.path / ENVIRONMENT_FILE, json.dumps(finite(self.facts), indent=1) + "\n")

    def jobs(self, cell: Cell, ranks: int) -> list[Job]:
        """One job per rank, with what torch.distributed needs where there are several."""
        variables = [cell.device.env for _ in range(ranks)]
        if ranks > 1:
            common = {"WORLD_SIZE": str(ranks), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(_free_port())}
            variables = [
                {**common, "RANK": str(rank), "LOCAL_RANK": str(rank), **cell.device.env} for rank in range(ranks)
            ]
        return [Job(str(self.cell_file), str(self.path), rank, variables[rank]) for rank in range(ranks)]

    def record(self, outcome: Outcome) -> Record:
        """Write record.json, and remove the journals that it was made from."""
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
            start=self.start,
            started=self.lease.started,
            ended=now(),
            overhead_seconds=time.monotonic() - self.clock - max(measured) if measured else None,
            inputs={key: file.sha256 for key, file in self.frozen.inputs.items()},
            **self.facts,
            ranks=[rank.report() for rank in self.ranks],
        )
        record.write(self.path / RECORD_FILE)
        for rank in self.ranks:
            rank.journal.path.unlink(missing_ok=True)
        return record


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
