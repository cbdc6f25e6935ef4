"""A job that works through a queue: real cells in real children; what Slurm would set and say is made up."""

import os
import signal
import threading
import time
from contextlib import AbstractContextManager
from datetime import datetime
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import psutil
import pytest
from worker.frozen import freeze, freeze_torchless
from worker.job_sweep import MOMENT, FakeSlurm, make_queue, once, records
from worker.waiting import LONG

from scalerlt.records.lease import Lease
from scalerlt.records.plan import Plan, PlannedCell
from scalerlt.records.queue import Asked, Queue
from scalerlt.records.record import Record, Verdict
from scalerlt.records.store import CellDirectory, SweepDirectory
from scalerlt.worker import ending, slurm_job
from scalerlt.worker.ending import JobEnd
from scalerlt.worker.slots import Company, Neighbours
from scalerlt.worker.slurm import SlurmJob
from scalerlt.worker.slurm_job import work_through
from scalerlt.worker.supervisor import Supervisor
from scalerlt.worker.work_queue import WorkQueue


def progressed(sweep: Path, cell_id: str, attempt: int = 1) -> bool:
    journal = sweep / cell_id / f"attempt-{attempt:03d}" / ".progress-rank0"
    return journal.exists() and '"done"' in journal.read_text()


def signals_itself(number: signal.Signals) -> None:
    os.kill(os.getpid(), number)


def waits(sweep: Path, cell_id: str) -> bool:
    """Of a cell that waits for a file: whether it does."""
    journal = sweep / cell_id / "attempt-001" / ".progress-rank0"
    return journal.exists() and '"began"' in journal.read_text()


def goes_on(sweep: Path, cell_id: str) -> None:
    (sweep / cell_id / "go").touch()


class Clock:
    """The clock of a job's end, which can be put forward."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.ahead = 0.0
        self.monotonic = time.monotonic
        monkeypatch.setattr(ending, "time", self)

    def time(self) -> float:
        return time.time() + self.ahead


def between(record: Record) -> tuple[datetime, datetime]:
    return datetime.fromisoformat(record.started), datetime.fromisoformat(record.ended)


def test_twelve_cells_on_two_slots_and_a_second_job(
    slurm: FakeSlurm, tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """One kills itself; the first job's time is over before its queue is; the second finishes it."""
    sweep = tmp_path / "sweep"
    probes = ["waits_for_a_file", "waits_for_a_file", "is_slow", "kills_itself", *["is_slow"] * 8]
    items = [{f"c{number:02d}": probe} for number, probe in enumerate(probes)]
    side_by_side = ("c00", "c01")
    once(
        lambda: all(waits(sweep, cell) for cell in side_by_side),
        lambda: [goes_on(sweep, cell) for cell in side_by_side],
    )
    queue = make_queue(sweep, items, seconds=400.0, slots=2, max_requeues=0)
    slurm.says(ends_in=5.0 + 400.0 + 600.0)
    clock, finished = Clock(monkeypatch), list[Record]()

    def passes(record: Record) -> None:
        finished.append(record)
        if len(finished) >= 4:  # the next cell would not be done in time
            clock.ahead = 800.0

    work_through(str(queue), finished=passes)
    ran = [cell for item in items for cell in item if records(sweep, cell)]
    assert 2 <= len(ran) < 12, "some were run, and some are left"
    assert "cells are left" in capfd.readouterr().out
    assert slurm.requeued == []
    assert not [path for path in (queue.parent / "claims").iterdir() if not path.name.startswith(".")]
    slurm.starts("78")
    slurm.says(ends_in=7200.0)
    work_through(str(queue))
    for item in items:
        for cell in item:
            (record,) = records(sweep, cell)
            assert record.verdict is (Verdict.KILLED if item[cell] == "kills_itself" else Verdict.MEASURED)
            assert record.slurm["job_id"] == ("77" if cell in ran else "78")
            assert record.plan == "001.json" and record.order == int(cell[1:])
    beside = {cell: records(sweep, cell)[0].beside for item in items for cell in item}
    assert set(side_by_side) <= {*beside["c00"], *beside["c01"]}
    assert all(cell in beside[other] for cell, others in beside.items() for other in others), "of both, or of none"
    assert work_through(str(queue)) == 0, "there is nothing more to do"


def test_a_cell_that_measures_time_has_the_job_for_itself(
    slurm: FakeSlurm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """c0 runs until c1 does beside it, and c1 until c2, which measures time, has a slot and asks for its turn."""
    sweep = tmp_path / "sweep"
    items = [{f"c{number}": "waits_for_a_file" if number < 2 else "is_slow"} for number in range(5)]
    turn = Neighbours.turn

    def asks(neighbours: Neighbours, cell_id: str, **how: Any) -> AbstractContextManager[Company | None]:
        if cell_id == "c2":
            goes_on(sweep, "c1")
        return turn(neighbours, cell_id, **how)

    monkeypatch.setattr(Neighbours, "turn", asks)
    once(lambda: waits(sweep, "c1"), lambda: goes_on(sweep, "c0"))
    work_through(str(make_queue(sweep, items, slots=2, timed=[2])))
    found = {f"c{number}": records(sweep, f"c{number}")[0] for number in range(5)}
    assert found["c2"].beside == []
    began, ended = between(found["c2"])
    others = [between(record) for name, record in found.items() if name != "c2"]
    assert all(other[1] <= began or other[0] >= ended for other in others)
    assert found["c0"].beside == ["c1"], "what measures no time ran beside others"


def test_timed_cells_share_the_job_when_they_may(slurm: FakeSlurm, tmp_path: Path) -> None:
    sweep = tmp_path / "sweep"
    items = [{"a": "waits_for_a_file"}, {"b": "waits_for_a_file"}]
    once(lambda: waits(sweep, "a") and waits(sweep, "b"), lambda: [goes_on(sweep, cell) for cell in "ab"])
    work_through(str(make_queue(sweep, items, slots=2, timed=[0, 1], pack="shared")))
    assert records(sweep, "a")[0].beside == ["b"]


def test_a_bundle_runs_in_order_in_one_slot(slurm: FakeSlurm, tmp_path: Path) -> None:
    sweep = tmp_path / "sweep"
    items = [{"a1": "measures", "b1": "raises", "b2": "measures"}, {"c": "is_slow"}]
    assert work_through(str(make_queue(sweep, items, slots=2))) == 1
    found = [records(sweep, cell)[0] for cell in ("a1", "b1", "b2")]
    assert [record.verdict for record in found] == [Verdict.MEASURED, Verdict.FAILED, Verdict.MEASURED]
    assert {record.slurm["slot"] for record in found} == {found[0].slurm["slot"]}
    assert {record.bundle for record in found} == {"b0"}
    assert found[0].ended <= found[1].started and found[1].ended <= found[2].started


def test_two_jobs_never_run_one_cell(slurm: FakeSlurm, tmp_path: Path) -> None:
    sweep = tmp_path / "sweep"
    queue = make_queue(sweep, [{f"c{number:02d}": "nothing"} for number in range(16)])
    jobs = [threading.Thread(target=work_through, args=(str(queue),)) for _ in range(2)]
    for job in jobs:
        job.start()
    for job in jobs:
        job.join()
    for number in range(16):
        assert [record.verdict for record in records(sweep, f"c{number:02d}")] == [Verdict.MEASURED]


def test_only_what_was_not_run_since_the_submission_runs(slurm: FakeSlurm, tmp_path: Path) -> None:
    """Attempts of before do not count, whatever they ended with; later ones do, but for what has to go on."""
    sweep = tmp_path / "sweep"
    verdicts = {
        "old": (Verdict.MEASURED, 1),
        "new": (Verdict.MEASURED, 0),
        "failed": (Verdict.FAILED, 0),
        "preempted": (Verdict.PREEMPTED, 0),
        "lost": (Verdict.LOST, 0),
        "running": (None, 0),
    }
    queue = make_queue(
        sweep, [{cell: "nothing"} for cell in verdicts], tried={cell: tried for cell, (_, tried) in verdicts.items()}
    )
    for cell, (verdict, _) in verdicts.items():
        _, attempt = CellDirectory(sweep / cell).claim()
        if verdict is not None:
            moment = "2026-11-30T00:00:00.000+00:00"
            Record(
                sweep="sweep", cell_id=cell, axes={}, attempt=1, verdict=verdict, started=moment, ended=moment
            ).write(attempt / "record.json")
    work_through(str(queue))
    ran = {cell for cell in verdicts if (sweep / cell / "attempt-002").exists()}
    assert ran == {"old", "preempted", "lost"}


def test_what_was_tried_since_it_was_decided_makes_the_claim_fail(
    slurm: FakeSlurm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """Another queue measures a cell between this job's decision and its claim: that it has an answer counts."""
    sweep = tmp_path / "sweep"
    queue = make_queue(sweep, [{"a": "nothing", "b": "nothing"}])
    claim = CellDirectory.claim

    def too_late(cell: CellDirectory, seen: int | None = None) -> tuple[int, Path]:
        if cell.path.name == "a":
            _, attempt = claim(cell)
            Record(
                sweep="sweep", cell_id="a", axes={}, attempt=1, verdict=Verdict.MEASURED, started=MOMENT, ended=MOMENT
            ).write(attempt / "record.json")
        return claim(cell, seen)

    monkeypatch.setattr(CellDirectory, "claim", too_late)
    assert work_through(str(queue)) == 0
    assert len(records(sweep, "a")) == 1 and len(records(sweep, "b")) == 1
    assert "a: " in (shown := capfd.readouterr().out) and "attempt-001 was made by another process" in shown


def test_a_cell_that_was_changed_by_hand_is_not_run(
    slurm: FakeSlurm, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    sweep = tmp_path / "sweep"
    queue = make_queue(sweep, [{"a": "measures"}, {"b": "nothing"}])
    file = sweep / "a" / "cell.yaml"
    file.write_text(file.read_text().replace("    repeats: 1", "    repeats: 2"))
    assert work_through(str(queue)) == 1
    assert not list((sweep / "a").glob("attempt-*")) and len(records(sweep, "b")) == 1
    assert f"a: not run: {file}: was changed after it was frozen, and is no longer the cell a" in capfd.readouterr().out


def test_a_cell_that_takes_its_supervisor_with_it_is_not_tried_for_ever(slurm: FakeSlurm, tmp_path: Path) -> None:
    queue = make_queue(tmp_path / "sweep", [{"a": "nothing"}])
    work = WorkQueue(queue, SlurmJob.of_this_process())
    for number in (1, 2):
        assert work.to_run_after("a") == number - 1
        (tmp_path / "sweep" / "a" / f"attempt-{number:03d}").mkdir()
        os.utime(tmp_path / "sweep" / "a" / f"attempt-{number:03d}", (0, 0))
    assert work.to_run_after("a") is None


def test_a_cell_that_is_answered_while_it_is_looked_at_is_not_run_again(
    slurm: FakeSlurm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another queue records it, and ends, between the reading of its attempt and the look for its process."""
    work = WorkQueue(make_queue(tmp_path / "sweep", [{"a": "nothing"}]), SlurmJob.of_this_process())
    _, attempt = CellDirectory(tmp_path / "sweep" / "a").claim()
    Lease.of_this_process().write(attempt / "lease.json")

    def ends(lease: Lease, moment: str | None = None) -> bool:
        Record(
            sweep="sweep", cell_id="a", axes={}, attempt=1, verdict=Verdict.MEASURED, started=MOMENT, ended=MOMENT
        ).write(attempt / "record.json")
        return False

    monkeypatch.setattr(Lease, "is_alive", ends)
    assert work.to_run_after("a") is None


def test_one_item_of_its_own(slurm: FakeSlurm, tmp_path: Path) -> None:
    sweep = tmp_path / "sweep"
    queue = make_queue(sweep, [{"a": "nothing"}, {"b": "nothing"}])
    assert work_through(str(queue), 1) == 0
    assert [len(records(sweep, cell)) for cell in "ab"] == [0, 1]


def test_what_a_later_plan_rules_out_is_not_run(slurm: FakeSlurm, tmp_path: Path) -> None:
    sweep = tmp_path / "sweep"
    queue = make_queue(sweep, [{"a": "nothing"}, {"b": "nothing"}, {"c": "nothing"}])
    finished: list[str] = []

    def rule_out(record: Record) -> None:
        if not finished:
            planned = PlannedCell(cell_id="b", axes={}, state="skipped", reason="inferred", inferred_from="a")
            SweepDirectory(sweep).add_plan(
                Plan(sweep="sweep", created=record.ended, overrides=[], follows="001.json", cells=[planned])
            )
        finished.append(record.cell_id)

    assert work_through(str(queue), finished=rule_out) == 0
    assert finished == ["a", "c"]


def test_a_cell_that_cannot_be_read_is_told(
    slurm: FakeSlurm, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    sweep = tmp_path / "sweep"
    queue = make_queue(sweep, [{"a": "nothing"}, {"b": "nothing"}])
    (sweep / "a" / "cell.yaml").write_text("no cell")
    assert work_through(str(queue)) == 1
    assert "a: not run: " in capfd.readouterr().out
    assert records(sweep, "b")


def test_fewer_cpus_and_another_code_are_noted(slurm: FakeSlurm, tmp_path: Path) -> None:
    sweep = tmp_path / "sweep"
    asked = Asked(cpus=len(os.sched_getaffinity(0)) + 1)
    queue = make_queue(sweep, [{"a": "nothing"}], asked=asked)
    submitted = {"version": "0.0.0", "packages": {"numpy": "0.0.1"}}
    Queue.read(queue).model_copy(update={"provenance": submitted}).write(queue)
    work_through(str(queue))
    (record,) = records(sweep, "a")
    assert any(f"fewer than the {asked.cpus} that it was asked for" in note for note in record.notes)
    assert any("submitted was scalerlt 0.0.0, numpy 0.0.1" in note for note in record.notes)
    assert record.slurm["job_cpus"] == record.slurm["cpus"] == sorted(os.sched_getaffinity(0))


def test_each_slot_has_its_gpu_and_its_cpus(slurm: FakeSlurm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both before the interpreter starts; MIG instances are named as they are."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "MIG-aa/1/0,GPU-bb")
    sweep = tmp_path / "sweep"
    queue = make_queue(
        sweep,
        [{"a": "shows_its_share"}, {"b": "shows_its_share"}],
        slots=2,
        asked=Asked(gpus=3),
        axes={"device": "cuda"},
        cells=lambda cell_id, probe: freeze_torchless(sweep, probe, cell_id=cell_id),
    )
    work_through(str(queue))
    found = [records(sweep, cell)[0] for cell in "ab"]
    assert {record.metrics["gpu"].value for record in found} == {"MIG-aa/1/0", "GPU-bb"}
    for record in found:
        assert record.environment["variables"]["CUDA_VISIBLE_DEVICES"] == record.metrics["gpu"].value
        assert any("the job may use 2 GPUs, fewer than the 3" in note for note in record.notes)
        assert record.slurm["gpus"] == [record.metrics["gpu"].value]
        assert record.slurm["job_gpus"] == ["MIG-aa/1/0", "GPU-bb"]
        assert ",".join(map(str, record.slurm["cpus"])) == record.metrics["cpus"].value
        assert record.slurm["cpus"] == record.environment["affinity"]
    if len(job_cpus := os.sched_getaffinity(0)) > 1:
        first, second = (set(record.slurm["cpus"]) for record in found)
        assert not first & second and first | second == job_cpus


def test_each_slot_takes_its_cpus(slurm: FakeSlurm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where this machine has too few to tell by."""
    taken: dict[str, set[int]] = {}
    monkeypatch.setattr(slurm_job, "usable_cpus", lambda: [4, 6, 5])
    monkeypatch.setattr(os, "sched_setaffinity", lambda _, cpus: taken.update({threading.current_thread().name: cpus}))
    sweep = tmp_path / "sweep"
    work_through(str(make_queue(sweep, [{"a": "nothing"}], slots=2)))
    assert taken == {"slot-0": {4}, "slot-1": {6, 5}}
    (record,) = records(sweep, "a")
    assert set(record.slurm["cpus"]) == taken[f"slot-{record.slurm['slot']}"]
    assert record.slurm["job_cpus"] == [4, 6, 5]


class TestEnding:
    def test_preempted_cells_save_and_go_on_under_the_same_job(self, slurm: FakeSlurm, tmp_path: Path) -> None:
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

    def test_a_short_time_limit_is_no_time_limit_before_its_end(self, slurm: FakeSlurm, tmp_path: Path) -> None:
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

    def test_a_signal_before_anything_began_costs_no_place(self, slurm: FakeSlurm, tmp_path: Path) -> None:
        sweep = tmp_path / "sweep"
        queue = make_queue(sweep, [{"a": "nothing"}], timeout_min=1, signal_delay_s=2)
        slurm.says("JobState=RUNNING", ends_in=2)  # less than the signal's delay is left
        work_through(str(queue))
        assert records(sweep, "a") == [] and slurm.requeued == ["77"]

    def test_a_signal_that_was_held_back_while_the_job_started(self, slurm: FakeSlurm, tmp_path: Path) -> None:
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

    def test_the_time_limit_ends_what_cannot_save(self, slurm: FakeSlurm, tmp_path: Path) -> None:
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

    def test_what_had_not_the_whole_time_is_tried_again(self, slurm: FakeSlurm, tmp_path: Path) -> None:
        sweep = tmp_path / "sweep"
        queue = make_queue(sweep, [{"a": "nothing"}, {"b": "hangs"}], timeout_min=1, signal_delay_s=2)
        slurm.says("JobState=RUNNING", ends_in=50)
        once(lambda: progressed(sweep, "b"), lambda: signals_itself(signal.SIGUSR2))
        work_through(str(queue))
        assert records(sweep, "b")[0].verdict is Verdict.PREEMPTED
        assert "time limit of 1 min is reached" in (records(sweep, "b")[0].reason or "")
        assert slurm.requeued == ["77"]

    def test_without_a_signal_the_clock_tells(
        self, slurm: FakeSlurm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        sweep = tmp_path / "sweep"
        queue = make_queue(sweep, [{"a": "saves_when_asked"}], timeout_min=1, signal_delay_s=60)
        slurm.says("JobState=RUNNING", ends_in=1000)
        clock = Clock(monkeypatch)
        once(lambda: progressed(sweep, "a"), lambda: setattr(clock, "ahead", 950.0))
        work_through(str(queue))
        (record,) = records(sweep, "a")
        assert record.verdict is Verdict.PREEMPTED and "time limit of 1 min is reached" in (record.reason or "")

    def test_a_cancelled_job_says_so_and_does_not_come_back(self, slurm: FakeSlurm, tmp_path: Path) -> None:
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

    def test_slurm_requeues_what_it_preempts(self, slurm: FakeSlurm, tmp_path: Path) -> None:
        sweep = tmp_path / "sweep"
        queue = make_queue(sweep, [{"a": "saves_when_asked"}])
        slurm.says("JobState=COMPLETING Restarts=1 Reason=None", ends_in=3000)
        once(lambda: progressed(sweep, "a"), lambda: signals_itself(signal.SIGTERM))
        work_through(str(queue))
        (record,) = records(sweep, "a")
        assert record.verdict is Verdict.PREEMPTED and (record.reason or "").endswith("saved after step 1")
        assert slurm.requeued == [], "it was requeued already"

    def test_a_job_is_requeued_so_often_and_no_more(
        self, slurm: FakeSlurm, tmp_path: Path, capfd: pytest.CaptureFixture[str]
    ) -> None:
        sweep = tmp_path / "sweep"
        queue = make_queue(sweep, [{"a": "saves_when_asked"}], max_requeues=3)
        slurm.starts("77", RESTART_COUNT=3)
        once(lambda: progressed(sweep, "a"), lambda: signals_itself(signal.SIGUSR2))
        work_through(str(queue))
        (record,) = records(sweep, "a")
        assert (record.reason or "").endswith("the job is not requeued again (max_requeues=3)")
        assert slurm.requeued == [] and "not requeued again" in capfd.readouterr().out

    def test_what_is_left_for_want_of_time_has_the_job_started_again(self, slurm: FakeSlurm, tmp_path: Path) -> None:
        sweep = tmp_path / "sweep"
        queue = make_queue(sweep, [{"a": "nothing"}, {"b": "nothing"}], seconds=100.0, signal_delay_s=2)
        slurm.says(ends_in=60)
        work_through(str(queue))
        assert len(records(sweep, "a")) == 1, "what comes first is tried, however little time there is"
        assert records(sweep, "b") == []
        assert slurm.requeued == ["77"]

    def test_another_signal_while_cells_save(
        self, slurm: FakeSlurm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
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
