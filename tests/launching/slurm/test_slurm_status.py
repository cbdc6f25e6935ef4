"""What status and recovery learn from Slurm's own commands, mocked; success is read from records alone."""

import os
import subprocess
import sys
from datetime import datetime
from pathlib import Path

from launching.conftest import wait_until
from launching.fake_slurm import FakeSlurm, ago, attempt, submit, sweep_of
from launching.slurm.mock import MockSlurm

from scalerlt.launching.jobs import Jobs
from scalerlt.launching.recovery import reconcile
from scalerlt.launching.slurm.ask import Slurm
from scalerlt.launching.status import CellStatus, status
from scalerlt.records.record import Record, Verdict
from scalerlt.records.store import CellDirectory
from scalerlt.records.submission import Submission
from scalerlt.worker.processes import search_path


def asked(sweep: Path) -> tuple[dict[str, CellStatus], list[str]]:
    """The states, and the warnings."""
    said: list[str] = []
    cells = status(sweep, Jobs(Slurm(said.append)))
    return {cell.cell_id: cell for cell in cells}, said


def test_one_dead_element_of_an_array_loses_no_other(tmp_path: Path, mock_slurm: MockSlurm) -> None:
    """S2: ok, gone, ok: two results and one `lost` row."""
    sweep = sweep_of(tmp_path / "sweep", "a", "b", "c")
    submit(sweep, [["a"], ["b"], ["c"]], [("5_0", [0]), ("5_1", [1]), ("5_2", [2])])
    attempt(sweep, "a", job="5", verdict=Verdict.MEASURED)
    attempt(sweep, "b", job="6")
    attempt(sweep, "c", job="7", verdict=Verdict.MEASURED)
    mock_slurm.accounts("5_0|COMPLETED|0:0|n1|5", "5_1|FAILED|1:0|n1|6", "5_2|COMPLETED|0:0|n1|7")
    cells, said = asked(sweep)
    assert [cell.state for cell in cells.values()] == ["measured", "lost", "measured"]
    assert "squeue does not list job 6; sacct says FAILED (exit code 1:0), on n1" in (cells["b"].reason or "")
    assert said == []


def test_a_job_that_slurm_calls_completed_may_have_failed(tmp_path: Path, mock_slurm: MockSlurm) -> None:
    """S3: the state is our record's."""
    sweep = sweep_of(tmp_path / "sweep", "raised", "died")
    submit(sweep, [["raised"], ["died"]], [("5", [0]), ("6", [1])])
    attempt(sweep, "raised", job="5", verdict=Verdict.FAILED, reason="ValueError: the loss is NaN")
    attempt(sweep, "died", job="6")
    mock_slurm.queue("5|COMPLETED|None|n1|5|2026-01-01T00:00:00", "6|COMPLETED|None|n1|6|2026-01-01T00:00:00")
    cells, _ = asked(sweep)
    assert (cells["raised"].state, cells["raised"].reason) == ("failed", "ValueError: the loss is NaN")
    assert cells["died"].state == "lost" and "squeue says COMPLETED" in (cells["died"].reason or "")


def test_sacct_that_is_disabled_is_one_warning(tmp_path: Path, mock_slurm: MockSlurm) -> None:
    """S7: status comes from squeue and the records; scontrol still knows a job that has just ended."""
    sweep = sweep_of(tmp_path / "sweep", "waits", "runs", "cancelled", "forgotten")
    submit(sweep, [["waits"]], [("4", [0])])
    for cell_id, job in (("runs", "5"), ("cancelled", "6"), ("forgotten", "7")):
        attempt(sweep, cell_id, job=job)
    mock_slurm.queue("4|PENDING|Priority||4|N/A", "5|RUNNING|None|n1|5|2020-01-01T00:00:00")
    mock_slurm.fails("sacct", "Slurm accounting storage is disabled")
    mock_slurm.shows("JobId=6 JobName=x JobState=CANCELLED Reason=None ExitCode=0:15 NodeList=n1")
    cells, said = asked(sweep)
    assert {cell_id: cell.state for cell_id, cell in cells.items()} == {
        "waits": "queued",
        "runs": "running",
        "cancelled": "killed",
        "forgotten": "lost",
    }
    assert "scontrol says CANCELLED (exit code 0:15), on n1" in (cells["cancelled"].reason or "")
    assert len(said) == 1 and "sacct does not answer (Slurm accounting storage is disabled)" in said[0]


def test_squeue_that_fails_is_one_warning_and_no_living_job_is_lost(tmp_path: Path, mock_slurm: MockSlurm) -> None:
    sweep = sweep_of(tmp_path / "sweep", "waits", "runs", "dead")
    submit(sweep, [["waits"]], [("4", [0])])
    attempt(sweep, "runs", job="5", heartbeat=20)
    attempt(sweep, "dead", job="6", heartbeat=500)
    mock_slurm.fails("squeue", "slurm_load_jobs error: Unable to contact slurm controller")
    mock_slurm.fails("scontrol", "Unable to contact slurm controller")
    cells, said = asked(sweep)
    assert [cell.state for cell in cells.values()] == ["queued", "running", "lost"]
    assert "squeue does not answer; neither sacct nor scontrol knows" in (cells["dead"].reason or "")
    (warning,) = [warning for warning in said if warning.startswith("squeue")]
    assert "Unable to contact slurm controller" in warning and "heartbeat" in warning
    assert len(mock_slurm.calls("squeue")) == 1


def test_an_element_of_an_array_is_found_by_the_number_that_its_process_knows(
    tmp_path: Path, mock_slurm: MockSlurm
) -> None:
    """SLURM_JOB_ID of an element is a number of its own; squeue shows 12_3."""
    sweep = sweep_of(tmp_path / "sweep", "runs", "restarted")
    attempt(sweep, "runs", job="15", started=600, heartbeat=500)
    attempt(sweep, "restarted", job="16", started=600, heartbeat=500)
    local = datetime.fromisoformat(ago(5)).astimezone().replace(tzinfo=None)
    mock_slurm.queue(
        "12_3|RUNNING|None|n1|15|2020-01-01T00:00:00", f"12_4|RUNNING|None|n1|16|{local.isoformat(timespec='seconds')}"
    )
    cells, said = asked(sweep)
    assert (cells["runs"].state, cells["runs"].job) == ("running", "12_3")
    assert cells["restarted"].state == "lost"
    assert "was ended and put back into the queue (squeue says RUNNING" in (cells["restarted"].reason or "")
    assert said == []


def test_reconciling_asks_slurm_and_writes_its_word(tmp_path: Path, mock_slurm: MockSlurm) -> None:
    sweep = sweep_of(tmp_path / "sweep", "a")
    path = attempt(sweep, "a", job="6")
    mock_slurm.accounts("6|CANCELLED by 1000|0:0|n1|6")
    (sentence,) = reconcile(CellDirectory(sweep / "a"), Jobs(Slurm(lambda text: None)))
    record = Record.read(path / "record.json")
    assert (record.verdict, record.slurm) == (Verdict.KILLED, {"job_id": "6"})
    assert sentence == f"a, attempt 1: killed: {record.reason}"
    assert record.reason == (
        "its Slurm job 6 was cancelled (squeue does not list job 6; sacct says CANCELLED (by 1000), on n1)"
    )


SUBMITTER = """
import sys
from datetime import datetime
from pathlib import Path
from launching.slurm.slurm_sweeps import run, settings_of
from scalerlt.records.store import SweepDirectory
run(SweepDirectory(Path(sys.argv[1])), settings_of(wait=True))
"""


def test_the_process_that_submitted_is_killed_and_everything_is_known(tmp_path: Path, mock_slurm: MockSlurm) -> None:
    """S18: handles are lost, the files are not; from another shell, and from a host without Slurm."""
    sweep = sweep_of(tmp_path / "sweep", "a", "b")
    submitter = subprocess.Popen(
        [sys.executable, "-c", SUBMITTER, str(sweep)],
        env={**os.environ, "PYTHONPATH": search_path()},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    file = sweep / "submissions" / "001.json"
    wait_until(lambda: file.exists() and len(Submission.read(file).jobs) == 2)
    submitter.kill()
    submitter.wait()
    ids = [job.job_id for job in Submission.read(file).jobs]
    cells, _ = asked(sweep)
    assert {cell.state for cell in cells.values()} == {"queued"}
    assert [cell.job for cell in cells.values()] == ids
    command = [sys.executable, "-m", "scalerlt", "status", str(sweep)]
    environment = {**os.environ, "PYTHONPATH": search_path()}
    shown = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert shown.returncode == 0, shown.stderr
    assert "2 cells: 2 queued" in shown.stdout and ids[0] in shown.stdout
    (first, second) = status(sweep, Jobs(FakeSlurm(is_silent=True)))
    assert (first.state, second.state) == ("queued", "queued")
