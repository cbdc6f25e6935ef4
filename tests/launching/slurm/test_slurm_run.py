"""From a plan to job ids, on a mocked Slurm."""

import json
import os
import shlex
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from launching.conftest import wait_until
from launching.queue_process import plan_of
from launching.slurm.mock import MockSlurm
from launching.slurm.slurm_sweeps import leave_record, run, settings_of, submitted, sweep_of

from scalerlt.cli import main
from scalerlt.errors import UserError
from scalerlt.launching.jobs import Jobs
from scalerlt.launching.progress import Display
from scalerlt.launching.queued import attempts_of
from scalerlt.launching.slurm import job, submit
from scalerlt.launching.slurm.ask import Slurm
from scalerlt.launching.slurm.earlier import jobs_of
from scalerlt.launching.slurm.job import Inferring
from scalerlt.launching.slurm.run import check_slurm
from scalerlt.launching.slurm.turn import turn
from scalerlt.launching.status import status
from scalerlt.launching.under_way import under_way
from scalerlt.records.base import UnwritableFile, now
from scalerlt.records.lease import Lease
from scalerlt.records.plan import Plan, PlannedCell
from scalerlt.records.record import Verdict
from scalerlt.records.store import SweepDirectory, sweeps
from scalerlt.records.submission import submissions

pytestmark = pytest.mark.usefixtures("quick")


def test_without_waiting_it_returns_with_job_ids(three: SweepDirectory, mock_slurm: MockSlurm) -> None:
    outcome, shown = run(three, settings_of())
    assert outcome.exit_code == 0 and not outcome.interrupted
    assert {cell.cell_id: (cell.state, cell.reason) for cell in outcome.cells} == {
        "a": ("queued", "job 12_0"),
        "b": ("queued", "job 12_1"),
        "c": ("queued", "job 12_2"),
    }
    [(submission, queue)] = submitted(three)
    assert [(job.job_id, job.items) for job in submission.jobs] == [("12_0", [0]), ("12_1", [1]), ("12_2", [2])]
    assert [item.cells for item in queue.items] == [["a"], ["b"], ["c"]]
    assert (queue.plan, queue.tried, submission.plan) == ("001.json", {}, "001.json")
    assert "jobs 12_0, 12_1, 12_2" in shown and "scancel 12" in shown and f"scalerlt status {three.path}" in shown
    assert not list(three.path.glob("*/attempt-*")), "nothing ran here"


def test_what_waits_or_runs_is_not_submitted_twice(three: SweepDirectory, mock_slurm: MockSlurm) -> None:
    run(three, settings_of())
    outcome, shown = run(three, settings_of())
    assert len(mock_slurm.calls("sbatch")) == 1 and outcome.exit_code == 0
    assert "not submitted: 3 cells: 3 queued" in shown
    assert len(list(submissions(three.path))) == 1, "a submission without jobs is not written"

    leave_record(three, "a", Verdict.MEASURED)
    leave_record(three, "b", Verdict.FAILED)
    _, path = three.cell("c").claim()
    elsewhere = Lease.of_this_process().model_copy(update={"host": "another-host", "pid": 1})
    elsewhere.write(path / "lease.json")
    mock_slurm.queue()
    _, shown = run(three, settings_of())
    assert "not submitted: 2 cells: 1 measured, 1 running" in shown
    [_, (submission, queue)] = submitted(three)
    assert [item.cells for item in queue.items] == [["b"]] and queue.tried == {"b": 1}
    assert [job.items for job in submission.jobs] == [[0]]
    cells = plan_of(three).cells
    jobs, queued = jobs_of(three, cells, Slurm(print))
    found = under_way(attempts_of(three, cells), queued, jobs)
    assert {cell_id: (cell.state, cell.job) for cell_id, cell in found.items()} == {
        "b": ("queued", "13"),
        "c": ("running", None),
    }, "as a plan tells it"
    _, shown = run(three, settings_of(), retry=frozenset({"none"}))
    assert "not submitted: 3 cells" in shown and len(mock_slurm.calls("sbatch")) == 2


def test_while_squeue_is_silent_nothing_is_submitted_twice(three: SweepDirectory, mock_slurm: MockSlurm) -> None:
    run(three, settings_of(), Plan(sweep="sweep", created=now(), overrides=[], cells=plan_of(three).cells[:2]))
    mock_slurm.fails("squeue", "slurm_load_jobs error: Unable to contact slurm controller")
    outcome, shown = run(three, settings_of())
    assert outcome.exit_code == 0 and "not submitted: 2 cells: 2 queued" in shown
    assert [item.cells for _, queue in submitted(three)[1:] for item in queue.items] == [["c"]]
    assert shown.count("squeue does not answer (") == 1
    assert [cell.reason for cell in outcome.cells][:1] == ["submitted as job 12_0; squeue does not answer"]


SUBMITS = """
import sys
from pathlib import Path
from launching.slurm.slurm_sweeps import leave_record, run, settings_of
from scalerlt.records.store import SweepDirectory
run(SweepDirectory(Path(sys.argv[1])), settings_of())
"""


def test_a_shell_that_dies_while_it_submits_loses_nothing(three: SweepDirectory, mock_slurm: MockSlurm) -> None:
    """Killed in the second of two sbatch: the first one's job stands on the disk, and the next sweep adds the rest."""
    mock_slurm.largest_array(2)
    mock_slurm.hangs_after_one("sbatch")
    process = subprocess.Popen([sys.executable, "-c", SUBMITS, str(three.path)], start_new_session=True)
    try:
        wait_until(lambda: len(mock_slurm.calls("sbatch")) == 2, 240)
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    [(submission, _)] = submitted(three)
    ids = [job.job_id for job in submission.jobs]
    assert ids and set(ids) == set(mock_slurm.jobs())
    mock_slurm.works("sbatch")
    _, shown = run(three, settings_of())
    assert f"not submitted: {len(ids)} cell" in shown and f"{len(ids)} queued" in shown
    assert {cell.cell_id for cell in status(three.path)} == {"a", "b", "c"}


def test_a_job_that_sbatch_took_when_the_shell_died_is_found(three: SweepDirectory, mock_slurm: MockSlurm) -> None:
    """Its id is nowhere: status counts it, and the next sweep writes it down and submits nothing twice."""
    mock_slurm.hangs_after_its_work("sbatch")
    process = subprocess.Popen([sys.executable, "-c", SUBMITS, str(three.path)], start_new_session=True)
    try:
        wait_until(lambda: len(mock_slurm.jobs()) == 3, 240)
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    mock_slurm.works("sbatch")
    [(submission, _)] = submitted(three)
    assert submission.jobs == [] and submission.fault is None
    cells = status(three.path, Jobs(Slurm(print)))
    assert [(cell.state, cell.job) for cell in cells] == [("queued", f"12_{index}") for index in range(3)]
    assert submitted(three)[0][0].jobs == [], "status writes nothing"
    outcome, shown = run(three, settings_of())
    assert "not submitted: 3 cells: 3 queued" in shown and outcome.exit_code == 0
    assert "its jobs were not written down and are found: 12_0, 12_1, 12_2" in shown
    [(submission, _)] = submitted(three)
    assert [(job.job_id, job.items) for job in submission.jobs] == [("12_0", [0]), ("12_1", [1]), ("12_2", [2])]
    assert len(mock_slurm.calls("sbatch")) == 1
    named = len(by_name := [call for call in mock_slurm.calls("squeue") if "--name=sweep-001" in call])
    assert named == 2, by_name
    run(three, settings_of())
    assert len([call for call in mock_slurm.calls("squeue") if "--name" in call]) == named


def test_the_commands_that_it_names_are_a_shell_s(tmp_path: Path, mock_slurm: MockSlurm) -> None:
    sweep = sweep_of(tmp_path / "my runs" / "sweep (1)", {"a": "measures"})
    _, shown = run(sweep, settings_of())
    (follow_them,) = [line for line in shown.splitlines() if line.startswith("follow them:")]
    assert shlex.split(follow_them.removeprefix("follow them:")) == ["scalerlt", "status", str(sweep.path)]
    assert "cancel them:  scancel 12\n" in shown


@pytest.mark.parametrize("end", ["12|COMPLETED|None|n1|12|N/A", None])
def test_what_a_preempted_job_may_go_on_with_is_not_submitted_again(
    end: str | None, three: SweepDirectory, mock_slurm: MockSlurm
) -> None:
    """S11: RUNNING, PREEMPTED, PENDING, RUNNING, COMPLETED; and PREEMPTED, then absent."""
    run(three, settings_of(max_jobs=1))
    for state in ("RUNNING", "PREEMPTED", "PENDING", "RUNNING") if end else ("PREEMPTED",):
        mock_slurm.queue(f"12|{state}|None|n1|12|N/A")
        if state == "PREEMPTED":
            leave_record(three, "a", Verdict.PREEMPTED)
        outcome, shown = run(three, settings_of())
        assert "not submitted: 3 cells: 3 queued" in shown and outcome.exit_code == 0
    assert len(mock_slurm.calls("sbatch")) == 1
    mock_slurm.queue(*filter(None, [end]))
    outcome, _ = run(three, settings_of())
    assert len(mock_slurm.calls("sbatch")) == 2
    assert {cell.reason for cell in outcome.cells} == {"job 13_0", "job 13_1", "job 13_2"}


def test_slots_that_infer_at_once_write_a_plan_each(
    three: SweepDirectory, mock_slurm: MockSlurm, monkeypatch: pytest.MonkeyPatch
) -> None:
    run(three, settings_of(max_jobs=1))
    leave_record(three, "a", Verdict.OOM)
    record = three.cell("a").last_record()
    assert record is not None
    skipped = [PlannedCell(cell_id="c", axes={}, order=2, state="skipped", reason="larger", inferred_from="a")]
    monkeypatch.setattr(job, "implied", lambda *_: skipped)
    infer = Inferring(three.path / "submissions/001/queue.json")
    with ThreadPoolExecutor(4) as slots:
        assert list(slots.map(infer, [record] * 40)) == [None] * 40
    assert len(list(three.plans())) == 1 + 40


def test_what_is_out_of_memory_rules_out_larger_batches(tmp_path: Path, mock_slurm: MockSlurm) -> None:
    sweep = sweep_of(tmp_path / "runs" / "sweep", {"small": "measures", "large": "measures"})
    sizes = {"small": 1, "large": 2}
    cells = [
        PlannedCell(cell_id=name, axes={"experiment": "probe", "batch.group_size": size}, order=size)
        for name, size in sizes.items()
    ]
    run(sweep, settings_of(), Plan(sweep="sweep", created=now(), overrides=[], cells=cells))
    leave_record(sweep, "small", Verdict.OOM)
    record = sweep.cell("small").last_record()
    assert record is not None
    queue = sweep.path / "submissions/001/queue.json"
    Inferring(queue)(record)
    [_, (path, plan)] = sweep.plans()
    assert isinstance(plan, Plan) and plan.follows == "001.json" and path.name == "002.json"
    assert [(cell.cell_id, cell.state, cell.inferred_from) for cell in plan.cells] == [("large", "skipped", "small")]
    Inferring(queue)(record)
    assert len(list(sweep.plans())) == 2, "said once"
    Inferring(queue)(record.model_copy(update={"verdict": Verdict.MEASURED}))
    assert [cell.state for _, plan in list(sweep.plans())[2:] for cell in plan.cells] == ["planned"]


def test_where_no_job_can_be_submitted(tmp_path: Path, mock_slurm: MockSlurm, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UserError, match="Slurm gives a % in the name"):
        check_slurm(tmp_path / "runs%j")
    assert check_slurm(Path("/home/someone/runs")) == []
    assert check_slurm(Path("/tmp/runs")) != [], "the nodes have a /tmp of their own"
    mock_slurm.is_gone("sbatch")
    mock_slurm.is_gone("srun")
    monkeypatch.setenv("PATH", str(mock_slurm.folder / "bin"))
    with pytest.raises(UserError, match="sbatch and srun cannot be found"):
        check_slurm(tmp_path)


def test_from_the_command_line(tmp_path: Path, mock_slurm: MockSlurm, capsys: pytest.CaptureFixture[str]) -> None:
    asked = ["hydra/launcher=slurm", "seed=0,1,2", "hydra.launcher.array_parallelism=2", f"runs_dir={tmp_path}/runs"]
    assert main(["plan", *asked]) == 0
    assert "Slurm: 3 jobs in 1 array for 3 cells (1 node, 1 CPU, 60 min), at most 2 at once" in capsys.readouterr().out
    assert main(["plan", "--json", *asked]) == 0
    assert '"at_once": 2' in capsys.readouterr().out
    assert not (tmp_path / "runs").exists() and mock_slurm.calls("sbatch") == [], "a plan writes nothing"
    began = time.monotonic()
    assert main(["sweep", *asked]) == 0
    assert time.monotonic() - began < 200
    said = capsys.readouterr()
    assert "submitted 3 jobs in 1 array" in said.out and "3 cells: 3 queued" in said.out
    assert "the nodes need one that they see, too" in said.err
    assert len(mock_slurm.jobs()) == 3
    assert main(["plan", *asked]) == 0
    planned = capsys.readouterr().out
    assert "Slurm:" not in planned and "cost of" not in planned, "nothing is left to be submitted"
    assert all(f"  queued (job 12_{seed})  " in planned for seed in range(3)) and "3 cells: 3 queued" in planned
    assert main(["plan", "seed=0,1,2,3", f"runs_dir={tmp_path}/runs", "--json", "max_gpu_hours=0"]) == 0
    now = [cell["now"] for cell in json.loads(capsys.readouterr().out)["cells"]]
    waits = {"state": "queued", "reason": "job 12_2: squeue says PENDING (Priority)", "job": "12_2"}
    assert now[2:] == [waits, {"state": "to run", "reason": None, "job": None}], "whatever is to run them"
    before = {path: path.read_bytes() for path in (tmp_path / "runs").glob("*/*/cell.yaml")}
    assert main(["sweep", *asked, "resources.timeout_s=7", "tracker=tensorboard"]) == 0
    assert "3 cells that run, wait for a job or are not run again keep their own settings" in capsys.readouterr().out
    assert {path: path.read_bytes() for path in before} == before and len(mock_slurm.jobs()) == 3


def test_a_sweep_that_sbatch_takes_in_part_says_so_and_goes_on_when_asked_again(
    tmp_path: Path, mock_slurm: MockSlurm, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = ["sweep", "hydra/launcher=slurm", "seed=0,1,2,3", f"runs_dir={tmp_path}/runs"]
    mock_slurm.largest_array(2)
    real = submit._sbatch

    def takes_one_array(*arguments: Any) -> list[str]:
        ids = real(*arguments)
        mock_slurm.fails("sbatch", "sbatch: error: Batch job submission failed: Job violates accounting/QOS policy")
        return ids

    monkeypatch.setattr(submit, "_sbatch", takes_one_array)
    assert main(asked) == 2, "not all is submitted"
    (error,) = [line for line in capsys.readouterr().err.splitlines() if line.startswith("error: ")]
    assert "sbatch did not take the jobs: Batch job submission failed: Job violates accounting/QOS policy" in error
    (sweep,) = sweeps(tmp_path / "runs")
    assert error.endswith(f"; submitted before that: jobs 12_0, 12_1 (see scalerlt status {sweep.path})")
    monkeypatch.setattr(submit, "_sbatch", real)
    mock_slurm.works("sbatch")
    assert main(asked) == 0
    said = capsys.readouterr().out
    assert "not submitted: 2 cells: 2 queued" in said and "4 cells: 4 queued" in said
    cells = [[cell for item in queue.items for cell in item.cells] for _, queue in submitted(sweep)]
    assert [len(of_each) for of_each in cells] == [4, 2] and cells[1] == cells[0][2:]
    assert set(mock_slurm.jobs()) == {"12_0", "12_1", "13_0", "13_1"}


def test_two_submissions_at_once_take_turns(
    three: SweepDirectory, mock_slurm: MockSlurm, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second begins while the first is at it, and submits when that has ended."""
    said: list[str] = []
    waits, say = threading.Event(), Display.say

    def noting(display: Display, text: str) -> None:
        say(display, text)
        if text == f"waiting: another process submits cells of {three.path}":
            waits.set()

    monkeypatch.setattr(Display, "say", noting)
    with turn(three.path, said.append, lambda: False):
        thread = threading.Thread(target=run, args=(three, settings_of()))
        thread.start()
        assert waits.wait(240)
        assert mock_slurm.calls("sbatch") == []
    thread.join(240)
    assert len(mock_slurm.calls("sbatch")) == 1
    with turn(three.path, said.append, lambda: False), turn(three.path, said.append, lambda: bool(said)):
        assert said == [f"waiting: another process submits cells of {three.path}"]


def test_a_sweep_that_cannot_be_written_to_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "submissions").write_text("")
    with (
        pytest.raises(UnwritableFile, match=r"\.lock: cannot be written"),
        turn(tmp_path, print, lambda: True),
    ):
        pass
