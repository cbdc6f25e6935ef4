"""What earlier runs left half done gets its verdict before a queue starts: no attempt stays without a record.

The verdict is `lost`, but where Slurm, or the job's log, knows how the job ended that held the attempt. The reason says
who was asked.
"""

import json
import re
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from scalerlt.launching.jobs import Jobs, JobState
from scalerlt.records.base import FileFault, UnreadableDocument, open_file, write_once, writing
from scalerlt.records.cell import FrozenCell
from scalerlt.records.journal import Journal
from scalerlt.records.lease import Lease, boot_id
from scalerlt.records.record import Failure, RankReport, Record, Verdict
from scalerlt.records.store import (
    CLAIM_SECONDS,
    ENVIRONMENT_FILE,
    RECORD_FILE,
    Attempt,
    CellDirectory,
    SweepDirectory,
    keep_aside,
)
from scalerlt.records.submission import SUBMISSIONS

NO_SLURM = Jobs()
AT_ONCE_SECONDS = 60.0
"""Heartbeats of attempts that ended with the same job are not further apart."""

_BY_STATE: dict[str, tuple[Verdict, str]] = {
    "BOOT_FAIL": (Verdict.LOST, "the node of its Slurm job {job} did not boot"),
    "CANCELLED": (Verdict.KILLED, "its Slurm job {job} was cancelled"),
    "DEADLINE": (Verdict.TIMEOUT, "Slurm ended its job {job} at its deadline"),
    "NODE_FAIL": (Verdict.LOST, "a node of its Slurm job {job} failed"),
    "OUT_OF_MEMORY": (Verdict.OOM, "its Slurm job {job} was killed because memory ran out"),
    "PREEMPTED": (Verdict.PREEMPTED, "its Slurm job {job} was preempted"),
    "TIMEOUT": (Verdict.TIMEOUT, "Slurm ended its job {job} at its time limit"),
}
"""The verdict of an attempt whose supervisor had no time to record it, by how its job ended."""
_OUT_OF_MEMORY = re.compile(r"^slurmstepd\S*: error: (.*(?:memory limit|oom[-_]kill).*)$", re.MULTILINE | re.IGNORECASE)
LOG_BYTES = 64 * 1024
"""How much of the end of a job's log is looked through."""


@dataclass(frozen=True)
class Fate:
    """What became of an attempt that nobody recorded.

    Attributes:
        kind: what ended it, as a failure's type; None when that is not known.
    """

    verdict: Verdict
    reason: str
    kind: str | None = None


def reconcile_all(sweep_dirs: Iterable[SweepDirectory], jobs: Jobs, say: Callable[[str], None]) -> None:
    """Put every cell of some sweeps in order, and say what was done and what could not be."""
    cells = [cell for sweep in sweep_dirs for cell in sweep.cells()]
    jobs.expect(cells)
    for cell in cells:
        try:
            for sentence in reconcile(cell, jobs):
                say(sentence)
        except FileFault as fault:
            say(f"left alone: {fault}")


def reconcile(cell: CellDirectory, jobs: Jobs = NO_SLURM) -> list[str]:
    """Keep corrupt records aside, and record what became of each attempt whose supervisor is gone.

    Attempts that a living process holds are left alone, and a record that stands by now is never written over. What a
    supervisor was about to remove when it died is removed.

    Args:
        jobs: what Slurm says of the jobs that held them.

    Raises:
        UnreadableDocument: a record is of a later version, which this one must neither touch nor run again.
        UnwritableFile: what is to be put in order cannot be written.

    Returns:
        A sentence for each thing that was done.
    """
    done = []
    for attempt in cell.attempts():
        if attempt.record is not None:
            _clear(attempt)
            continue
        if jobs.runs(attempt):
            continue
        if attempt.newer:
            raise UnreadableDocument(attempt.fault or "")
        if attempt.fault is not None:
            kept = keep_aside(attempt.path / RECORD_FILE)
            fate = Fate(Verdict.LOST, f"its record was not readable and is kept as {kept.name}")
        else:
            fate = fate_of(attempt, jobs)
        with writing(attempt.path / RECORD_FILE):  # which may be removed in this moment
            record = _record(FrozenCell.read(cell.cell_file), attempt, fate)
        if not write_once(attempt.path / RECORD_FILE, record.to_json()):
            continue  # its supervisor has written it in this moment
        _clear(attempt, is_gone=True)
        verdict = "" if fate.verdict is Verdict.LOST else f"{fate.verdict}: "
        done.append(f"{cell.path.name}, attempt {attempt.number}: {verdict}{fate.reason}")
    return done


def fate_of(attempt: Attempt, jobs: Jobs = NO_SLURM) -> Fate:
    """What became of an attempt without a record that is not running any more, and how that is known."""
    lease = attempt.lease
    if lease is None:
        return Fate(Verdict.LOST, "its supervisor died before it had started")
    died = f"its supervisor (pid {lease.pid} on {lease.host}) died without a record"
    if lease.boot_id != boot_id() and lease.is_of_this_host:
        died = f"{lease.host} was started anew while it ran"
    if lease.slurm_job_id is None:
        return Fate(Verdict.LOST, died)
    return _by_slurm(attempt, lease, lease.slurm_job_id, died, jobs)


def _by_slurm(attempt: Attempt, lease: Lease, job_id: str, died: str, jobs: Jobs) -> Fate:
    found = jobs.ended(job_id)
    said = what_was_said(job_id, found, jobs)
    state = None if found is None else found.state
    if state in (None, "FAILED") and not jobs.started_again(lease):
        words = _words_on_memory(attempt, job_id if found is None else found.job_id)
        if words is not None and not _is_told_already(attempt, job_id):
            state, said = "OUT_OF_MEMORY", f"{said}; its log says {words}"
    if state not in _BY_STATE:
        if jobs.started_again(lease):
            died = f"its Slurm job {job_id} was ended and put back into the queue"
        return Fate(Verdict.LOST, f"{died} ({said})")
    verdict, sentence = _BY_STATE[state]
    reason = f"{sentence.format(job=job_id)} ({said})"
    if verdict is Verdict.OOM and (together := _in_hand(attempt, lease)) > 1:
        # oom is an answer, and one that rules out larger cells
        return Fate(Verdict.LOST, f"{reason}; which of {together} cells that it ran took it cannot be told")
    return Fate(verdict, reason, state)


def _words_on_memory(attempt: Attempt, job_id: str) -> str | None:
    """What slurmstepd wrote into the job's log when memory ran out; where no cgroup counts it, Slurm says FAILED."""
    for log in (attempt.path.parents[1] / SUBMISSIONS).glob("*/submitit/*_log.err"):
        if not re.fullmatch(rf"{re.escape(job_id)}_\d+_log\.err", log.name):  # 47_3_0_log.err is of 47_3, not of 47
            continue
        with suppress(OSError), open_file(log) as file:
            file.seek(max(0, log.stat().st_size - LOG_BYTES))
            if found := _OUT_OF_MEMORY.search(file.read().decode(errors="replace")):
                return found[1].strip()
    return None


def _is_told_already(attempt: Attempt, job_id: str) -> bool:
    """Whether another attempt of the same job has its `oom`: the words in the log, which all share, are of that one."""
    for other in _others_of_job(attempt, job_id):
        if other.record is not None and other.record.verdict is Verdict.OOM:
            return True
    return False


def _others_of_job(attempt: Attempt, job_id: str) -> Iterator[Attempt]:
    """Attempts at cells of the same sweep that were in the same job."""
    for cell in SweepDirectory(attempt.path.parents[1]).cells():
        with suppress(UnreadableDocument):
            yield from (one for one in cell.attempts() if one.lease is not None and one.lease.slurm_job_id == job_id)


def _in_hand(attempt: Attempt, lease: Lease) -> int:
    """How many attempts the job of one had in hand at its end, of the same sweep, and left to be recorded by others."""
    found = 0
    for other in _others_of_job(attempt, lease.slurm_job_id or ""):
        held = other.lease
        if held is not None and (other.record is None or other.record.ended == held.heartbeat):
            found += abs(held.age_seconds(lease.heartbeat)) < AT_ONCE_SECONDS
    return found


def _clear(attempt: Attempt, *, is_gone: bool = False) -> None:
    """Remove the journals of a recorded attempt, and files that were never finished, if whoever held it is gone.

    Args:
        is_gone: that it is known to be.
    """
    hidden = [path for path in attempt.path.glob(".*") if path.match(".progress-rank*") or path.suffix == ".tmp"]
    if not hidden or not (is_gone or attempt.lease is None or not attempt.lease.is_alive()):
        return
    own = None if attempt.lease is None else f".{attempt.lease.pid}.tmp"
    for path in hidden:
        try:
            another = path.suffix == ".tmp" and (own is None or not path.name.endswith(own))
            if another and time.time() - path.stat().st_mtime < CLAIM_SECONDS:
                continue  # of a process that is recording the attempt in this moment
            with writing(path):
                path.unlink(missing_ok=True)
        except FileNotFoundError:
            continue  # removed by another


def what_was_said(job_id: str, found: JobState | None, jobs: Jobs) -> str:
    """Who was asked about the job, and the answers."""
    if jobs.slurm is None:
        return f"of Slurm job {job_id}, about which nobody could be asked here"
    if found is not None and found.source == "squeue":
        return f"squeue says {found.sentence}"
    queue = f"squeue does not list job {job_id}" if jobs.answers else "squeue does not answer"
    if found is None:
        return f"{queue}; neither sacct nor scontrol knows how it ended"
    return f"{queue}; {found.source} says {found.sentence}"


def _record(frozen: FrozenCell, attempt: Attempt, fate: Fate) -> Record:
    """The record of an attempt that nobody finished, with what its ranks had recorded."""
    journals = [Journal.of(attempt.path, rank) for rank in range(len(list(attempt.path.glob(".progress-rank*"))))]
    first = journals[0] if journals else None
    claimed = datetime.fromtimestamp(attempt.path.stat().st_mtime, UTC).isoformat(timespec="milliseconds")
    phase = first.phase if first else None
    lease = attempt.lease
    return Record(
        sweep=frozen.sweep,
        cell_id=frozen.cell_id,
        axes=frozen.axes,
        attempt=attempt.number,
        continues=first.continues if first else None,
        verdict=fate.verdict,
        reason=fate.reason,
        passes=first.passes if first else [],
        metrics=first.metrics if first else {},
        notes=[note for journal in journals for note in journal.notes],
        failure=None if fate.kind is None else Failure(type=fate.kind, message=fate.reason, phase=phase),
        started=lease.started if lease else claimed,
        ended=lease.heartbeat if lease else claimed,
        inputs={key: file.sha256 for key, file in frozen.inputs.items()},
        slurm={"job_id": lease.slurm_job_id} if lease and lease.slurm_job_id else {},
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
