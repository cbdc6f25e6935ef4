"""How a Slurm job ends: its signals, its time limit, and what its cells make of them; real cells, a made-up Slurm."""

import os
import signal
import threading
from pathlib import Path
from queue import SimpleQueue

import psutil
import pytest
from worker.frozen import freeze
from worker.job_sweep import Clock, FakeSlurm, goes_on, make_queue, once, records
from worker.waiting import LONG

from scalerlt.records.record import Verdict
from scalerlt.records.store import CellDirectory
from scalerlt.worker.ending import JobEnd
from scalerlt.worker.slurm import SlurmJob
from scalerlt.worker.slurm_job import work_through
from scalerlt.worker.supervisor import Supervisor
from scalerlt.worker.work_queue import WorkQueue


def progressed(sweep: Path, cell_id: str, attempt: int = 1) -> bool:
    journal = sweep / cell_id / f"attempt-{attempt:03d}" / ".progress-rank0"
    return journal.exists() and '"done"' in journal.read_text()


def signals_itself(number: signal.Signals) -> None:
    os.kill(os.getpid(), number)


def test_preempted_cells_save_and_go_on_under_the_same_job(slurm: FakeSlurm, tmp_path: Path) -> None:
    sweep = tmp_path / "sweep"
    queue = make_queue(sweep, [{"a": "saves_when_asked"}, {"b": "nothing"}], signal_delay_s=30)
    slurm.starts("79", ARRAY_JOB_ID=70, ARRAY_TASK_ID=4)
    slurm.says("JobState=RUNNING Reason=None", ends_in=3000)
    once(lambda: progressed(sweep, "a"), lambda: signals_itself(signal.SIGUSR2))
    work_through(str(queue))
    (first,) = records(sweep, "a")
    assert first.verdict is Verdict.PREEMPTED
    assert first.reason == "the job was preempted (Slurm says JobState=RUNNING); saved after step 1"
    assert first.slurm["job_id"] == "70_4" and first.slurm["ended"] == "preempted"
    assert slurm.requeued == ["70_4"]
    assert records(sweep, "b") == []
    slurm.starts("79", RESTART_COUNT=1)
    assert work_through(str(queue)) == 0
    assert [record.verdict for record in records(sweep, "a")] == [Verdict.PREEMPTED, Verdict.MEASURED]
    assert records(sweep, "a")[1].continues == 1
    assert records(sweep, "a")[1].slurm["restarts"] == 1
    assert records(sweep, "b")[0].verdict is Verdict.MEASURED
    assert slurm.requeued == ["70_4"], "there is nothing left"


def test_a_short_time_limit_is_no_time_limit_before_its_end(slurm: FakeSlurm, tmp_path: Path) -> None:
    """Of five minutes the signal comes after one: somebody else wants the nodes."""
    sweep = tmp_path / "sweep"
    queue = make_queue(sweep, [{"a": "hangs"}], timeout_min=5, signal_delay_s=2)
    slurm.says("JobState=RUNNING", ends_in=240)
    once(lambda: progressed(sweep, "a"), lambda: signals_itself(signal.SIGUSR2))
    work_through(str(queue))
    (record,) = records(sweep, "a")
    assert record.verdict is Verdict.PREEMPTED
    assert "the job was preempted" in (record.reason or "") and "without having saved" in (record.reason or "")
    assert slurm.requeued == ["77"], "the next time it may keep its nodes"


def test_a_signal_before_anything_began_costs_no_place(slurm: FakeSlurm, tmp_path: Path) -> None:
    sweep = tmp_path / "sweep"
    queue = make_queue(sweep, [{"a": "nothing"}], timeout_min=1, signal_delay_s=2)
    slurm.says("JobState=RUNNING", ends_in=2)  # less than the signal's delay is left
    work_through(str(queue))
    assert records(sweep, "a") == [] and slurm.requeued == ["77"]


def test_a_signal_that_was_held_back_while_the_job_started(slurm: FakeSlurm, tmp_path: Path) -> None:
    """No attempt is begun only to be ended."""
    sweep = tmp_path / "sweep"
    queue = make_queue(sweep, [{"a": "nothing"}])
    slurm.says("JobState=RUNNING", ends_in=3000)
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR2})
    try:
        # To this thread: others of the test run, which do not hold it back, would take it.
        signal.pthread_kill(threading.get_ident(), signal.SIGUSR2)
        work_through(str(queue))
        assert signal.SIGUSR2 not in signal.pthread_sigmask(signal.SIG_BLOCK, [])
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
    assert CellDirectory(sweep / "a").attempts() == [] and slurm.requeued == ["77"]


def test_the_time_limit_ends_what_cannot_save(slurm: FakeSlurm, tmp_path: Path) -> None:
    sweep = tmp_path / "sweep"
    queue = make_queue(sweep, [{"a": "hangs"}, {"b": "nothing"}], timeout_min=1, signal_delay_s=2)
    slurm.says("JobState=RUNNING", ends_in=50)  # Slurm is early
    once(lambda: progressed(sweep, "a"), lambda: signals_itself(signal.SIGUSR2))
    work_through(str(queue))
    (record,) = records(sweep, "a")
    assert (record.verdict, record.reason) == (Verdict.TIMEOUT, "exceeded the job's time limit of 1 min")
    assert slurm.requeued == ["77"], "a is decided, and b is left"
    slurm.starts("77", RESTART_COUNT=1)
    slurm.says(ends_in=3600)
    work_through(str(queue))
    assert len(records(sweep, "a")) == 1 and len(records(sweep, "b")) == 1


def test_what_had_not_the_whole_time_is_tried_again(slurm: FakeSlurm, tmp_path: Path) -> None:
    sweep = tmp_path / "sweep"
    queue = make_queue(sweep, [{"a": "nothing"}, {"b": "hangs"}], timeout_min=1, signal_delay_s=2)
    slurm.says("JobState=RUNNING", ends_in=50)
    once(lambda: progressed(sweep, "b"), lambda: signals_itself(signal.SIGUSR2))
    work_through(str(queue))
    assert records(sweep, "b")[0].verdict is Verdict.PREEMPTED
    assert "time limit of 1 min is reached" in (records(sweep, "b")[0].reason or "")
    assert slurm.requeued == ["77"]


def test_without_a_signal_the_clock_tells(slurm: FakeSlurm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sweep = tmp_path / "sweep"
    queue = make_queue(sweep, [{"a": "saves_when_asked"}], timeout_min=1, signal_delay_s=60)
    slurm.says("JobState=RUNNING", ends_in=1000)
    clock = Clock(monkeypatch)
    once(lambda: progressed(sweep, "a"), lambda: setattr(clock, "ahead", 950.0))
    work_through(str(queue))
    (record,) = records(sweep, "a")
    assert record.verdict is Verdict.PREEMPTED and "time limit of 1 min is reached" in (record.reason or "")


def test_a_cancelled_job_says_so_and_does_not_come_back(slurm: FakeSlurm, tmp_path: Path) -> None:
    sweep = tmp_path / "sweep"
    queue = make_queue(sweep, [{"a": "nothing"}, {"b": "hangs_and_ignores_sigterm"}, {"c": "nothing"}])
    slurm.says("JobState=CANCELLED Reason=None", ends_in=3000)
    once(lambda: progressed(sweep, "b"), lambda: signals_itself(signal.SIGTERM))
    assert work_through(str(queue)) == 1
    (record,) = records(sweep, "b")
    assert record.verdict is Verdict.KILLED
    assert record.reason == "the job was cancelled (Slurm says JobState=CANCELLED)"
    assert record.metrics["before"].value == 1.5
    assert records(sweep, "c") == [] and slurm.requeued == []
    slurm.starts("78")
    work_through(str(queue))
    assert len(records(sweep, "b")) == 1, "the user ended it"
    slurm.starts("77", RESTART_COUNT=1)
    assert WorkQueue(queue, SlurmJob.of_this_process()).to_run_after("b"), "no cancelling: it was started again"


def test_slurm_requeues_what_it_preempts(slurm: FakeSlurm, tmp_path: Path) -> None:
    sweep = tmp_path / "sweep"
    queue = make_queue(sweep, [{"a": "saves_when_asked"}])
    slurm.says("JobState=COMPLETING Restarts=1 Reason=None", ends_in=3000)
    once(lambda: progressed(sweep, "a"), lambda: signals_itself(signal.SIGTERM))
    work_through(str(queue))
    (record,) = records(sweep, "a")
    assert record.verdict is Verdict.PREEMPTED and (record.reason or "").endswith("saved after step 1")
    assert slurm.requeued == [], "it was requeued already"


def test_a_job_is_requeued_so_often_and_no_more(
    slurm: FakeSlurm, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    sweep = tmp_path / "sweep"
    queue = make_queue(sweep, [{"a": "saves_when_asked"}], max_requeues=3)
    slurm.starts("77", RESTART_COUNT=3)
    once(lambda: progressed(sweep, "a"), lambda: signals_itself(signal.SIGUSR2))
    work_through(str(queue))
    (record,) = records(sweep, "a")
    assert (record.reason or "").endswith("the job is not requeued again (max_requeues=3)")
    assert slurm.requeued == [] and "not requeued again" in capfd.readouterr().out


def test_what_is_left_for_want_of_time_has_the_job_started_again(slurm: FakeSlurm, tmp_path: Path) -> None:
    sweep = tmp_path / "sweep"
    queue = make_queue(sweep, [{"a": "nothing"}, {"b": "nothing"}], seconds=100.0, signal_delay_s=2)
    slurm.says(ends_in=60)
    work_through(str(queue))
    assert len(records(sweep, "a")) == 1, "what comes first is tried, however little time there is"
    assert records(sweep, "b") == []
    assert slurm.requeued == ["77"]


def test_another_signal_while_cells_save(slurm: FakeSlurm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Cancelled while it saves: what it saves is kept, and the job does not come back."""
    sweep = tmp_path / "sweep"
    queue = make_queue(sweep, [{"a": "saves_when_let"}, {"b": "nothing"}], signal_delay_s=60)
    slurm.says("JobState=RUNNING", ends_in=3000)
    take, taken = JobEnd.take, SimpleQueue[int | None]()

    def tells(end: JobEnd, number: int | None) -> None:
        take(end, number)
        taken.put(number)

    def cancel() -> None:
        signals_itself(signal.SIGUSR2)
        assert taken.get(timeout=LONG) == signal.SIGUSR2
        slurm.says("JobState=CANCELLED", ends_in=3000)
        signals_itself(signal.SIGTERM)
        assert taken.get(timeout=LONG) == signal.SIGTERM
        goes_on(sweep, "a")

    monkeypatch.setattr(JobEnd, "take", tells)

    once(lambda: progressed(sweep, "a"), cancel)
    work_through(str(queue))
    (record,) = records(sweep, "a")
    assert record.verdict is Verdict.KILLED and record.slurm["saved"] is True
    assert slurm.requeued == []


def test_slurms_signals_wait_for_a_child_and_do_not_end_it(slurm: FakeSlurm, tmp_path: Path) -> None:
    """Slurm signals every process of a job; here at once, long before the child has its handlers."""
    signalled: list[int] = []

    def on_event(glimpse: object) -> None:
        if not signalled:
            children = psutil.Process().children()
            (child,) = [child for child in children if "scalerlt.worker.child" in child.cmdline()]
            signalled.append(child.pid)
            child.send_signal(signal.SIGTERM)
            child.send_signal(signal.SIGUSR2)

    record = Supervisor().run(freeze(tmp_path / "sweep", "saves_when_asked"), on_event=on_event)
    assert (record.verdict, record.reason) == (Verdict.PREEMPTED, "saved after step 1")
    assert record.ranks[0].pid == signalled[0] and record.ranks[0].signal is None
