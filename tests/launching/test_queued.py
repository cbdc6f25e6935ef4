"""Which cells wait for a Slurm job, from the files of submissions and from what squeue lists."""

from pathlib import Path

import pytest
from launching.fake_slurm import FakeSlurm, attempt, finish, submit, sweep_of, write_log

from scalerlt.launching.jobs import Jobs
from scalerlt.launching.slurm.ask import JobState
from scalerlt.launching.status import CellStatus, status, status_of_sweeps
from scalerlt.records.base import now
from scalerlt.records.plan import Plan, PlannedCell
from scalerlt.records.record import Verdict
from scalerlt.records.store import SweepDirectory
from scalerlt.records.submission import Submission, scripts_folder


def found(sweep: Path, slurm: FakeSlurm | None) -> dict[str, CellStatus]:
    return {cell.cell_id: cell for cell in status(sweep, Jobs(slurm))}


def test_a_cell_is_queued_while_squeue_lists_a_job_that_has_still_to_run_it(tmp_path: Path) -> None:
    sweep = sweep_of(tmp_path / "sweep", "a", "b", "c", "d", "e")
    submit(sweep, [["a"], ["b"], ["c"], ["d"]], [("5_0", [0]), ("5_1", [1]), ("5_2", [2]), ("5_3", [3])])
    slurm = FakeSlurm(
        listed={
            "5_0": JobState("5_0", "PENDING", "Priority"),
            "5_1": JobState("5_1", "RUNNING"),
            "5_2": JobState("5_2", "CANCELLED", "by 1000"),
        }
    )
    cells = found(sweep, slurm)
    assert {cell_id: cell.state for cell_id, cell in cells.items()} == {
        "a": "queued",
        "b": "queued",
        "c": "planned",
        "d": "lost",
        "e": "planned",
    }
    assert (cells["a"].job, cells["a"].reason) == ("5_0", "job 5_0: squeue says PENDING (Priority)")
    assert (cells["b"].job, cells["b"].reason) == ("5_1", "job 5_1 has not come to it yet")
    assert cells["c"].reason == "job 5_2 did not run it: squeue says CANCELLED (by 1000)"
    assert cells["d"].reason == (
        "job 5_3 did not run it: squeue does not list job 5_3; neither sacct nor scontrol knows how it ended"
    )
    assert cells["e"].reason is None
    assert slurm.questions == [["5_0", "5_1", "5_2", "5_3"]]


def test_what_a_job_has_run_is_not_queued_any_more(tmp_path: Path) -> None:
    """The jobs share a queue: while they go on, what they have done is done; what was there before is not."""
    sweep = sweep_of(tmp_path / "sweep", "failed", "measured", "failed-before", "preempted", "lost")
    attempt(sweep, "failed-before", job=None, verdict=Verdict.FAILED)
    items = [["failed", "measured"], ["failed-before"], ["preempted"], ["lost"]]
    submit(sweep, items, [("5", [0, 1, 2, 3]), ("6", [0, 1, 2, 3])])
    attempt(sweep, "failed", verdict=Verdict.FAILED, reason="ValueError")
    attempt(sweep, "measured", verdict=Verdict.MEASURED)
    attempt(sweep, "preempted", verdict=Verdict.PREEMPTED)
    attempt(sweep, "lost", job="5")
    slurm = FakeSlurm(listed={"5": JobState("5", "PENDING", "BeginTime"), "6": JobState("6", "RUNNING")})
    cells = found(sweep, slurm)
    assert {cell_id: cell.state for cell_id, cell in cells.items()} == {
        "failed": "failed",
        "measured": "measured",
        "failed-before": "queued",
        "preempted": "queued",
        "lost": "queued",
    }
    assert cells["preempted"].reason == "job 6 has not come to it yet; attempt 1 ended preempted"
    assert not any(cell.is_bad for cell in cells.values() if cell.state == "queued")
    slurm.listed.clear()
    ended = {cell_id: cell.state for cell_id, cell in found(sweep, slurm).items()}
    assert ended | {"failed": "failed", "measured": "measured"} == {
        "failed": "failed",
        "measured": "measured",
        "failed-before": "lost",
        "preempted": "preempted",
        "lost": "lost",
    }


def test_the_states_of_a_job_that_is_preempted_and_goes_on(tmp_path: Path) -> None:
    """S11: RUNNING, PREEMPTED, PENDING, RUNNING, COMPLETED; and PREEMPTED, then absent."""
    sweep = sweep_of(tmp_path / "sweep", "a")
    submit(sweep, [["a"]], [("7", [0])])
    slurm = FakeSlurm(listed={"7": JobState("7", "RUNNING")})

    def state() -> str:
        return found(sweep, slurm)["a"].state

    assert state() == "queued"
    first = attempt(sweep, "a", started=100, heartbeat=1)
    assert state() == "running"
    finish(first, Verdict.PREEMPTED)
    seen = []
    for said in ("PREEMPTED", "PENDING", "RUNNING"):
        slurm.listed["7"] = JobState("7", said)
        seen.append(state())
    assert seen == ["queued", "queued", "queued"], "it may go on, and is not submitted again"
    second = attempt(sweep, "a", started=50, heartbeat=1)
    assert state() == "running"
    slurm.listed["7"] = JobState("7", "COMPLETED")
    finish(second, Verdict.MEASURED)
    assert state() == "measured"


@pytest.mark.parametrize(
    ("listed", "max_requeues", "state"), [(True, 10, "queued"), (True, 0, "bad"), (False, 10, "bad")]
)
@pytest.mark.parametrize("left", ["nothing", "an attempt", "a record"])
def test_a_preempted_job_is_waited_for_where_it_goes_back_into_the_queue(
    listed: bool, max_requeues: int, state: str, left: str, tmp_path: Path
) -> None:
    sweep = sweep_of(tmp_path / "sweep", "a")
    submit(sweep, [["a"]], [("7", [0])], max_requeues)
    if left != "nothing":
        attempt(sweep, "a", verdict=Verdict.PREEMPTED if left == "a record" else None)
    says = {"7": JobState("7", "PREEMPTED", "", "n1", "squeue" if listed else "sacct")}
    (cell,) = found(sweep, FakeSlurm(listed=says) if listed else FakeSlurm(known=says)).values()
    assert cell.state == ("preempted" if state == "bad" else state) and cell.is_bad == (state == "bad")
    if state == "queued":
        before = "" if left == "nothing" else "; attempt 1 ended preempted"
        assert cell.reason == f"job 7: squeue says PREEMPTED, on n1{before}"


def test_what_waits_is_not_given_up_because_squeue_is_silent(tmp_path: Path) -> None:
    sweep = sweep_of(tmp_path / "sweep", "a")
    submit(sweep, [["a"]], [("7", [0])])
    (cell,) = found(sweep, FakeSlurm(is_silent=True)).values()
    assert (cell.state, cell.reason) == ("queued", "submitted as job 7; squeue does not answer")
    (cell,) = found(sweep, None).values()
    assert (cell.state, cell.reason) == ("planned", "submitted as job 7; there is no Slurm here to ask")


@pytest.mark.parametrize(
    ("end", "state", "said"),
    [
        (JobState("7", "FAILED", "NonZeroExitCode", "n1"), "failed", "squeue says FAILED (NonZeroExitCode), on n1"),
        (JobState("7", "FAILED", "exit code 3:0", "n1", "sacct"), "failed", "; sacct says FAILED (exit code 3:0)"),
        (JobState("7", "BOOT_FAIL", source="scontrol"), "failed", "; scontrol says BOOT_FAIL"),
        (JobState("7", "OUT_OF_MEMORY", "", "n1"), "failed", "OUT_OF_MEMORY"),
        (JobState("7", "COMPLETED", "", "n1"), "failed", "COMPLETED"),
        (JobState("7", "NODE_FAIL", "", "n1"), "lost", "NODE_FAIL"),
        (JobState("7", "TIMEOUT", "", "n1"), "timeout", "TIMEOUT"),
        (JobState("7", "PREEMPTED", "", "n1"), "preempted", "PREEMPTED"),
        (JobState("7", "CANCELLED", "by 1000", "n1"), "killed", "CANCELLED (by 1000), on n1"),
        (JobState("7", "CANCELLED", "by 1000"), "planned", "CANCELLED (by 1000)"),
        (None, "lost", "squeue does not list job 7; neither sacct nor scontrol knows how it ended"),
    ],
)
def test_a_job_that_ended_before_it_came_to_its_cell(
    end: JobState | None, state: str, said: str, tmp_path: Path
) -> None:
    sweep = sweep_of(tmp_path / "sweep", "a", "b")
    log = write_log(submit(sweep, [["a"]], [("7", [0])], max_requeues=0), "7", "slurmstepd: no space left\n")
    slurm = FakeSlurm()
    if end is not None:
        (slurm.listed if end.source == "squeue" else slurm.known)["7"] = end
    cells = found(sweep, slurm)
    cell = cells["a"]
    assert cell.state == state and cell.is_bad == (state != "planned")
    assert (cell.reason or "").startswith("job 7 did not run it: squeue ") and said in (cell.reason or "")
    assert (cell.job, cell.log) == (("7", log) if cell.is_bad else (None, None))
    assert cell.attempt is None and not cell.unrecorded
    assert (cells["b"].state, cells["b"].reason) == ("planned", None)


def test_the_end_of_the_newest_job_counts_and_an_attempt_that_was_made_since(tmp_path: Path) -> None:
    sweep = sweep_of(tmp_path / "sweep", "again", "back", "tried", "ruled-out")
    attempt(sweep, "again", job=None, verdict=Verdict.FAILED, reason="ValueError")
    jobs = [(f"7_{index}", [index]) for index in range(4)]
    submit(sweep, [["again"], ["back"], ["tried"], ["ruled-out"]], jobs)
    attempt(sweep, "tried", job=None, verdict=Verdict.PREEMPTED, reason="SIGTERM")
    file = submit(sweep, [["back"]], [("8", [0])])
    out = write_log(file, "8", "module: command not found\n", "out")
    write_log(file, "8", "")
    ruled_out = PlannedCell(cell_id="ruled-out", axes={}, state="skipped", reason="inferred: it is larger")
    SweepDirectory(sweep).add_plan(Plan(sweep="sweep", created=now(), overrides=[], cells=[ruled_out]))
    slurm = FakeSlurm(known={job_id: JobState(job_id, "FAILED", "exit code 3:0", source="sacct") for job_id, _ in jobs})
    slurm.known["8"] = JobState("8", "TIMEOUT", source="sacct")
    cells = found(sweep, slurm)
    assert {cell_id: (cell.state, cell.job, cell.log) for cell_id, cell in cells.items()} == {
        "again": ("failed", "7_0", None),
        "back": ("timeout", "8", out),
        "tried": ("preempted", None, sweep / "tried" / "attempt-001" / "stderr.log"),
        "ruled-out": ("skipped", None, None),
    }
    assert (cells["again"].reason or "").endswith("sacct says FAILED (exit code 3:0); attempt 1 ended failed")
    assert cells["again"].attempt == 1
    assert slurm.histories == [["7_0", "7_1", "7_2", "7_3", "8"]], "one question serves for all"
    attempt(sweep, "again", job=None, verdict=Verdict.FAILED, reason="TypeError")
    assert found(sweep, slurm)["again"].reason == "TypeError"


def test_forgotten_jobs_are_not_asked_about_at_every_look(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("scalerlt.launching.jobs.REMEMBER_SECONDS", -1.0)
    sweep = sweep_of(tmp_path / "sweep", "a", "b")
    submit(sweep, [["a"], ["b"]], [("7_0", [0]), ("7_1", [1])])
    slurm = FakeSlurm()
    jobs = Jobs(slurm)
    for _ in range(3):
        assert {cell.state for cell in status(sweep, jobs)} == {"lost"}
    assert slurm.histories == [["7_0", "7_1"]]
    monkeypatch.setattr("scalerlt.launching.jobs.UNKNOWN_SECONDS", -1.0)
    jobs = Jobs(slurm)
    status(sweep, jobs)
    slurm.known["7_1"] = JobState("7_1", "TIMEOUT", source="sacct")
    assert [cell.state for cell in status(sweep, jobs)] == ["lost", "timeout"], "accounting was behind"


def test_of_several_jobs_the_one_is_named_whose_end_says_most(tmp_path: Path) -> None:
    sweep = sweep_of(tmp_path / "sweep", "a", "b")
    file = submit(sweep, [["a"], ["b"]], [("5", [0, 1]), ("6", [0, 1]), ("7", [0, 1])])
    log = write_log(file, "6", "error: no CUDA\n")
    ends = {"5": "COMPLETED", "6": "FAILED", "7": "CANCELLED"}
    slurm = FakeSlurm(listed={job_id: JobState(job_id, state) for job_id, state in ends.items()})
    attempt(sweep, "a", job="5", verdict=Verdict.MEASURED)
    cell = found(sweep, slurm)["b"]
    assert (cell.state, cell.job, cell.log) == ("failed", "6", log)
    assert cell.reason == "job 6 and 2 more did not run it: squeue says FAILED"


def without_jobs(sweep: Path, items: list[list[str]], **launcher: object) -> Path:
    """A submission of a shell that was killed before it could write down any job; where its scripts stand."""
    file = submit(sweep, items, [])
    submission = Submission.read(file)
    submission.job_name, submission.launcher = f"{sweep.name}-{file.stem}", dict(launcher)
    submission.write(file)
    scripts_folder(file).mkdir()
    return scripts_folder(file)


def test_jobs_that_nobody_wrote_down_are_found_by_their_name(tmp_path: Path) -> None:
    sweep = sweep_of(tmp_path / "sweep", "a", "b", "c")
    before = {path: path.read_bytes() for path in (sweep / "submissions").glob("*.json")}
    ours = str(without_jobs(sweep, [["a"], ["b"], ["c"]]) / ".submission_file_0123.sh")
    theirs = str(tmp_path / "other/sweep/submissions/001/submitit/.submission_file_4567.sh")
    slurm = FakeSlurm()
    slurm.of_names["sweep-001"] = [
        JobState("9", "PENDING", script=theirs),
        JobState("12_0", "RUNNING", nodes="n1", script=ours),
        JobState("12_1", "FAILED", nodes="n1", script=ours),
    ]
    slurm.listed = {job.job_id: job for job in slurm.of_names["sweep-001"]}
    cells = found(sweep, slurm)
    assert {cell_id: (cell.state, cell.job) for cell_id, cell in cells.items()} == {
        "a": ("queued", "12_0"),
        "b": ("failed", "12_1"),
        "c": ("planned", None),
    }
    assert slurm.names_asked == [["sweep-001"]]
    assert before == {path: path.read_bytes() for path in before}, "nothing is written"
    for cell_id in "abc":
        attempt(sweep, cell_id, job=None, verdict=Verdict.MEASURED)
    found(sweep, slurm)
    assert len(slurm.names_asked) == 1, "what has its answer is not looked for"


def test_a_job_that_shares_the_queue_is_found_and_what_sbatch_refused_is_not_looked_for(tmp_path: Path) -> None:
    sweep = sweep_of(tmp_path / "sweep", "a", "b")
    scripts = without_jobs(sweep, [["a"], ["b"]], max_jobs=1)
    slurm = FakeSlurm(of_names={"sweep-001": [JobState("12", "PENDING", script=str(scripts / ".submission.sh"))]})
    slurm.listed["12"] = slurm.of_names["sweep-001"][0]
    assert {(cell.state, cell.job) for cell in found(sweep, slurm).values()} == {("queued", "12")}
    file = sweep / "submissions" / "001.json"
    submission = Submission.read(file)
    submission.fault = "sbatch did not take the jobs"
    submission.write(file)
    assert {cell.state for cell in found(sweep, slurm).values()} == {"planned"}
    assert len(slurm.names_asked) == 1


def test_old_submissions_are_not_asked_about_again(tmp_path: Path) -> None:
    """A cell that has its answer settles its jobs: a sweep of years asks about what is open."""
    sweep = sweep_of(tmp_path / "sweep", "a", "b")
    submit(sweep, [["a"], ["b"]], [("1_0", [0]), ("1_1", [1])])
    attempt(sweep, "a", verdict=Verdict.MEASURED)
    attempt(sweep, "b", verdict=Verdict.FAILED)
    submit(sweep, [["b"]], [("2", [0])])
    slurm = FakeSlurm(listed={"2": JobState("2", "PENDING")})
    assert {cell_id: cell.state for cell_id, cell in found(sweep, slurm).items()} == {"a": "measured", "b": "queued"}
    assert slurm.questions == [["2"]]


def test_a_damaged_submission_is_named_and_the_rest_is_shown(tmp_path: Path) -> None:
    sweep = sweep_of(tmp_path / "sweep", "a", "b")
    submit(sweep, [["a"]], [("7", [0])]).write_text("{")
    file = submit(sweep, [["b"]], [("8", [0])])
    (file.with_suffix("") / "queue.json").unlink()
    (seen,) = status_of_sweeps(sweep, Jobs(FakeSlurm()))
    assert [cell.state for cell in seen.cells] == ["planned", "planned"]
    assert len(seen.faults) == 2
    assert "001.json" in seen.faults[0] and "queue.json" in seen.faults[1]
