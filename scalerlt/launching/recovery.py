"""What earlier runs left half done gets its verdict before a queue starts: no attempt stays without a record."""

import json
from datetime import UTC, datetime
from typing import Any

from scalerlt.records.base import UnreadableDocument
from scalerlt.records.cell import FrozenCell
from scalerlt.records.journal import Journal
from scalerlt.records.lease import Lease, boot_id
from scalerlt.records.record import RankReport, Record, Verdict
from scalerlt.records.store import ENVIRONMENT_FILE, RECORD_FILE, Attempt, CellDirectory, keep_aside


def reconcile(cell: CellDirectory) -> list[str]:
    """Keep corrupt records aside, and record as `lost` each attempt whose supervisor is gone.

    Attempts that a living process holds are left alone.

    Raises:
        UnreadableDocument: a record is of a later version, which this one must neither touch nor run again.

    Returns:
        A sentence for each thing that was done.
    """
    done = []
    for attempt in cell.attempts():
        if attempt.record is not None or attempt.is_running:
            continue
        if attempt.newer:
            raise UnreadableDocument(attempt.fault or "")
        if attempt.fault is not None:
            kept = keep_aside(attempt.path / RECORD_FILE)
            reason = f"its record was not readable and is kept as {kept.name}"
        else:
            reason = why_lost(attempt.lease)
        _lost(FrozenCell.read(cell.cell_file), attempt, reason).write(attempt.path / RECORD_FILE)
        for journal in attempt.path.glob(".progress-rank*"):
            journal.unlink()
        done.append(f"{cell.path.name}, attempt {attempt.number}: {reason}")
    return done


def why_lost(lease: Lease | None) -> str:
    """Why an attempt without a record is not running any more."""
    if lease is None:
        return "its supervisor died before it had started"
    if lease.boot_id != boot_id() and lease.host == Lease.of_this_process().host:
        return f"{lease.host} was started anew while it ran"
    return f"its supervisor (pid {lease.pid} on {lease.host}) died without a record"


def _lost(frozen: FrozenCell, attempt: Attempt, reason: str) -> Record:
    """The record of an attempt that nobody finished, with what its ranks had recorded."""
    journals = [Journal.of(attempt.path, rank) for rank in range(len(list(attempt.path.glob(".progress-rank*"))))]
    first = journals[0] if journals else None
    claimed = datetime.fromtimestamp(attempt.path.stat().st_mtime, UTC).isoformat(timespec="milliseconds")
    return Record(
        sweep=frozen.sweep,
        cell_id=frozen.cell_id,
        axes=frozen.axes,
        attempt=attempt.number,
        verdict=Verdict.LOST,
        reason=reason,
        passes=first.passes if first else [],
        metrics=first.metrics if first else {},
        notes=[note for journal in journals for note in journal.notes],
        started=attempt.lease.started if attempt.lease else claimed,
        ended=attempt.lease.heartbeat if attempt.lease else claimed,
        inputs={key: file.sha256 for key, file in frozen.inputs.items()},
        ranks=[
            RankReport(rank=rank, phase=journal.phase, metrics=journal.metrics if rank else {})
            for rank, journal in enumerate(journals)
        ],
        **_facts(attempt),
    )


def _facts(attempt: Attempt) -> dict[str, Any]:
    try:
        facts = json.loads((attempt.path / ENVIRONMENT_FILE).read_text(encoding="utf-8"))
        return {"environment": facts["environment"], "provenance": facts["provenance"]}
    except (OSError, ValueError, KeyError):
        return {}  # it died before it had written them
