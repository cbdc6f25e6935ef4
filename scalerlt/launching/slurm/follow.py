"""Following submitted jobs to their end: cells from their files, jobs from squeue."""

import time
from collections import Counter
from collections.abc import Callable, Container

from scalerlt.launching.jobs import PREEMPTED, Jobs
from scalerlt.launching.progress import Display
from scalerlt.launching.queued import GOES_ON
from scalerlt.launching.recovery import reconcile
from scalerlt.launching.slurm.ask import JobState, Slurm
from scalerlt.records.base import FileFault, UnreadableDocument
from scalerlt.records.queue import Queue
from scalerlt.records.store import SweepDirectory
from scalerlt.records.submission import queue_file, submissions

LOOK_SECONDS = 2.0
"""Between looks at the files."""
ASK_SECONDS = 15.0
"""Between questions to the queue: a cluster's controller serves everyone."""
TELL_SECONDS = 60.0
"""Between lines on how the jobs stand, where nothing else is to be told."""


class Follower:
    """Follows the jobs of a sweep's submissions.

    Args:
        give_up: asked several times a second; when true, following ends and the jobs stay.
    """

    def __init__(self, sweep: SweepDirectory, slurm: Slurm, display: Display, give_up: Callable[[], bool]) -> None:
        self._sweep = sweep
        self._slurm = slurm
        self._display = display
        self._give_up = give_up
        self._waiting: dict[str, int] = {}
        """Cells without a record of their own job yet, with the attempt before it."""

    def follow(self, cells: Container[str]) -> dict[str, str]:
        """Return when no job is left that is to run one of these cells, or when following is given up.

        Returns:
            Cells that no job has run though all have ended, each with the reason; none where it was given up.
        """
        jobs: dict[str, list[str]] = {}
        stay_away: set[str] = set()
        for file, submission in submissions(self._sweep.path):
            try:
                if isinstance(submission, UnreadableDocument):
                    raise submission
                queue = Queue.read(queue_file(file))
            except UnreadableDocument as fault:
                self._display.say(f"warning: its jobs are not followed: {fault}")
                continue
            for job in submission.jobs:
                ours = [cell for item in job.items for cell in queue.items[item].cells if cell in cells]
                jobs |= {job.job_id: ours} if ours else {}
                stay_away |= set() if queue.max_requeues else {job.job_id}
                self._waiting |= {cell: queue.tried.get(cell, 0) for cell in ours}
        if not jobs:
            return {}
        self._display.begin(len(self._waiting))
        if not self._until_none_is_left(list(jobs), stay_away):
            return {}
        return self._unstarted(jobs)

    def _until_none_is_left(self, job_ids: list[str], stay_away: set[str]) -> bool:
        """Whether all jobs have ended; False when it was given up before.

        Args:
            stay_away: the jobs that do not go back into the queue when they are preempted.
        """
        next_question, next_line, told = 0.0, time.monotonic() + TELL_SECONDS, ""
        while True:
            self._look()
            if (moment := time.monotonic()) >= next_question:
                next_question = moment + ASK_SECONDS
                states = self._slurm.queue(job_ids)
                live = [
                    state
                    for job_id, state in states.items()
                    if not (state.has_ended or (state.state == PREEMPTED and job_id in stay_away))
                ]
                if not live and not (self._slurm.is_silent and self._waiting):
                    return True
                line = _counted(live) if live else ""
                if line != told or moment >= next_line:
                    next_line, told = moment + TELL_SECONDS, line
                    if line:
                        self._display.say(line)
            until = time.monotonic() + LOOK_SECONDS
            while time.monotonic() < until:
                if self._give_up():
                    return False
                time.sleep(min(0.1, LOOK_SECONDS))

    def _look(self, last: bool = False) -> None:
        """Tell of each cell that has been recorded since the last look.

        Args:
            last: whether no job is left that could go on with a cell whose attempt was interrupted.
        """
        for cell_id, tried in list(self._waiting.items()):
            try:
                attempts = self._sweep.cell(cell_id).attempts()
            except UnreadableDocument:
                continue
            record = attempts[-1].record if attempts and attempts[-1].number > tried else None
            if record is None or (record.verdict in GOES_ON and not last):
                continue
            del self._waiting[cell_id]
            host = record.environment.get("host")
            where = f" on {host}" if isinstance(host, str) else ""
            reason = f": {record.reason}" if record.reason else ""
            self._display.passed_over(cell_id, f"{record.verdict}{where}{reason}")

    def _unstarted(self, jobs: dict[str, list[str]]) -> dict[str, str]:
        """The cells left without a record, and what Slurm says of their jobs."""
        held = Jobs(self._slurm)
        held.expect(self._sweep.cell(cell_id) for cell_id in self._waiting)
        for cell_id in self._waiting:
            try:
                for sentence in reconcile(self._sweep.cell(cell_id), held):
                    self._display.say(sentence)
            except FileFault as fault:
                self._display.say(str(fault))
        self._look(last=True)
        left = set(self._waiting)
        asked = [job_id for job_id, cells in jobs.items() if left & set(cells)]
        states = self._slurm.history(asked) if asked else {}
        found: dict[str, str] = {}
        for job_id in asked:
            said = states[job_id].sentence if job_id in states else "Slurm knows nothing of it any more"
            found |= {
                cell: f"job {job_id} has ended without recording it: {said}" for cell in jobs[job_id] if cell in left
            }
        return found


def _counted(live: list[JobState]) -> str:
    counts = Counter(state.state for state in live)
    reasons = sorted({state.reason for state in live if state.state == "PENDING" and state.reason})
    waiting = f" ({', '.join(reasons[:3])})" if reasons else ""
    return "jobs: " + ", ".join(
        f"{count} {state.lower()}{waiting if state == 'PENDING' else ''}" for state, count in sorted(counts.items())
    )
