"""Which cells wait for a Slurm job, from the files of submissions and from what squeue lists."""

from pathlib import Path

from launching.fake_slurm import FakeSlurm, attempt, finish, submit, sweep_of

from scalerlt.launching.jobs import Jobs
from scalerlt.launching.slurm.ask import JobState
from scalerlt.launching.status import CellStatus, status, status_of_sweeps
from scalerlt.records.record import Verdict


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
        "d": "planned",
        "e": "planned",
    }
    assert (cells["a"].job, cells["a"].reason) == ("5_0", "job 5_0: squeue says PENDING (Priority)")
    assert (cells["b"].job, cells["b"].reason) == ("5_1", "job 5_1 has not come to it yet")
    assert cells["c"].reason == "job 5_2 did not run it: squeue says CANCELLED (by 1000)"
    assert cells["d"].reason == "job 5_3 did not run it: squeue does not list it any more"
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
        "failed-before": "failed",
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
    assert seen == ["preempted", "queued", "queued"]
    second = attempt(sweep, "a", started=50, heartbeat=1)
    assert state() == "running"
    slurm.listed["7"] = JobState("7", "COMPLETED")
    finish(second, Verdict.MEASURED)
    assert state() == "measured"


def test_preempted_and_then_absent_is_not_waited_for(tmp_path: Path) -> None:
    sweep = sweep_of(tmp_path / "sweep", "a")
    submit(sweep, [["a"]], [("7", [0])])
    attempt(sweep, "a", verdict=Verdict.PREEMPTED, reason="Slurm says JobState=PREEMPTED")
    (cell,) = found(sweep, FakeSlurm()).values()
    assert (cell.state, cell.is_bad) == ("preempted", True)


def test_what_waits_is_not_given_up_because_squeue_is_silent(tmp_path: Path) -> None:
    sweep = sweep_of(tmp_path / "sweep", "a")
    submit(sweep, [["a"]], [("7", [0])])
    (cell,) = found(sweep, FakeSlurm(is_silent=True)).values()
    assert (cell.state, cell.reason) == ("queued", "submitted as job 7; squeue does not answer")
    (cell,) = found(sweep, None).values()
    assert (cell.state, cell.reason) == ("planned", "submitted as job 7; there is no Slurm here to ask")


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
