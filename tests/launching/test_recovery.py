"""What becomes of an attempt whose supervisor is gone, by what Slurm says of its job, with accounting and without."""

from pathlib import Path

import pytest
from launching.fake_slurm import FakeSlurm, ago, attempt, finish, sweep_of

from scalerlt.launching.jobs import Jobs
from scalerlt.launching.recovery import reconcile, reconcile_all
from scalerlt.launching.slurm.ask import JobState
from scalerlt.launching.status import status
from scalerlt.records.lease import Lease
from scalerlt.records.record import Record, Verdict
from scalerlt.records.recorder import Recorder
from scalerlt.records.store import CellDirectory, SweepDirectory


def recovered(sweep: Path, slurm: FakeSlurm | None, cell_id: str = "a") -> Record:
    """The newest attempt's record after putting things in order; status says the same before it is written."""
    jobs = Jobs(slurm)
    before = {cell.cell_id: cell for cell in status(sweep, jobs)}[cell_id]
    said: list[str] = []
    reconcile_all([SweepDirectory(sweep)], jobs, said.append)
    record = CellDirectory(sweep / cell_id).attempts()[-1].record
    assert record is not None
    assert (before.state, before.reason, before.unrecorded) == (str(record.verdict), record.reason, True)
    assert any(record.reason in sentence for sentence in said if record.reason)
    assert not list(sweep.glob("*/attempt-*/.*"))
    return record


@pytest.mark.parametrize(
    ("state", "verdict", "reason"),
    [
        ("NODE_FAIL", Verdict.LOST, "a node of its Slurm job 7 failed"),
        ("BOOT_FAIL", Verdict.LOST, "did not boot"),
        ("CANCELLED", Verdict.KILLED, "its Slurm job 7 was cancelled"),
        ("OUT_OF_MEMORY", Verdict.OOM, "was killed because memory ran out"),
        ("TIMEOUT", Verdict.TIMEOUT, "ended its job 7 at its time limit"),
        ("DEADLINE", Verdict.TIMEOUT, "at its deadline"),
        ("PREEMPTED", Verdict.PREEMPTED, "its Slurm job 7 was preempted"),
        ("FAILED", Verdict.LOST, "its supervisor (pid 4321 on another-host) died without a record"),
        ("COMPLETED", Verdict.LOST, "died without a record"),
    ],
)
@pytest.mark.parametrize("source", ["squeue", "sacct", "scontrol"])
def test_the_verdict_is_what_slurm_says(tmp_path: Path, state: str, verdict: Verdict, reason: str, source: str) -> None:
    """squeue lists a job for minutes after its end, so does scontrol without accounting; sacct knows it for ever."""
    sweep = sweep_of(tmp_path / "sweep", "a")
    path = attempt(sweep, "a")
    with_recorder = Recorder(path)
    with_recorder._enter("generate")
    with_recorder.metric("before", 1.5)
    with_recorder.close()
    job = JobState("7", state, "by 1000", "n1", source)
    slurm = FakeSlurm(listed={"7": job}) if source == "squeue" else FakeSlurm(known={"7": job})
    record = recovered(sweep, slurm)
    assert record.verdict is verdict
    assert reason in (record.reason or "")
    said = f"{source} says {state} (by 1000), on n1"
    asked = said if source == "squeue" else f"squeue does not list job 7; {said}"
    assert f"({asked})" in (record.reason or "")
    assert record.slurm == {"job_id": "7"}
    assert record.metrics["before"].value == 1.5, "what it had recorded is kept"
    if state in ("CANCELLED", "OUT_OF_MEMORY", "TIMEOUT"):
        assert record.failure is not None and (record.failure.type, record.failure.phase) == (state, "generate")


def test_without_accounting_and_long_after(tmp_path: Path) -> None:
    """S7: sacct is disabled and scontrol has forgotten the job: lost, and who was asked stands in the reason."""
    sweep = sweep_of(tmp_path / "sweep", "a")
    attempt(sweep, "a")
    record = recovered(sweep, FakeSlurm())
    assert record.verdict is Verdict.LOST
    assert record.reason == (
        "its supervisor (pid 4321 on another-host) died without a record "
        "(squeue does not list job 7; neither sacct nor scontrol knows how it ended)"
    )


def test_without_slurm_the_heartbeat_decides(tmp_path: Path) -> None:
    sweep = sweep_of(tmp_path / "sweep", "a", "b")
    attempt(sweep, "a", heartbeat=300)
    attempt(sweep, "b", heartbeat=5)
    assert {cell.cell_id: cell.state for cell in status(sweep)} == {"a": "lost", "b": "running"}
    assert "about which nobody could be asked here" in (recovered(sweep, None).reason or "")


@pytest.mark.parametrize(("heartbeat", "state"), [(10.0, "running"), (300.0, "lost")])
def test_squeue_not_answering_makes_no_living_job_lost(tmp_path: Path, heartbeat: float, state: str) -> None:
    sweep = sweep_of(tmp_path / "sweep", "a")
    attempt(sweep, "a", heartbeat=heartbeat)
    (found,) = status(sweep, Jobs(FakeSlurm(is_silent=True)))
    assert found.state == state
    assert (found.state == "running") or "squeue does not answer" in (found.reason or "")


@pytest.mark.parametrize("state", ["RUNNING", "SUSPENDED"])
def test_a_job_that_slurm_says_runs_is_alive_however_old_its_heartbeat(tmp_path: Path, state: str) -> None:
    sweep = sweep_of(tmp_path / "sweep", "a")
    path = attempt(sweep, "a", started=7200, heartbeat=4000)
    slurm = FakeSlurm(listed={"7": JobState("7", state, started=ago(7300))})
    assert status(sweep, Jobs(slurm))[0].state == "running"
    assert reconcile(CellDirectory(sweep / "a"), Jobs(slurm)) == []
    assert not (path / "record.json").exists()


@pytest.mark.parametrize(("heartbeat", "state"), [(10.0, "running"), (40.0, "lost")])
def test_a_job_that_slurm_does_not_list_is_dead_once_its_heartbeat_stops(
    tmp_path: Path, heartbeat: float, state: str
) -> None:
    """Long before the heartbeat alone would say so; but its record may still be on its way."""
    sweep = sweep_of(tmp_path / "sweep", "a")
    attempt(sweep, "a", heartbeat=heartbeat)
    assert status(sweep, Jobs(FakeSlurm()))[0].state == state


def test_an_attempt_of_a_job_that_was_put_back_and_started_again(tmp_path: Path) -> None:
    sweep = sweep_of(tmp_path / "sweep", "a")
    attempt(sweep, "a", started=3600, heartbeat=600)
    record = recovered(sweep, FakeSlurm(listed={"7": JobState("7", "RUNNING", started=ago(60))}))
    assert record.verdict is Verdict.LOST
    assert record.reason == "its Slurm job 7 was ended and put back into the queue (squeue says RUNNING)"


def test_an_attempt_of_this_host_is_known_by_its_process_whatever_slurm_says(tmp_path: Path) -> None:
    sweep = sweep_of(tmp_path / "sweep", "alive", "dead", "rebooted")
    here = Lease.of_this_process("7")
    for cell_id in ("alive", "dead", "rebooted"):
        path = attempt(sweep, cell_id)
        changed = {"dead": {"start_ticks": 1.0}, "rebooted": {"boot_id": "another"}}.get(cell_id, {})
        here.model_copy(update=changed).write(path / "lease.json")
    slurm = FakeSlurm(listed={"7": JobState("7", "RUNNING", started=ago(9000))})
    found = {cell.cell_id: (cell.state, cell.reason or "") for cell in status(sweep, Jobs(slurm))}
    assert [state for state, _ in found.values()] == ["running", "lost", "lost"]
    assert "died without a record (squeue says RUNNING)" in found["dead"][1]
    assert f"{here.host} was started anew while it ran" in found["rebooted"][1]
    assert status(sweep, Jobs(FakeSlurm()))[0].state == "running"


def test_of_several_cells_in_a_job_without_memory_none_is_blamed(tmp_path: Path) -> None:
    """`oom` is an answer, which rules out larger cells: it is not given to a cell that only ran beside another."""
    sweep = sweep_of(tmp_path / "sweep", "a", "b")
    for cell_id in ("a", "b"):
        attempt(sweep, cell_id)
    slurm = FakeSlurm(known={"7": JobState("7", "OUT_OF_MEMORY", source="sacct")})
    for cell_id in ("a", "b"):  # one after the other, each without a look at the other
        (sentence,) = reconcile(CellDirectory(sweep / cell_id), Jobs(slurm))
        assert "which of 2 cells that it ran took it cannot be told" in sentence
        assert Record.read(sweep / cell_id / "attempt-001" / "record.json").verdict is Verdict.LOST


SLURM_22 = """\
step 3 of 10
slurmstepd-n1: error: StepId=7.0 exceeded memory limit (1227337728 > 1073741824), being killed
srun: Job step aborted: Waiting up to 5 seconds for job step to finish.
slurmstepd-n1: error: Exceeded job memory limit
"""
SLURM_20 = (
    "slurmstepd: error: Detected 1 oom-kill event(s) in StepId=7.0 cgroup. Some of your processes may have died.\n"
)


@pytest.mark.parametrize(
    ("log", "verdict", "words"),
    [
        (SLURM_22, Verdict.OOM, "StepId=7.0 exceeded memory limit (1227337728 > 1073741824), being killed"),
        (SLURM_20, Verdict.OOM, "Detected 1 oom-kill event(s) in StepId=7.0 cgroup."),
        ("RuntimeError: exceeded memory limit\n", Verdict.LOST, "died without a record"),
    ],
)
@pytest.mark.parametrize("slurm", [FakeSlurm(known={"7": JobState("7", "FAILED", source="scontrol")}), FakeSlurm()])
def test_memory_that_ran_out_is_told_by_the_log_where_slurm_says_failed(
    tmp_path: Path, slurm: FakeSlurm, log: str, verdict: Verdict, words: str
) -> None:
    sweep = sweep_of(tmp_path / "sweep", "a")
    attempt(sweep, "a")
    (sweep / "submissions/002/submitit").mkdir(parents=True)
    (sweep / "submissions/002/submitit/7_0_log.err").write_text(log)
    (sweep / "submissions/002/submitit/8_0_log.err").write_text(SLURM_22)
    record = recovered(sweep, slurm)
    assert record.verdict is verdict
    assert words in (record.reason or "")
    assert (record.failure is not None and record.failure.type == "OUT_OF_MEMORY") == (verdict is Verdict.OOM)


@pytest.mark.parametrize("state", ["PENDING", "RUNNING", "COMPLETED", "NODE_FAIL"])
def test_the_log_of_a_job_that_did_not_fail_blames_nobody(tmp_path: Path, state: str) -> None:
    """It was written to before the job went back into the queue, or for an earlier cell."""
    sweep = sweep_of(tmp_path / "sweep", "a")
    attempt(sweep, "a")
    (sweep / "submissions/001/submitit").mkdir(parents=True)
    (sweep / "submissions/001/submitit/7_0_log.err").write_text(SLURM_22)
    assert recovered(sweep, FakeSlurm(known={"7": JobState("7", state, source="scontrol")})).verdict is Verdict.LOST


def test_the_log_of_a_job_whose_oom_is_told_blames_no_other(tmp_path: Path) -> None:
    sweep = sweep_of(tmp_path / "sweep", "told", "a")
    attempt(sweep, "told", verdict=Verdict.OOM)
    attempt(sweep, "a")
    (sweep / "submissions/001/submitit").mkdir(parents=True)
    (sweep / "submissions/001/submitit/7_0_log.err").write_text(SLURM_20)
    assert recovered(sweep, FakeSlurm(known={"7": JobState("7", "FAILED", source="scontrol")})).verdict is Verdict.LOST


@pytest.mark.parametrize(("job_id", "verdict"), [("5_3", Verdict.OOM), ("5_1", Verdict.LOST), ("5", Verdict.LOST)])
def test_each_element_of_an_array_has_a_log_of_its_own(tmp_path: Path, job_id: str, verdict: Verdict) -> None:
    """A process knows its own number, 7; Slurm tells which element of which array that is."""
    sweep = sweep_of(tmp_path / "sweep", "a")
    attempt(sweep, "a")
    (sweep / "submissions/001/submitit").mkdir(parents=True)
    (sweep / "submissions/001/submitit/5_3_0_log.err").write_text(SLURM_22)
    assert recovered(sweep, FakeSlurm(known={"7": JobState(job_id, "FAILED", source="sacct")})).verdict is verdict


def test_an_earlier_cell_of_a_job_without_memory_is_no_suspect(tmp_path: Path) -> None:
    sweep = sweep_of(tmp_path / "sweep", "recorded", "requeued", "a")
    attempt(sweep, "recorded", started=500, heartbeat=310, verdict=Verdict.MEASURED)
    finished = Record.read(sweep / "recorded" / "attempt-001" / "record.json")
    finished.model_copy(update={"ended": ago(305)}).write(sweep / "recorded" / "attempt-001" / "record.json")
    attempt(sweep, "requeued", started=2000, heartbeat=1500, verdict=Verdict.LOST)
    attempt(sweep, "a", heartbeat=300)
    record = recovered(sweep, FakeSlurm(known={"7": JobState("7", "OUT_OF_MEMORY", source="sacct")}))
    assert record.verdict is Verdict.OOM


def test_a_record_that_appears_meanwhile_is_not_written_over(tmp_path: Path) -> None:
    """The supervisor's own word counts: it was slow, or its file was seen late."""
    sweep = sweep_of(tmp_path / "sweep", "a")
    path = attempt(sweep, "a")

    class Slow(FakeSlurm):
        def history(self, job_ids: object) -> dict[str, JobState]:
            finish(path, Verdict.MEASURED)
            return {}

    assert reconcile(CellDirectory(sweep / "a"), Jobs(Slow())) == []
    assert Record.read(path / "record.json").verdict is Verdict.MEASURED


def test_slurm_is_asked_once_for_all_cells_and_not_at_all_without_need(tmp_path: Path) -> None:
    sweep = sweep_of(tmp_path / "sweep", "a", "b", "c", "d")
    for number, cell_id in enumerate(("a", "b", "c")):
        attempt(sweep, cell_id, job=str(10 + number))
    slurm = FakeSlurm(listed={"10": JobState("10", "RUNNING")})
    status(sweep, Jobs(slurm))
    assert slurm.questions == [["10", "11", "12"]]
    assert slurm.histories == [["11", "12"]]
    asked = FakeSlurm()
    attempt(sweep, "d", job=None)
    status(sweep_of(tmp_path / "other", "x"), Jobs(asked))
    assert asked.questions == asked.histories == []


def test_a_job_id_that_is_none_of_slurms_is_not_asked_about(tmp_path: Path) -> None:
    """One name that is none makes squeue refuse the whole question."""
    sweep = sweep_of(tmp_path / "sweep", "a", "b")
    attempt(sweep, "a", job="gone; rm -rf", heartbeat=300)
    attempt(sweep, "b", job="12_3", heartbeat=300)
    slurm = FakeSlurm(listed={"12_3": JobState("12_3", "RUNNING")})
    found = {cell.cell_id: cell.state for cell in status(sweep, Jobs(slurm))}
    assert found == {"a": "lost", "b": "running"}
    assert slurm.questions == [["12_3"]]
