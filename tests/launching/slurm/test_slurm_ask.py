"""What Slurm says of jobs, and that it may say nothing."""

import time
from pathlib import Path

import pytest
from launching.slurm.mock import MockSlurm

from scalerlt.launching.slurm import ask
from scalerlt.launching.slurm.ask import JobState, Slurm, expand


@pytest.fixture
def said() -> list[str]:
    return []


@pytest.fixture
def slurm(said: list[str], mock_slurm: MockSlurm) -> Slurm:
    return Slurm(said.append)


@pytest.mark.parametrize(
    ("text", "ids"),
    [
        ("12", ["12"]),
        ("12_3", ["12_3"]),
        ("12_[3-5%2]", ["12_3", "12_4", "12_5"]),
        ("12_[0,3-4,9]", ["12_0", "12_3", "12_4", "12_9"]),
        ("12_[0-6:3%1]", ["12_0", "12_3", "12_6"]),
        ("12+1", []),
        ("12.batch", []),
        ("", []),
    ],
)
def test_ids_of_arrays(text: str, ids: list[str]) -> None:
    assert expand(text) == ids


def test_squeue_tells_of_the_jobs_that_are_asked_for(slurm: Slurm, mock_slurm: MockSlurm) -> None:
    mock_slurm.queue(
        "12_0|RUNNING|None|n1|13|2026-11-30T02:00:00",
        "12_[1-3%2]|PENDING|JobArrayTaskLimit||12|2026-11-30T09:00:00",
        "20|PREEMPTED|None|n2|20|2026-11-30T01:00:00",
        "21|REQUEUED|None||21|N/A",
        "22|NODE_FAIL|None|n3|22|N/A",
        "23|OUT_OF_MEMORY|OutOfMemory|n3|23|N/A",
        "99|RUNNING|None|n1|99|N/A",
    )
    found = slurm.queue(["12_0", "12_2", "20", "21", "22", "23"])
    assert set(found) == {"12_0", "12_2", "20", "21", "22", "23"}
    assert found["12_0"].nodes == "n1" and found["12_0"].reason == ""
    assert found["12_0"].started is not None and found["12_0"].started.startswith("2026-11-30T02:00:00")
    assert found["12_2"].sentence == "PENDING (JobArrayTaskLimit)"
    assert found["12_2"].started is None, "what is said of one that waits is when it may start"
    assert {job_id for job_id, state in found.items() if state.has_ended} == {"22", "23"}
    assert slurm.queue(["13"])["13"].state == "RUNNING", "by the number that its processes know"
    assert set(slurm.queue(["12"])) == {"12_0", "12_1", "12_2", "12_3", "12"}
    assert slurm.queue([]) == {} and len(mock_slurm.calls("squeue")) == 3
    assert not slurm.is_silent


def test_a_job_that_squeue_has_forgotten_is_no_fault(slurm: Slurm, said: list[str]) -> None:
    assert slurm.queue(["12"]) == {} and not slurm.is_silent and said == []


def test_squeue_without_an_answer(slurm: Slurm, mock_slurm: MockSlurm, said: list[str]) -> None:
    mock_slurm.queue("12|RUNNING|None|n1|12|N/A")
    mock_slurm.fails("squeue", "slurm_load_jobs error: Unable to contact slurm controller (connect failure)")
    assert slurm.queue(["12"]) == {} and slurm.is_silent
    assert slurm.queue(["12"]) == {} and slurm.is_silent
    assert len(said) == 1 and "Unable to contact slurm controller" in said[0]
    assert len(mock_slurm.calls("squeue")) == 1, "a command that has failed is left alone for a while"
    mock_slurm.works("squeue")
    slurm._silent_until.clear()
    assert set(slurm.queue(["12"])) == {"12"} and not slurm.is_silent


def test_a_command_that_hangs(mock_slurm: MockSlurm, said: list[str]) -> None:
    mock_slurm.hangs("squeue")
    slurm = Slurm(said.append, seconds=0.5)
    began = time.monotonic()
    assert slurm.queue(["12"]) == {} and slurm.is_silent
    assert time.monotonic() - began < 30
    assert said == [
        "squeue does not answer (no answer within 0.5 s); what runs is told by heartbeats, and what waits is not known"
    ]


def test_sacct_tells_how_jobs_ended(slurm: Slurm, mock_slurm: MockSlurm, said: list[str]) -> None:
    mock_slurm.accounts(
        "12_0|CANCELLED by 1000|0:0|n1|13",
        "12_0.batch|CANCELLED|0:15|n1|13.batch",
        "12_1|TIMEOUT|0:0|n1|14",
        "12_2|FAILED|1:0|n1|12",
        "13|COMPLETED|0:0|None assigned|13",
        "14|OUT_OF_ME+|0:125|n1|14",
        "77|FAILED|1:0|n1|77",
    )
    found = slurm.history(["12", "14"], since="2026-11-29T23:59:00+00:00")
    assert found["12_0"] == JobState("12_0", "CANCELLED", "by 1000", "n1", "sacct", "13")
    assert found["12_1"].state == "TIMEOUT"
    assert found["12_2"].sentence == "FAILED (exit code 1:0), on n1"
    assert "77" not in found
    [call] = mock_slurm.calls("sacct")
    assert "--starttime=2026-11-29" in call, "without it nothing of yesterday is told after midnight"
    slurm.history(["12"])
    assert "--starttime=1970-01-01" in mock_slurm.calls("sacct")[-1]
    assert said == []


def test_without_accounting_there_is_one_warning_and_scontrol(
    slurm: Slurm, mock_slurm: MockSlurm, said: list[str]
) -> None:
    mock_slurm.shows(
        "JobId=14 ArrayJobId=12 ArrayTaskId=0 JobName=x JobState=NODE_FAIL Reason=NodeDown NodeList=n1 ExitCode=0:1",
        "JobId=12 ArrayJobId=12 ArrayTaskId=1-3%2 JobState=PENDING Reason=Resources NodeList=(null) ExitCode=0:0",
        "JobId=15 JobState=FAILED Reason=None NodeList=n2 ExitCode=9:0",
    )
    found = slurm.history(["12_0", "12_3", "15"])
    assert found["12_0"].sentence == "NODE_FAIL (NodeDown), on n1" and found["12_0"].source == "scontrol"
    assert found["12_3"].state == "PENDING"
    assert found["15"].reason == "exit code 9:0"
    slurm.history(["12_0"])
    assert len(said) == 1 and "Slurm accounting storage is disabled" in said[0], "one warning for all questions"
    assert len(mock_slurm.calls("sacct")) == 1


def test_accounting_that_is_behind(slurm: Slurm, mock_slurm: MockSlurm, said: list[str]) -> None:
    mock_slurm.accounts()
    assert slurm.history(["12"]) == {} == slurm.history(["12"])
    assert len(said) == 1 and "it knows none of the jobs" in said[0]
    mock_slurm.accounts("12|COMPLETED|0:0|n1|12")
    assert slurm.history(["12"])["12"].state == "COMPLETED", "asked again all the same"


def test_no_slurm_here(slurm: Slurm, said: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert slurm.history(["12"]) == {} and slurm.queue(["12"]) == {} and slurm.largest_array() is None
    assert slurm.is_silent and len(said) == 3 and all("it is not installed here" in line for line in said)


def test_the_largest_array(slurm: Slurm, mock_slurm: MockSlurm) -> None:
    mock_slurm.largest_array(5)
    assert slurm.largest_array() == 5
    mock_slurm.fails("scontrol", "Access/permission denied")
    assert slurm.largest_array() is None


def test_a_command_is_asked_again_after_a_while(
    slurm: Slurm, mock_slurm: MockSlurm, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(ask, "AGAIN_SECONDS", 0.0)
    mock_slurm.queue("12|RUNNING|None|n1|12|N/A")
    mock_slurm.fails("squeue", "Socket timed out on send/recv operation", times=1)
    assert slurm.queue(["12"]) == {}
    assert slurm.queue(["12"])["12"].state == "RUNNING"


def test_jobs_are_found_by_their_name(mock_slurm: MockSlurm) -> None:
    said: list[str] = []
    mock_slurm.queue(
        "12_[0-1]|PENDING|Priority||12|N/A|/shared/my|runs/.submission_file_1.sh|sweep-001",
        "13|RUNNING|None|n1|13|2026-01-01T00:00:00|/home/b.sh|sweep-002",
        "14|RUNNING|None|n1|14|2026-01-01T00:00:00|/home/c.sh|other",
    )
    slurm = Slurm(said.append)
    assert slurm.named([]) == {} and mock_slurm.calls("squeue") == []
    found = slurm.named(["sweep-001", "sweep-002"])
    assert len(mock_slurm.calls("squeue")) == 1
    assert {job_id: (job.state, job.script) for job_id, job in found.items() if job_id != "13"} == dict.fromkeys(
        ("12_0", "12_1"), ("PENDING", "/shared/my|runs/.submission_file_1.sh")
    )
    assert (found["13"].nodes, found["13"].script) == ("n1", "/home/b.sh")
    mock_slurm.fails("squeue", "Unable to contact slurm controller")
    assert slurm.named(["sweep-001"]) == {} and len(said) == 1
