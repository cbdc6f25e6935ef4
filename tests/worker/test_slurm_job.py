"""A job that works through a queue: real cells in real children; what Slurm would set and say is made up."""

import os
import threading
from contextlib import AbstractContextManager
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from worker.frozen import freeze_torchless
from worker.job_sweep import MOMENT, Clock, FakeSlurm, goes_on, make_queue, once, records, waits

from scalerlt.records.lease import Lease
from scalerlt.records.plan import Plan, PlannedCell
from scalerlt.records.queue import Asked, Queue
from scalerlt.records.record import Record, Verdict
from scalerlt.records.store import CellDirectory, SweepDirectory
from scalerlt.worker import slurm_job
from scalerlt.worker.slots import Company, Neighbours
from scalerlt.worker.slurm import SlurmJob
from scalerlt.worker.slurm_job import work_through
from scalerlt.worker.work_queue import WorkQueue


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
