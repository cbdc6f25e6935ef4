"""A Slurm that says what a test wants, in this process; and sweeps whose attempts it holds."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path

from worker.frozen import freeze

from scalerlt.launching.slurm.ask import JobState
from scalerlt.records.base import now, write_exclusively
from scalerlt.records.lease import Lease
from scalerlt.records.plan import Plan, PlannedCell
from scalerlt.records.queue import Queue, QueueItem
from scalerlt.records.record import Record, Verdict
from scalerlt.records.store import CellDirectory, SweepDirectory
from scalerlt.records.submission import Submission, SubmittedJob, queue_file, scripts_folder


@dataclass
class FakeSlurm:
    """Attributes: what squeue lists, by ids and by names, what sacct or scontrol know, and how often each was asked."""

    listed: dict[str, JobState] = field(default_factory=dict)
    known: dict[str, JobState] = field(default_factory=dict)
    is_silent: bool = False
    questions: list[list[str]] = field(default_factory=list)
    histories: list[list[str]] = field(default_factory=list)
    of_names: dict[str, list[JobState]] = field(default_factory=dict)
    names_asked: list[list[str]] = field(default_factory=list)

    def queue(self, job_ids: Iterable[str]) -> Mapping[str, JobState]:
        self.questions.append(list(job_ids))
        return {} if self.is_silent else {job: self.listed[job] for job in self.questions[-1] if job in self.listed}

    def history(self, job_ids: Iterable[str]) -> Mapping[str, JobState]:
        self.histories.append(list(job_ids))
        return {job: self.known[job] for job in self.histories[-1] if job in self.known}

    def named(self, names: Iterable[str]) -> Mapping[str, JobState]:
        self.names_asked.append(list(names))
        found = [job for name in self.names_asked[-1] for job in self.of_names.get(name, [])]
        return {} if self.is_silent else {job.job_id: job for job in found}


def ago(seconds: float, moment: datetime | None = None) -> str:
    """So many seconds before a moment; by default before now."""
    return ((moment or datetime.now(UTC)) - timedelta(seconds=seconds)).isoformat(timespec="milliseconds")


def attempt(
    sweep: Path,
    cell_id: str,
    *,
    job: str | None = "7",
    host: str = "another-host",
    started: float = 3600.0,
    heartbeat: float = 300.0,
    verdict: Verdict | None = None,
    reason: str | None = None,
) -> Path:
    """An attempt of another host, begun and last heard of so many seconds ago, recorded when it has a verdict."""
    cell = CellDirectory(sweep / cell_id)
    number = max((known.number for known in cell.attempts()), default=0) + 1
    path = cell.path / f"attempt-{number:03d}"
    path.mkdir()
    moment = datetime.now(UTC)
    lease = Lease.of_this_process(job).model_copy(
        update={"host": host, "pid": 4321, "started": ago(started, moment), "heartbeat": ago(heartbeat, moment)}
    )
    lease.write(path / "lease.json")
    (path / "stderr.log").write_text(f"what {cell_id} said\n")
    if verdict is not None:
        finish(path, verdict, reason)
    return path


def finish(path: Path, verdict: Verdict, reason: str | None = None) -> None:
    """The attempt's record, as its supervisor writes it."""
    lease = Lease.read(path / "lease.json")
    Record(
        sweep=path.parent.parent.name,
        cell_id=path.parent.name,
        axes={},
        attempt=int(path.name.removeprefix("attempt-")),
        verdict=verdict,
        reason=reason,
        started=lease.started,
        ended=lease.heartbeat,
    ).write(path / "record.json")


def sweep_of(sweep: Path, *cell_ids: str) -> Path:
    """A sweep with a plan of some cells."""
    for cell_id in cell_ids:
        freeze(sweep, "measures", cell_id=cell_id)
    cells = [PlannedCell(cell_id=cell_id, axes={}, order=order) for order, cell_id in enumerate(cell_ids)]
    SweepDirectory(sweep).add_plan(Plan(sweep=sweep.name, created=now(), overrides=[], cells=cells))
    return sweep


def submit(sweep: Path, items: list[list[str]], jobs: list[tuple[str, list[int]]], max_requeues: int = 10) -> Path:
    """A submission of some items, by some jobs, as its files tell of it."""
    submission = Submission(
        sweep=sweep.name,
        plan="001.json",
        created=now(),
        host="login",
        job_name="scalerlt",
        jobs=[SubmittedJob(job_id=job_id, items=taken) for job_id, taken in jobs],
    )
    file = write_exclusively(sweep / "submissions", ".json", submission.to_json())
    queue_file(file).parent.mkdir()
    tried = {}
    for cell_id in (cell_id for item in items for cell_id in item):
        if attempts := CellDirectory(sweep / cell_id).attempts():
            tried[cell_id] = attempts[-1].number
    Queue(
        sweep=sweep.name,
        plan="001.json",
        created=now(),
        items=[QueueItem(index=index, cells=cells) for index, cells in enumerate(items)],
        tried=tried,
        timeout_min=60,
        signal_delay_s=90,
        max_requeues=max_requeues,
    ).write(queue_file(file))
    return file


def write_log(submission: Path, job_id: str, text: str, stream: str = "err") -> Path:
    """What a job of a submission wrote."""
    log = scripts_folder(submission) / f"{job_id}_0_log.{stream}"
    log.parent.mkdir(exist_ok=True)
    log.write_text(text)
    return log
