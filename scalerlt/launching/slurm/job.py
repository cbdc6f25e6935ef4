"""What a Slurm job starts: `python -m scalerlt.launching.slurm.job FOLDER`, and the callable that submitit hands to it.

Only the path of a queue travels: whatever is edited, moved or held open where it was submitted changes no job.
"""

import os
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from submitit.core.submission import submitit_main
from submitit.helpers import DelayedSubmission

from scalerlt.launching.jobs import Jobs
from scalerlt.launching.recovery import reconcile
from scalerlt.launching.slurm.ask import Slurm
from scalerlt.planning.inference import implied, no_longer_implied
from scalerlt.records.base import now
from scalerlt.records.plan import Plan, PlannedCell
from scalerlt.records.queue import Queue
from scalerlt.records.record import Record, Verdict
from scalerlt.records.store import CellDirectory, SweepDirectory

NO_ENVIRONMENT = 3
"""Exit code of a job that cannot tell which job it is."""


@dataclass(frozen=True)
class WorkThrough:
    """Works through a submission's queue.

    Attributes:
        queue_path: the queue's file.
        item: index of the only item that this job may take, as text; None: the jobs share the queue.
    """

    queue_path: str
    item: str | None = None

    def __call__(self) -> int:
        """Run what the queue holds; returns the exit code of the worker, which says nothing of the cells."""
        from scalerlt.worker.slurm_job import work_through

        return work_through(
            self.queue_path,
            None if self.item is None else int(self.item),
            reconcile=in_order(),
            finished=Inferring(Path(self.queue_path)),
        )

    def checkpoint(self) -> DelayedSubmission:
        """The same again: for the moments in which submitit's signal handlers stand, before the worker's do."""
        return DelayedSubmission(self)


def in_order() -> Callable[[CellDirectory], list[str]]:
    """Gives attempts that another job left behind their records; for several threads."""
    jobs, lock = Jobs(Slurm(lambda text: print(text, flush=True))), threading.Lock()

    def put(cell: CellDirectory) -> list[str]:
        with lock:
            jobs.expect([cell])
            return reconcile(cell, jobs)

    return put


class Inferring:
    """Writes down what a cell's record says of cells that are not tried, as a further plan; for several threads.

    Args:
        queue_path: the queue's file.
    """

    def __init__(self, queue_path: Path) -> None:
        self._queue = Queue.read(queue_path)
        self._sweep = SweepDirectory(queue_path.parents[2])
        self._lock = threading.Lock()

    def __call__(self, record: Record) -> None:
        """A larger batch has no more memory than one that is out of it."""
        with self._lock:
            self._infer(record)

    def _infer(self, record: Record) -> None:
        changed: list[PlannedCell] = []
        if record.verdict is Verdict.OOM and self._queue.infer_oom:
            changed = implied(self._stands(), lambda cell: cell.cell_id == record.cell_id, self._sweep)
        elif record.verdict is Verdict.MEASURED:
            changed = no_longer_implied(record.cell_id, self._sweep)
        if changed:
            follows = self._queue.plan
            self._sweep.add_plan(
                Plan(sweep=self._queue.sweep, created=now(), overrides=[], follows=follows, cells=changed)
            )

    def _stands(self) -> list[PlannedCell]:
        """The cells of the plan as what was inferred since has left them."""
        stands: dict[str, PlannedCell] = {}
        for path, plan in self._sweep.plans():
            if isinstance(plan, Plan) and self._queue.plan in (path.name, plan.follows):
                stands |= {cell.cell_id: cell for cell in plan.cells}
        return list(stands.values())


def main() -> int:
    """Check that Slurm's variables have arrived, then do what submitit does."""
    missing = [name for name in ("SLURM_JOB_ID", "SUBMITIT_EXECUTOR") if name not in os.environ]
    if missing:
        print(
            f"error: this is a Slurm job, but {' and '.join(missing)} did not reach its process: srun or a wrapper "
            "around it starts tasks without the environment; set hydra.launcher.srun_args=[--export=ALL] "
            "(or hydra.launcher.use_srun=false) and submit again",
            file=sys.stderr,
        )
        return NO_ENVIRONMENT
    submitit_main()
    return 0


if __name__ == "__main__":
    sys.exit(main())
