"""Submitting: the jobs of one resource group, through submitit, every id written down at once."""

import io
import re
import shlex
import socket
import sys
from collections.abc import Callable, Iterable, Sequence
from contextlib import redirect_stderr, suppress
from pathlib import Path
from time import sleep
from typing import Any

import submitit
from pydantic import TypeAdapter
from submitit.core.utils import FailedJobError, FailedSubmissionError

from scalerlt.errors import UserError
from scalerlt.launching.slurm.arrays import JobArray, arrays
from scalerlt.launching.slurm.environment import clean_environment
from scalerlt.launching.slurm.items import ResourceGroup
from scalerlt.launching.slurm.job import WorkThrough
from scalerlt.launching.slurm.snapshot import import_root, take_snapshot
from scalerlt.planning.launcher import SlurmSettings
from scalerlt.records.base import UnwritableFile, now, write_exclusively, writing
from scalerlt.records.plan import Plan
from scalerlt.records.queue import Asked, Queue
from scalerlt.records.store import SweepDirectory
from scalerlt.records.submission import SUBMISSIONS, Submission, SubmittedJob, queue_file, scripts_folder

BACK_OFF_SECONDS = (1.0, 2.0, 4.0, 8.0)
"""Between the tries of an `sbatch` that a busy controller refused."""
FOR_GOOD = re.compile(
    r"invalid|unrecogni[sz]ed|unknown|not available|not permitted|denied|violates|limit|must|no such"
    r"|mutually exclusive|can ?not be satisfied",
    re.IGNORECASE,
)
"""In what sbatch says when trying again would change nothing."""
ENTRY = "scalerlt.launching.slurm.job"
HELD_BACK = 'trap "" USR2; env --block-signal=USR2 true 2>/dev/null && exec env --block-signal=USR2 "$@"; exec "$@"'
"""What a job's process is started by, so that Slurm's warning, which may come at any moment, ends none that starts.

It stays blocked, and so pending, until the worker's handlers stand. An env older than coreutils 8.31 cannot block it,
and a dash that starts Python unblocks it: there it is ignored meanwhile, and the worker goes by its clock.
"""


class JobsNotSubmitted(UserError):
    """What sbatch said.

    Attributes:
        file: the submission, which holds the jobs that were accepted before.
    """

    def __init__(self, message: str, file: Path) -> None:
        super().__init__(message)
        self.file = file


def submit(
    sweep: SweepDirectory,
    plan: Plan,
    plan_name: str,
    group: ResourceGroup,
    settings: SlurmSettings,
    retry: Iterable[str],
    *,
    largest_array: int,
    give_up: Callable[[], bool] = lambda: False,
) -> Path:
    """Write the submission and its queue, then submit its arrays; returns the submission's file.

    Args:
        retry: the words of the request.
        largest_array: the cluster's MaxArraySize.
        give_up: asked before each sbatch: when true, nothing further is submitted.

    Raises:
        JobsNotSubmitted: sbatch refuses, or is busy for too long: what was accepted before stands in the submission. Or
            the ids of accepted jobs cannot be written there: the message has them.
        UserError: the files cannot be written. Nothing was submitted.
    """
    try:
        file, submission = _prepare(sweep, plan, plan_name, group, settings, retry)
    except OSError as error:
        raise UserError(f"{sweep.path}: the submission cannot be written there ({error.strerror})") from error
    previous: str | None = None
    for array in arrays(len(group.items), settings, largest_array):
        if give_up():
            break
        after = [settings.dependency, f"afterany:{previous}" if array.after_previous else None]
        parameters = {**sbatch_parameters(settings, group.nodes, submission), "array_parallelism": array.parallelism}
        parameters["dependency"] = ",".join(filter(None, after)) or None
        try:
            ids = _sbatch(file, array, parameters, settings)
        except JobsNotSubmitted as error:
            submission.fault = str(error)
            with suppress(UnwritableFile):  # sbatch's own words matter more
                submission.write(file)
            raise
        previous = ids[0].partition("_")[0]
        whole = list(range(len(group.items)))
        submission.jobs += [
            SubmittedJob(job_id=job_id, items=whole if item is None else [item], resources=resources(settings, group))
            for job_id, item in zip(ids, array.items, strict=True)
        ]
        try:
            submission.write(file)
        except UnwritableFile as error:
            raise JobsNotSubmitted(f"{error}; sbatch took {', '.join(ids)} all the same", file) from error
    return file


def sbatch_parameters(settings: SlurmSettings, nodes: int, submission: Submission) -> dict[str, Any]:
    """What submitit is told, but for the array."""
    snapshot = Path(submission.snapshot) if submission.snapshot else None
    lines = list(settings.setup)
    if (root := import_root(snapshot)) is not None:
        behind = ":$PWD" if snapshot else ""  # where -P (see `_sbatch`) does not look: modules of the user's
        lines.append(f"export PYTHONPATH={shlex.quote(str(root))}${{PYTHONPATH:+:$PYTHONPATH}}{behind}")
    lines += [f"export {name}={shlex.quote(value)}" for name, value in settings.env.items()]
    further = {name: value for name, value in settings.sbatch.items() if value is not None and value is not False}
    further["requeue" if settings.max_requeues else "no-requeue"] = True
    if not settings.use_srun:  # Slurm signals the steps of a job; without one it has to be told to signal the script
        further["signal"] = f"B:USR2@{settings.signal_delay_s}"
        lines.insert(0, "trap '' USR2")  # while what follows runs
    srun_args = list(settings.srun_args)
    if settings.cpus_per_task is not None and not _has(srun_args, "--cpus-per-task", "-c"):
        srun_args.insert(0, f"--cpus-per-task={settings.cpus_per_task}")  # since Slurm 22.05 no longer the job's own
    if not _has(srun_args, "--export"):
        srun_args.insert(0, "--export=ALL")  # some sites set SLURM_EXPORT_ENV or SRUN's default to NONE
    return {
        "job_name": submission.job_name,
        "account": settings.account,
        "partition": settings.partition,
        "qos": settings.qos,
        "constraint": settings.constraint,
        "gres": settings.gres,
        "gpus_per_node": settings.gpus_per_node or None,
        "nodes": nodes,
        "ntasks_per_node": 1,
        "cpus_per_task": settings.cpus_per_task,
        "mem": None if settings.mem_gb is None else _memory(settings.mem_gb),
        "time": settings.timeout_min,
        "signal_delay_s": settings.signal_delay_s,
        "nodelist": settings.nodelist,
        "exclude": settings.exclude,
        "comment": settings.comment,
        "wckey": None,
        "setup": lines or None,
        "srun_args": srun_args,
        "use_srun": settings.use_srun,
        "additional_parameters": further,
    }


def resources(settings: SlurmSettings, group: ResourceGroup) -> str:
    """What each job asks for, for people: `1 node, 4 CPUs, gpu:2, 32 GiB, 60 min, partition gpu`."""
    gpus = settings.gres or (_counted(settings.gpus_per_node, "GPU") if settings.gpus_per_node else None)
    parts = [
        _counted(group.nodes, "node"),
        None if settings.cpus_per_task is None else _counted(settings.cpus_per_task, "CPU"),
        gpus,
        None if settings.mem_gb is None else f"{settings.mem_gb:g} GiB" if settings.mem_gb else "all memory",
        f"{settings.timeout_min} min",
        *(f"{key} {value}" for key in ("partition", "qos", "account") if (value := getattr(settings, key)) is not None),
    ]
    return ", ".join(filter(None, parts))


class _Executor(submitit.SlurmExecutor):
    """submitit's, but that its jobs are warned in time, and first look whether Slurm's variables have reached them."""

    @property
    def _submitit_command_str(self) -> str:
        own_process = "" if self.parameters.get("use_srun", True) else "exec "  # Slurm signals the script's alone
        starts = f"{self.python} -u -m {ENTRY} {shlex.quote(str(self.folder))}"
        return f"{own_process}sh -c {shlex.quote(HELD_BACK)} sh {starts}"


def _prepare(
    sweep: SweepDirectory,
    plan: Plan,
    plan_name: str,
    group: ResourceGroup,
    settings: SlurmSettings,
    retry: Iterable[str],
) -> tuple[Path, Submission]:
    """Everything that a job needs is on the disk before the first one is submitted."""
    submission = Submission(
        sweep=sweep.name,
        plan=plan_name,
        created=now(),
        host=socket.gethostname(),
        job_name="",
        launcher=plain_settings(settings),
        provenance=plan.provenance,
    )
    file = write_exclusively(sweep.path / SUBMISSIONS, ".json", submission.to_json()).absolute()
    folder = file.with_suffix("")
    with writing(folder):
        folder.mkdir()
    submission.job_name = f"{sweep.name}-{file.stem}"
    if settings.snapshot:
        submission.snapshot = str(take_snapshot(folder, plan.provenance))
    attempts = {cell_id: sweep.cell(cell_id).attempts() for item in group.items for cell_id in item.cells}
    Queue(
        sweep=sweep.name,
        plan=plan_name,
        created=submission.created,
        items=group.items,
        tried={cell_id: tried[-1].number for cell_id, tried in attempts.items() if tried},
        retry=sorted(retry),
        slots=settings.pack.slots,
        timed=settings.pack.timed,
        infer_oom=settings.infer_oom,
        timeout_min=settings.timeout_min,
        signal_delay_s=settings.signal_delay_s,
        max_requeues=settings.max_requeues,
        asked=Asked(nodes=group.nodes, cpus=settings.cpus_per_task, gpus=settings.gpus or None),
        provenance=plan.provenance,
        snapshot=submission.snapshot,
    ).write(queue_file(file))
    submission.write(file)
    return file, submission


def plain_settings(settings: SlurmSettings) -> dict[str, Any]:
    """The settings as plain data for the submission, those that are not set left out."""
    plain: dict[str, Any] = TypeAdapter(SlurmSettings).dump_python(settings, mode="json", exclude_none=True)
    return {key: value for key, value in plain.items() if key != "target"}


def _sbatch(file: Path, array: JobArray, parameters: dict[str, Any], settings: SlurmSettings) -> list[str]:
    """Submit one array, or one job; its ids. A busy controller is asked again."""
    folder = scripts_folder(file)
    queue = str(queue_file(file))
    work = [WorkThrough(queue, None if item is None else str(item)) for item in array.items]
    python = settings.python or shlex.quote(sys.executable)
    if settings.snapshot:
        python += " -P"  # the job starts where sbatch was called, which may be the checkout
    executor = _Executor(folder, max_num_timeout=10**6, python=python)
    executor.update_parameters(**parameters)
    for pause in (*BACK_OFF_SECONDS, None):
        try:
            with clean_environment(), redirect_stderr(io.StringIO()):  # where submitit prints what it raises, too
                return [str(job.job_id) for job in executor.submit_array(work)]
        except (FailedJobError, FailedSubmissionError, OSError) as error:
            said = _one_line(str(error)) or type(error).__name__
            _tidy(folder)
            if pause is None or isinstance(error, FailedSubmissionError) or FOR_GOOD.search(said):
                raise JobsNotSubmitted(f"sbatch did not take the jobs: {said}", file) from error
            sleep(pause)
    raise AssertionError("unreachable: the last try raises")


def _one_line(said: str) -> str:
    """Of `sbatch: error: Batch job submission failed: ...`, line by line, what is not sbatch's own name."""
    lines = [re.sub(r"^sbatch: (error: |fatal: )?", "", " ".join(line.split())) for line in said.splitlines()]
    return "; ".join(dict.fromkeys(filter(None, lines)))


def _tidy(folder: Path) -> None:
    """Remove what submitit wrote for a job that was not accepted."""
    for left in folder.glob(".submission_file_*.sh"):
        if not left.is_symlink():  # it is one once the job has its id
            left.unlink()
    for left in folder.glob("*.pkl"):
        if re.fullmatch(r"[0-9a-f]{32}", left.stem):
            left.unlink()


def _memory(gib: float) -> str:
    if gib == 0:
        return "0"
    return f"{int(gib)}G" if gib == int(gib) else f"{int(gib * 1024)}M"


def _has(arguments: Sequence[str], *names: str) -> bool:
    return any(argument == name or argument.startswith(f"{name}=") for argument in arguments for name in names)


def _counted(count: int, what: str) -> str:
    return f"{count} {what}{'s' if count != 1 else ''}"
