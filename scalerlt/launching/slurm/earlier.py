"""What earlier submissions of a sweep have in Slurm's queue."""

from collections.abc import Callable, Iterable

from scalerlt.launching.jobs import Jobs
from scalerlt.launching.queued import Queued, attempts_of, expect
from scalerlt.launching.slurm.ask import Slurm
from scalerlt.records.plan import PlannedCell
from scalerlt.records.store import SweepDirectory
from scalerlt.records.submission import Submission


def jobs_of(sweep: SweepDirectory, cells: Iterable[PlannedCell], slurm: Slurm) -> tuple[Jobs, Queued]:
    """The jobs that hold attempts at these cells or were to run them, and the submissions; one question serves all."""
    jobs, queued = Jobs(slurm), Queued(sweep.path)
    expect([(queued, attempts_of(sweep, cells))], jobs)
    return jobs, queued


def write_down(queued: Queued, say: Callable[[str], None]) -> None:
    """Write the ids of jobs that were found by their name into their submissions: squeue will forget them."""
    for file, found in queued.unwritten.items():
        submission = Submission.read(file)  # as it stands now: whoever submitted them may be alive
        known = {job.job_id for job in submission.jobs}
        new = [job for job in found if job.job_id not in known]
        if new:
            submission.jobs += new
            submission.write(file)
            say(f"{file}: its jobs were not written down and are found: {', '.join(job.job_id for job in new)}")
