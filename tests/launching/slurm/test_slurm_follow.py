"""From job ids to the end of the jobs, on a mocked Slurm."""

import io
import os
import signal
import sys
import threading
from collections.abc import Iterable
from pathlib import Path

import pytest
from launching.conftest import wait_until
from launching.slurm.mock import MockSlurm
from launching.slurm.slurm_sweeps import leave_record, run, settings_of, sweep_of
from rich.console import Console

from scalerlt.launching.progress import Display
from scalerlt.launching.slurm import follow
from scalerlt.launching.slurm.ask import JobState
from scalerlt.records.base import UnwritableFile
from scalerlt.records.record import Verdict
from scalerlt.records.store import CellDirectory, SweepDirectory
from scalerlt.worker.processes import search_path

pytestmark = pytest.mark.usefixtures("quick")


def test_jobs_run_their_cells_and_one_that_exits_hard_costs_no_other_its_result(
    three: SweepDirectory, mock_slurm: MockSlurm
) -> None:
    mock_slurm.runs_jobs()
    outcome, shown = run(three, settings_of(wait=True, max_jobs=1))
    assert {cell.cell_id: cell.state for cell in outcome.cells} == {"a": "measured", "b": "failed", "c": "measured"}
    assert outcome.exit_code == 1 and not outcome.faults
    assert "[3/3]" in shown and "  failed b:" in shown and "3 cells: 2 measured, 1 failed" in shown
    record = three.cell("a").last_record()
    assert record is not None and record.environment["slurm"]["SLURM_JOB_ID"] == "12"
    assert set(mock_slurm.jobs().values()) == {"COMPLETED"}, "which says nothing of the cells"


def test_a_task_without_the_jobs_variables_says_so(tmp_path: Path, mock_slurm: MockSlurm) -> None:
    sweep = sweep_of(tmp_path / "runs" / "sweep", {"a": "measures"})
    mock_slurm.runs_jobs()
    mock_slurm.srun_clears_the_environment()
    outcome, _ = run(sweep, settings_of(wait=True, python=f"env PYTHONPATH={search_path()} {sys.executable}"))
    assert outcome.exit_code == 1 and "job 12 has ended without recording it" in outcome.faults["a"]
    log = (sweep.path / "submissions/001/submitit/12_0_log.err").read_text()
    assert "SLURM_JOB_ID and SUBMITIT_EXECUTOR did not reach its process" in log
    assert "srun_args=[--export=ALL]" in log and "Traceback" not in log


def test_cancelled_jobs_leave_their_cells_with_a_reason(three: SweepDirectory, mock_slurm: MockSlurm) -> None:
    """Without accounting; submitit alone would wait for ever."""

    def cancel() -> None:
        wait_until(lambda: len(mock_slurm.calls("squeue")) >= 2, 240)
        leave_record(three, "a", Verdict.MEASURED)
        mock_slurm.shows("JobId=12001 ArrayJobId=12 ArrayTaskId=1 JobState=CANCELLED Reason=None NodeList=(null)")
        mock_slurm.queue()

    canceller = threading.Thread(target=cancel)
    canceller.start()
    outcome, shown = run(three, settings_of(wait=True))
    canceller.join()
    assert outcome.exit_code == 1 and not outcome.interrupted
    assert outcome.faults["b"] == "job 12_1 has ended without recording it: CANCELLED"
    assert "Slurm knows nothing of it any more" in outcome.faults["c"]
    assert "a measured on n1" in shown and "jobs: 3 pending (Priority)" in shown
    assert shown.count("sacct does not answer") == 1


def test_ctrl_c_ends_the_waiting_and_leaves_the_jobs(three: SweepDirectory, mock_slurm: MockSlurm) -> None:
    def press() -> None:
        wait_until(lambda: len(mock_slurm.calls("squeue")) >= 2, 240)
        os.kill(os.getpid(), signal.SIGINT)

    presser = threading.Thread(target=press)
    presser.start()
    outcome, shown = run(three, settings_of(wait=True))
    presser.join()
    assert outcome.interrupted and outcome.exit_code == 130
    assert set(mock_slurm.jobs().values()) == {"PENDING"} and mock_slurm.calls("scancel") == []
    assert "the jobs stay in Slurm's queue" in shown and "scancel 12" in shown
    assert {cell.state for cell in outcome.cells} == {"queued"}


def test_a_job_that_fails_in_its_setup_is_told_and_submitted_again(
    three: SweepDirectory, mock_slurm: MockSlurm
) -> None:
    mock_slurm.runs_jobs()
    outcome, shown = run(three, settings_of(wait=True, max_jobs=1, setup=["echo no such module >&2", "exit 3"]))
    assert outcome.exit_code == 1
    assert {cell.cell_id: (cell.state, cell.job) for cell in outcome.cells} == dict.fromkeys("abc", ("failed", "12"))
    assert "3 cells: 3 failed" in shown and "  failed a: job 12 did not run it: squeue says FAILED" in shown
    assert not list(three.path.glob("*/attempt-*"))
    outcome, shown = run(three, settings_of(wait=True, max_jobs=1))
    assert {cell.cell_id: cell.state for cell in outcome.cells} == {"a": "measured", "b": "failed", "c": "measured"}
    assert len(mock_slurm.calls("sbatch")) == 2


def test_a_damaged_queue_of_an_earlier_submission_is_passed_over(three: SweepDirectory, mock_slurm: MockSlurm) -> None:
    run(three, settings_of())
    queue = three.path / "submissions/001/queue.json"
    queue.unlink()
    mock_slurm.queue()
    mock_slurm.runs_jobs()
    outcome, shown = run(three, settings_of(wait=True, max_jobs=1))
    assert {cell.cell_id: cell.state for cell in outcome.cells} == {"a": "measured", "b": "failed", "c": "measured"}
    assert f"passed over: {queue}" in shown and f"warning: its jobs are not followed: {queue}" in shown


class Series:
    """A queue that tells one thing after another."""

    def __init__(self, *states: str) -> None:
        self.states = list(states)
        self.asked = 0
        self.is_silent = False

    def queue(self, job_ids: Iterable[str]) -> dict[str, JobState]:
        state = self.states[min(self.asked, len(self.states) - 1)]
        self.asked += 1
        self.is_silent = state == "silent"
        return {} if state in ("absent", "silent") else {job_id: JobState(job_id, state) for job_id in job_ids}

    def history(self, job_ids: Iterable[str]) -> dict[str, JobState]:
        return {}


@pytest.mark.parametrize(
    ("max_requeues", "states", "questions"),
    [
        (1, ("RUNNING", "PREEMPTED", "PENDING", "RUNNING", "COMPLETED"), 5),
        (1, ("RUNNING", "PREEMPTED", "absent"), 3),
        (0, ("RUNNING", "PREEMPTED", "PREEMPTED", "absent"), 2),
        (1, ("PENDING", "silent", "silent", "RUNNING", "absent"), 5),
        (1, ("REQUEUED", "REQUEUE_HOLD", "RUNNING", "CANCELLED"), 4),
        (1, ("NODE_FAIL",), 1),
    ],
)
def test_a_job_is_followed_until_it_can_run_no_more(
    max_requeues: int,
    states: tuple[str, ...],
    questions: int,
    three: SweepDirectory,
    mock_slurm: MockSlurm,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    run(three, settings_of(max_jobs=1, max_requeues=max_requeues))
    monkeypatch.setattr(follow, "LOOK_SECONDS", 0.0)
    monkeypatch.setattr(follow, "ASK_SECONDS", 0.0)
    series, shown = Series(*states), io.StringIO()
    display = Display(Console(file=shown, soft_wrap=True))
    unstarted = follow.Follower(three, series, display, lambda: False).follow("abc")  # type: ignore[arg-type]
    assert set(unstarted) == {"a", "b", "c"}
    assert series.asked == questions


def test_a_preempted_attempt_is_no_end_while_its_job_lives(three: SweepDirectory, mock_slurm: MockSlurm) -> None:
    run(three, settings_of(max_jobs=1))
    for cell_id in "abc":
        leave_record(three, cell_id, Verdict.PREEMPTED)
    leave_record(three, "a", Verdict.MEASURED)
    shown = io.StringIO()
    display = Display(Console(file=shown, soft_wrap=True))
    follower = follow.Follower(three, Series("RUNNING", "RUNNING", "COMPLETED"), display, lambda: False)  # type: ignore[arg-type]
    assert follower.follow("abc") == {}
    lines = shown.getvalue().splitlines()
    told = [lines.index(line) for line in ("[1/3] a measured on n1", "jobs: 1 running", "[2/3] b preempted on n1")]
    assert told == sorted(told), "while the job lives it may go on with b"


def test_a_cell_that_cannot_be_put_in_order_hides_no_other(
    three: SweepDirectory, mock_slurm: MockSlurm, monkeypatch: pytest.MonkeyPatch
) -> None:
    run(three, settings_of(max_jobs=1))
    leave_record(three, "b", Verdict.MEASURED)

    def full(cell: CellDirectory, *_: object) -> list[str]:
        if cell.path.name == "a":
            raise UnwritableFile(f"{cell.path}: cannot be written (No space left on device)")
        return []

    monkeypatch.setattr(follow, "reconcile", full)
    shown = io.StringIO()
    display = Display(Console(file=shown, soft_wrap=True))
    follower = follow.Follower(three, Series("COMPLETED"), display, lambda: False)  # type: ignore[arg-type]
    assert set(follower.follow("abc")) == {"a", "c"}
    assert "a: cannot be written (No space left on device)" in shown.getvalue()
