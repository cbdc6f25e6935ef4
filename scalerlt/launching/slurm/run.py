"""A plan on a Slurm cluster: from its cells to job ids and, when it is to wait, to the end of the last job."""

import shlex
import shutil
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from scalerlt.errors import UserError
from scalerlt.launching.due import due
from scalerlt.launching.interrupts import Interrupts
from scalerlt.launching.local import Outcome
from scalerlt.launching.progress import Display
from scalerlt.launching.queued import Queued, attempts_of
from scalerlt.launching.slurm.arrays import LARGEST_ARRAY
from scalerlt.launching.slurm.ask import Slurm
from scalerlt.launching.slurm.earlier import jobs_of, write_down
from scalerlt.launching.slurm.follow import Follower
from scalerlt.launching.slurm.items import ResourceGroup, Seconds, resource_groups, settings_of
from scalerlt.launching.slurm.outlook import outlook
from scalerlt.launching.slurm.submit import JobsNotSubmitted, submit
from scalerlt.launching.slurm.turn import turn
from scalerlt.launching.status import CellStatus, of_cell, totals
from scalerlt.launching.under_way import under_way
from scalerlt.planning.forecast import UnderWay
from scalerlt.planning.launcher import SlurmSettings
from scalerlt.planning.resolve import ResolvedCell
from scalerlt.records.plan import Plan, PlannedCell
from scalerlt.records.store import SweepDirectory
from scalerlt.records.submission import Submission

MOST_IDS = 12
"""Job ids that are written out."""
OF_ONE_HOST = ("/tmp", "/var/tmp", "/dev/shm")


def check_slurm(runs_dir: Path) -> list[str]:
    """Whether jobs can be submitted from here at all, asked before anything is written.

    Returns:
        What the user should see, though it stops nothing.

    Raises:
        UserError: they cannot.
    """
    if missing := [name for name in ("sbatch", "srun") if shutil.which(name) is None]:
        raise UserError(
            f"hydra/launcher=slurm: {' and '.join(missing)} cannot be found on the PATH; submit from a login node of "
            "the cluster (module load slurm?), or use hydra/launcher=local"
        )
    folder = runs_dir.absolute()
    if "%" in str(folder):
        raise UserError(f"runs_dir={runs_dir}: Slurm gives a % in the name of a log file a meaning; use another")
    local = {*OF_ONE_HOST, tempfile.gettempdir()}
    if any(Path(place) in folder.parents for place in local):
        return [f"runs_dir={runs_dir} is a folder of this host; the nodes need one that they see, too"]
    return []


def run_on_slurm(
    sweep_dir: Path,
    plan: Plan,
    plan_name: str,
    resolved: Iterable[ResolvedCell],
    settings: SlurmSettings,
    *,
    display: Display,
    retry: frozenset[str],
    seconds: Seconds,
) -> Outcome:
    """Submit the cells of a plan that have no answer yet, and follow their jobs where the settings say so.

    A cell that runs, or that a job of an earlier submission is going to run, is left to it. Ctrl-C stops submitting and
    following; what is submitted stays so.

    Args:
        sweep_dir: runs/<sweep>, where each planned cell has its frozen cell.yaml.
        plan_name: file name of the plan.
        resolved: the cells of the plan.
        retry: which cells that have a record run again (see planning.retry).
        seconds: what planning expects a cell to take.

    Raises:
        JobsNotSubmitted: sbatch refuses; the message says what was submitted before.
    """
    by_id = {cell.cell_id: cell for cell in resolved}
    return _SlurmRun(SweepDirectory(sweep_dir), plan, plan_name, by_id, settings, display, retry, seconds).run()


@dataclass
class _SlurmRun:
    sweep: SweepDirectory
    plan: Plan
    plan_name: str
    resolved: dict[str, ResolvedCell]
    settings: SlurmSettings
    display: Display
    retry: frozenset[str]
    seconds: Seconds
    files: list[Path] = field(default_factory=list)

    def run(self) -> Outcome:
        self.slurm = Slurm(self.display.say)
        with Interrupts() as self.interrupts:
            with turn(self.sweep.path, self.display.say, lambda: self._interrupted):
                self.jobs, earlier = jobs_of(self.sweep, self.plan.cells, self.slurm)
                for fault in earlier.faults:
                    self.display.say(f"passed over: {fault}")
                write_down(earlier, self.display.say)
                cells, faults = due(self.sweep, self.plan, self.retry, self.display.say, self.jobs)
                held = under_way(attempts_of(self.sweep, cells), earlier, self.jobs)
                cells = [cell for cell in cells if cell.cell_id not in held]
                self._say_what_is_left_out(cells, held)
                queued = {cell_id: cell.reason for cell_id, cell in held.items() if cell.state == "queued"}
                jobs = queued | self._submit(resource_groups(cells, self.resolved, self.settings, self.seconds))
            if self.settings.wait and not self._interrupted:
                follower = Follower(self.sweep, self.slurm, self.display, self.interrupts.finish.is_set)
                faults |= follower.follow(jobs)
                if not self._interrupted:
                    jobs = {}
                    self.jobs, earlier = jobs_of(self.sweep, self.plan.cells, self.slurm)
            stands = [self._status(cell, jobs, earlier) for cell in self._ordered]
            outcome = Outcome(stands, faults, self._interrupted)
        self.display.close()
        self._say_how_it_stands(outcome)
        return outcome

    @property
    def _interrupted(self) -> bool:
        return self.interrupts.finish.is_set()

    @property
    def _ordered(self) -> list[PlannedCell]:
        return sorted(self.plan.cells, key=lambda cell: cell.order)

    def _say_what_is_left_out(self, cells: list[PlannedCell], held: Mapping[str, UnderWay]) -> None:
        to_run = {cell.cell_id for cell in cells}
        others = [cell for cell in self.plan.cells if cell.cell_id not in to_run]
        if others:
            states = ((held.get(cell.cell_id) or of_cell(self.sweep, cell, self.jobs)).state for cell in others)
            self.display.say(f"not submitted: {totals(states)}")

    def _submit(self, groups: list[ResourceGroup]) -> dict[str, str]:
        """Submit each group; of each cell the job that is going to run it."""
        largest = (self.slurm.largest_array() if groups else None) or LARGEST_ARRAY
        jobs: dict[str, str] = {}
        for group in groups:
            if self._interrupted:
                break
            settings = settings_of(group, self.settings)
            seen = outlook(group, settings, largest)
            for warning in seen.warnings:
                self.display.say(f"warning: {warning}")
            try:
                file = submit(
                    self.sweep,
                    self.plan,
                    self.plan_name,
                    group,
                    settings,
                    self.retry,
                    largest_array=largest,
                    give_up=lambda: self._interrupted,
                )
            except JobsNotSubmitted as error:
                self.files.append(error.file)
                if self._interrupted:  # Ctrl-C reaches sbatch, too
                    break
                raise JobsNotSubmitted(f"{error}{self._already()}", error.file) from error
            self.files.append(file)
            submission = Submission.read(file)
            self.display.say(f"submitted {seen.sentence}")
            self.display.say(f"  {file}: {_shown([job.job_id for job in submission.jobs])}")
            for job in submission.jobs:
                for item in job.items:
                    jobs |= dict.fromkeys(group.items[item].cells, f"job {job.job_id}")
        return jobs

    def _already(self) -> str:
        ids = self._submitted()
        return f"; submitted before that: {_shown(ids)} (see {self._status_command})" if ids else ""

    @property
    def _status_command(self) -> str:
        return shlex.join(["scalerlt", "status", str(self.sweep.path)])

    def _submitted(self) -> list[str]:
        return [job.job_id for file in self.files for job in Submission.read(file).jobs]

    def _status(self, cell: PlannedCell, jobs: Mapping[str, str | None], earlier: Queued) -> CellStatus:
        """The state of a cell.

        Args:
            jobs: the cells that jobs are going to run, and which.
            earlier: the submissions from before these jobs.
        """
        if cell.cell_id not in jobs:
            return of_cell(self.sweep, cell, self.jobs, earlier)
        status = of_cell(self.sweep, cell, self.jobs)
        return status if status.state == "running" else replace(status, state="queued", reason=jobs[cell.cell_id])

    def _say_how_it_stands(self, outcome: Outcome) -> None:
        self.display.say(totals(cell.state for cell in outcome.cells))
        for cell in outcome.bad:
            self.display.say(f"  {cell.state} {cell.cell_id}: {cell.where_to_look}")
        for cell_id, fault in outcome.faults.items():
            self.display.say(f"  not started {cell_id}: {fault}")
        ids = self._submitted()
        if ids and (outcome.interrupted or not self.settings.wait):
            if outcome.interrupted:
                self.display.say("the jobs stay in Slurm's queue")
            self.display.say(f"follow them:  {self._status_command}")
            self.display.say(f"cancel them:  {shlex.join(['scancel', *dict.fromkeys(map(_main, ids))])}")


def _main(job_id: str) -> str:
    return job_id.partition("_")[0]


def _shown(job_ids: Sequence[str]) -> str:
    """Ids for people: `job 12`, `jobs 12_0, 12_1`, or of many `jobs 12_[0-99], 13`."""
    if len(job_ids) <= MOST_IDS:
        return f"job{'s' if len(job_ids) != 1 else ''} {', '.join(job_ids) or 'none'}"
    counts: dict[str, list[int]] = {}
    for job_id in job_ids:
        main, _, element = job_id.partition("_")
        counts.setdefault(main, []).extend([int(element)] if element else [])
    names = [f"{main}_[{min(elements)}-{max(elements)}]" if elements else main for main, elements in counts.items()]
    return f"jobs {', '.join(names)}"
