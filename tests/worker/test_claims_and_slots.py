"""Claims between processes, the division of a job, and what Slurm's answers mean."""

import os
import subprocess
import sys
import threading
import time
from contextlib import AbstractContextManager
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from worker.job_sweep import make_queue
from worker.waiting import LONG

from scalerlt.records.lease import Lease
from scalerlt.worker.claims import Claims
from scalerlt.worker.processes import search_path
from scalerlt.worker.slots import Company, Neighbours, shares
from scalerlt.worker.slurm import SlurmJob, end_of, in_words, is_preempted
from scalerlt.worker.work_queue import WorkQueue

CLAIMS_ALL = """
import sys
from pathlib import Path
from scalerlt.worker.claims import Claims
claims = Claims(Path(sys.argv[1]))
print("ready", flush=True)
sys.stdin.readline()
print(*[index for index in range(200) if claims.take(index)], flush=True)
sys.stdin.readline()
"""


def dead(lease: Lease) -> Lease:
    """The same lease of a process that is no more."""
    return lease.model_copy(update={"pid": 2**22 - 1, "start_ticks": 1.0})


def test_of_several_processes_one_gets_each_item_and_takes_the_dead_over(tmp_path: Path) -> None:
    for index in range(0, 200, 2):  # every other one was held by a job that died
        (tmp_path / str(index)).mkdir()
        dead(Lease.of_this_process()).write(tmp_path / str(index) / "lease.json")
    jobs = [
        subprocess.Popen(
            [sys.executable, "-c", CLAIMS_ALL, str(tmp_path)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": search_path()},
        )
        for _ in range(3)
    ]
    for job in jobs:
        assert job.stdout is not None and job.stdout.readline() == "ready\n"
    for job in jobs:
        assert job.stdin is not None
        job.stdin.write("\n")
        job.stdin.flush()
    taken = [[int(word) for word in job.stdout.readline().split()] for job in jobs if job.stdout is not None]
    for job in jobs:
        job.communicate("\n")
    assert sorted(index for one in taken for index in one) == list(range(200)), "each once"


def test_a_claim_is_given_back(tmp_path: Path) -> None:
    ours, theirs = Claims(tmp_path, "77"), Claims(tmp_path)
    assert ours.take(3) and not theirs.take(3)
    holder = theirs.holder(3)
    assert holder is not None and (holder.pid, holder.slurm_job_id) == (os.getpid(), "77")
    ours.release(3)
    assert theirs.holder(3) is None and theirs.take(3)


def test_a_claim_of_another_host_is_dead_when_its_heartbeat_is_old(tmp_path: Path) -> None:
    ours, theirs = Claims(tmp_path), Claims(tmp_path)
    ours.take(0)
    elsewhere = Lease.of_this_process().model_copy(update={"host": "elsewhere"})
    elsewhere.write(tmp_path / "0" / "lease.json")
    assert not theirs.take(0)
    elsewhere.model_copy(update={"heartbeat": "2026-01-01T00:00:00.000+00:00"}).write(tmp_path / "0" / "lease.json")
    assert theirs.take(0)
    ours.renew()
    ours.release(0)
    holder = theirs.holder(0)
    assert holder is not None and holder.is_of_this_host, "what was lost is left to whoever has it"


def test_a_claim_that_is_just_being_made_is_not_taken_over(tmp_path: Path) -> None:
    (tmp_path / "0").mkdir()
    claims = Claims(tmp_path)
    assert not claims.take(0)
    os.utime(tmp_path / "0", (0, 0))
    assert claims.take(0)


def test_heartbeats_are_renewed(tmp_path: Path) -> None:
    claims = Claims(tmp_path)
    claims.take(0)
    before = claims.holder(0)
    time.sleep(0.01)
    claims.renew()
    after = claims.holder(0)
    assert before is not None and after is not None and after.heartbeat > before.heartbeat


@given(slots=st.integers(1, 9), cpus=st.lists(st.integers(0, 99), min_size=1, unique=True), gpus=st.integers(0, 9))
def test_a_division_gives_every_slot_its_own(slots: int, cpus: list[int], gpus: int) -> None:
    named = [f"MIG-{number}" for number in range(gpus)]
    divided = shares(slots, cpus, named)
    assert len(divided) == min(slots, max(1, gpus))
    assert [name for share in divided for name in share.gpus or ()] == named, "every GPU once, in order"
    assert all(share.cpus for share in divided)
    if len(cpus) >= len(divided):
        assert sorted(cpu for share in divided for cpu in share.cpus) == sorted(cpus), "every CPU once"
    assert divided[0].environment == {"CUDA_VISIBLE_DEVICES": ",".join(divided[0].gpus or ())}
    assert shares(slots, cpus, None)[0].environment == {}


def test_one_that_waits_for_its_peace_is_not_passed_by() -> None:
    """Of a, the timed b and c, c waits for b although it could run beside a, which runs until all have asked."""
    neighbours, told = Neighbours(), []
    all_have_asked, both_run = threading.Event(), threading.Barrier(2, timeout=LONG)
    runs = {"a": lambda: all_have_asked.wait(LONG), "b": lambda: None, "c": both_run.wait, "d": both_run.wait}

    def run(cell: str, alone: bool, asks: threading.Event) -> None:
        with neighbours.turn(cell, alone=alone, give_up=lambda: bool(asks.set())) as company:
            assert company is not None
            company.begin()
            runs[cell]()
            told.append((cell, company.tell()))

    threads = []
    for cell, alone in (("a", False), ("b", True), ("c", False), ("d", False)):
        asks = threading.Event()
        threads.append(threading.Thread(target=run, args=(cell, alone, asks)))
        threads[-1].start()
        asks.wait()
    all_have_asked.set()
    for thread in threads:
        thread.join()
    assert told[:2] == [("a", []), ("b", [])]
    assert sorted(told[2:]) == [("c", ["d"]), ("d", ["c"])]


def test_waiting_for_a_turn_can_be_given_up() -> None:
    neighbours = Neighbours()
    with (
        neighbours.turn("a", alone=True, give_up=lambda: False),
        neighbours.turn("b", alone=False, give_up=lambda: True) as company,
    ):
        assert company is None
    with neighbours.turn("c", alone=True, give_up=lambda: False) as company:
        assert company is not None, "who gave up waits no more"


def test_a_job_is_named_as_slurms_commands_name_it() -> None:
    alone = SlurmJob.of_this_process({"SLURM_JOB_ID": "12"})
    assert (alone.job_id, alone.raw_id, alone.restarts) == ("12", "12", 0)
    task = SlurmJob.of_this_process(
        {"SLURM_JOB_ID": "14", "SLURM_ARRAY_JOB_ID": "12", "SLURM_ARRAY_TASK_ID": "0", "SLURM_RESTART_COUNT": "2"}
    )
    assert (task.job_id, task.raw_id, task.restarts) == ("12_0", "14", 2)
    assert SlurmJob.of_this_process({}).plain() == {}
    assert SlurmJob.of_this_process({"SLURM_JOB_ID": "12", "SLURM_JOB_END_TIME": "1796000000"}).end == 1796000000


@pytest.mark.parametrize(
    ("says", "preempted"),
    [
        ({}, False),
        ({"JobState": "RUNNING", "Reason": "None", "Restarts": "0"}, False),
        ({"JobState": "COMPLETING", "Reason": "None", "PreemptTime": "None"}, False),
        ({"JobState": "CANCELLED"}, False),
        ({"JobState": "PREEMPTED"}, True),
        ({"JobState": "RUNNING", "PreemptTime": "2026-11-30T02:00:00"}, True),
        ({"JobState": "COMPLETING", "Restarts": "1"}, True),
        ({"JobState": "REQUEUED"}, True),
    ],
)
def test_what_slurm_says_of_a_preempted_job(says: dict[str, str], preempted: bool) -> None:
    assert is_preempted(says, restarts=0) == preempted


def test_what_slurm_says_in_words() -> None:
    assert in_words({}) == "Slurm says nothing"
    assert in_words({"JobState": "PREEMPTED", "Reason": "None", "Restarts": "0"}) == "Slurm says JobState=PREEMPTED"
    assert end_of({"EndTime": "Unknown"}) is None
    assert end_of({"EndTime": "1970-01-02T00:00:00"}) == time.mktime((1970, 1, 2, 0, 0, 0, 0, 0, -1))


def test_a_requeued_job_waits_until_its_earlier_self_is_surely_dead(tmp_path: Path) -> None:
    """It held the item on a host that is gone, and nobody else would come for it."""
    queue = make_queue(tmp_path / "sweep", [{"a": "nothing"}, {"b": "nothing"}])
    lease = Lease.of_this_process("77").model_copy(update={"host": "gone"})
    claim = queue.parent / "claims" / "0"
    claim.mkdir(parents=True)
    lease.write(claim / "lease.json")
    again = WorkQueue(queue, SlurmJob(job_id="77", raw_id="77", restarts=1))
    assert [item.index for item in iter(lambda: again.take(lambda cells, item: True), None)] == [1]
    assert again.waits_for_earlier_self
    assert not WorkQueue(queue, SlurmJob(job_id="78", raw_id="78", restarts=1)).waits_for_earlier_self
    assert not WorkQueue(queue, SlurmJob(job_id="77", raw_id="77", restarts=0)).waits_for_earlier_self
    lease.model_copy(update={"heartbeat": "2026-01-01T00:00:00.000+00:00"}).write(claim / "lease.json")
    assert not again.waits_for_earlier_self
    taken = again.take(lambda cells, item: True)
    assert taken is not None and taken.index == 0


def test_what_does_not_fit_is_left_and_what_fits_is_taken(tmp_path: Path) -> None:
    queue = make_queue(tmp_path / "sweep", [{"a": "nothing", "b": "nothing"}, {"c": "nothing"}])
    work = WorkQueue(queue, SlurmJob.of_this_process({}))
    taken = work.take(lambda cells, item: len(cells) < 2)
    assert taken is not None and taken.cells == ["c"]
    assert work.left() == ["a", "b"]
    work.give_back(taken)
    assert work.left() == ["a", "b", "c"]


def test_a_cell_is_beside_those_that_ran_and_they_beside_it() -> None:
    """Of b, which has its turn and does not run, and c, which another job has begun in this moment, nobody says so."""
    neighbours = Neighbours()

    def turn(cell: str) -> AbstractContextManager[Company | None]:
        return neighbours.turn(cell, alone=False, give_up=lambda: False)

    with turn("a") as a, turn("d") as d:
        assert a is not None and d is not None
        a.begin()
        with turn("b"):
            pass
        with turn("c") as c:
            assert c is not None
            c.begin()
        d.begin()
        assert (a.tell(), d.tell()) == (["d"], ["a"])
        with turn("e") as e:
            assert e is not None
            e.begin()
            assert e.tell() == [], "a and d had ended"
