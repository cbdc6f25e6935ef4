"""Submitting: what sbatch is given, in which environment, and what is written down."""

import os
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from launching.queue_process import plan_of
from launching.slurm.mock import MockSlurm
from launching.slurm.slurm_sweeps import BASE, resolved_cells, run, settings_of, submitted, sweep_of
from submitit.helpers import DelayedSubmission
from worker.frozen import freeze

from scalerlt.launching.slurm import submit
from scalerlt.launching.slurm.job import WorkThrough
from scalerlt.launching.slurm.snapshot import package_root, take_snapshot
from scalerlt.launching.slurm.submit import JobsNotSubmitted
from scalerlt.planning.hydra_bridge import compose
from scalerlt.planning.launcher import SlurmSettings, read_launcher
from scalerlt.records.base import UnwritableFile
from scalerlt.records.provenance import provenance
from scalerlt.records.record import Verdict
from scalerlt.records.store import SweepDirectory
from scalerlt.records.submission import Submission
from scalerlt.worker.processes import search_path

GOLDEN = Path(__file__).parent / "golden"
CALLER = {
    "SLURM_CPU_BIND": "quiet,mask_cpu:0x1",
    "SLURM_ARRAY_JOB_ID": "7",
    "SLURM_JOB_ID": "8",
    "SBATCH_PARTITION": "interactive",
    "SUBMITIT_EXECUTOR": "slurm",
    "WORLD_SIZE": "4",
}


@pytest.fixture
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    paused: list[float] = []
    monkeypatch.setattr(submit, "sleep", paused.append)
    return paused


@pytest.fixture
def two(tmp_path: Path) -> SweepDirectory:
    return sweep_of(tmp_path / "runs" / "two", {"a": "measures", "b": "measures"})


def plain(script: str, sweep: SweepDirectory) -> str:
    """A script without what differs between hosts."""
    for text, name in (
        (str(sweep.path.absolute() / "submissions/001/code"), "SNAPSHOT"),
        (str(sweep.path.absolute()), "SWEEP"),
        (sys.executable, "PYTHON"),
        (str(package_root()), "PACKAGE"),
    ):
        script = script.replace(text, name)
    return script


GOLDEN_OF = {
    "slurm": ("slurm", []),
    "slurm_gpu": ("slurm_gpu", []),
    "slurm_preemptible": ("slurm_preemptible", []),
    "everything": (
        "slurm",
        [
            *("account=physics", "partition=main", "qos=high", "constraint=a100", "gres='gpu:a100:2'"),
            *("cpus_per_task=6", "mem_gb=1.5", "timeout_min=5", "signal_delay_s=60", "max_requeues=0"),
            *("nodelist='n[1-4]'", "exclude=n7", "comment='two words'", "dependency='afterok:3'"),
            *("array_parallelism=1", "setup=['module load cuda']", "env.HF_HUB_OFFLINE=0", "env.NAME='a b'"),
            *("srun_args=['--mpi=none']", "sbatch.reservation=tutorial", "sbatch.exclusive=true"),
            "python='apptainer exec image.sif python'",
        ],
    ),
    "two_nodes": ("slurm_gpu", ["nodes=2"]),
    "without_srun": ("slurm", ["use_srun=false"]),
}
"""By the name of the text, the preset and what is set beside it."""


def test_every_preset_has_its_golden_text() -> None:
    presets = {path.stem for path in (package_root() / "conf/hydra/launcher").glob("slurm*.yaml")}
    assert presets == {name for name, (preset, overrides) in GOLDEN_OF.items() if (preset, overrides) == (name, [])}
    assert {path.stem for path in GOLDEN.glob("*.sh")} == set(GOLDEN_OF)


@pytest.mark.parametrize("name", GOLDEN_OF)
def test_golden_text(name: str, tmp_path: Path, mock_slurm: MockSlurm) -> None:
    for cell_id in "ab":
        freeze(tmp_path / "runs" / "two", "measures", cell_id=cell_id, device={"name": "cuda", "type": "cuda"})
    sweep = SweepDirectory(tmp_path / "runs" / "two")
    preset, overrides = GOLDEN_OF[name]
    launcher = compose([f"hydra/launcher={preset}", *(f"hydra.launcher.{text}" for text in overrides)]).launcher
    settings = read_launcher(launcher)
    assert isinstance(settings, SlurmSettings)
    run(sweep, settings)
    golden = GOLDEN / f"{name}.sh"
    text = plain(mock_slurm.script(12), sweep)
    if os.environ.get("SCALERLT_WRITE_GOLDEN"):
        golden.parent.mkdir(exist_ok=True)
        golden.write_text(text)
    assert text == golden.read_text()


def test_the_callers_job_does_not_reach_the_new_one(
    two: SweepDirectory, mock_slurm: MockSlurm, monkeypatch: pytest.MonkeyPatch
) -> None:
    for variable, value in CALLER.items():
        monkeypatch.setenv(variable, value)
    monkeypatch.setenv("SLURM_CONF", "/etc/other/slurm.conf")
    monkeypatch.setenv("MINE", "stays")
    run(two, settings_of())
    seen = mock_slurm.environment(12)
    assert not set(CALLER) & set(seen)
    assert (seen["SLURM_CONF"], seen["MINE"]) == ("/etc/other/slurm.conf", "stays")
    assert {name: os.environ.get(name) for name in CALLER} == CALLER, "put back afterwards"


def test_a_busy_sbatch_is_asked_again(two: SweepDirectory, mock_slurm: MockSlurm, no_pauses: list[float]) -> None:
    mock_slurm.fails(
        "sbatch", "sbatch: error: Batch job submission failed: Socket timed out on send/recv operation", times=2
    )
    outcome, _ = run(two, settings_of())
    assert outcome.exit_code == 0 and no_pauses == [1.0, 2.0]
    assert len(mock_slurm.calls("sbatch")) == 3 and set(mock_slurm.jobs()) == {"12_0", "12_1"}
    [(submission, _)] = submitted(two)
    assert [job.job_id for job in submission.jobs] == ["12_0", "12_1"] and submission.fault is None
    left = [path.name for path in (two.path / "submissions/001/submitit").iterdir() if not path.is_symlink()]
    assert sorted(left) == ["12_0_submitted.pkl", "12_1_submitted.pkl", "12_submission.sh"]


def test_a_busy_sbatch_is_not_asked_for_ever(
    two: SweepDirectory, mock_slurm: MockSlurm, no_pauses: list[float]
) -> None:
    mock_slurm.fails("sbatch", "sbatch: error: Slurm temporarily unable to accept job, sleeping and retrying")
    with pytest.raises(JobsNotSubmitted, match="temporarily unable to accept job"):
        run(two, settings_of())
    assert len(mock_slurm.calls("sbatch")) == 5
    [(submission, _)] = submitted(two)
    assert submission.jobs == [] and "temporarily unable" in (submission.fault or "")


@pytest.mark.parametrize(
    "said",
    [
        "invalid partition specified: gpuu",
        "--gpus-per-node and --gres are mutually exclusive",
        "Batch job submission failed: Memory specification can not be satisfied",
        "Batch job submission failed: CPU count per node cannot be satisfied",
    ],
)
def test_what_sbatch_refuses_for_good_is_said_at_once_and_once(
    said: str, two: SweepDirectory, mock_slurm: MockSlurm, no_pauses: list[float], capfd: pytest.CaptureFixture[str]
) -> None:
    mock_slurm.fails("sbatch", f"sbatch: error: {said}")
    with pytest.raises(JobsNotSubmitted) as caught:
        run(two, settings_of(partition="gpuu"))
    assert str(caught.value) == f"sbatch did not take the jobs: {said}"
    assert len(mock_slurm.calls("sbatch")) == 1 and no_pauses == []
    assert capfd.readouterr().err == "", "the command line prints the error"


def test_several_lines_of_sbatch_are_one_sentence() -> None:
    said = (
        "sbatch: error: fetch_config: DNS SRV lookup failed\nsbatch: fatal: Could not establish a source\n\nand so on"
    )
    assert submit._one_line(said) == "fetch_config: DNS SRV lookup failed; Could not establish a source; and so on"


@pytest.mark.parametrize(
    ("gib", "asked", "told"),
    [(0, "0", "all memory"), (1 / 1024, "1M", "0.000976562 GiB"), (1.5, "1536M", "1.5 GiB"), (64, "64G", "64 GiB")],
)
def test_memory(gib: float, asked: str, told: str, two: SweepDirectory, mock_slurm: MockSlurm) -> None:
    run(two, settings_of(mem_gb=gib))
    assert re.findall(r"--mem=(\S+)", mock_slurm.script(12)) == [asked]
    [(submission, _)] = submitted(two)
    assert submission.jobs[0].resources == f"1 node, {told}, 60 min"


def test_jobs_accepted_before_a_refusal_are_not_forgotten(
    tmp_path: Path, mock_slurm: MockSlurm, no_pauses: list[float]
) -> None:
    """The first of two arrays is accepted: its ids stand on the disk and in the message."""
    sweep = sweep_of(tmp_path / "runs" / "four", dict.fromkeys("abcd", "measures"))
    mock_slurm.largest_array(2)
    seen: list[list[str]] = []

    def refuse_the_second(*arguments: Any, **more: Any) -> list[str]:
        seen.append([job.job_id for submission, _ in submitted(sweep) for job in submission.jobs])
        if len(seen) == 2:
            mock_slurm.fails("sbatch", "Job violates accounting/QOS policy (job submit limit)")
        return real(*arguments, **more)

    real = submit._sbatch
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(submit, "_sbatch", refuse_the_second)
        with pytest.raises(JobsNotSubmitted, match=r"job submit limit\); submitted before that: jobs 12_0, 12_1 "):
            run(sweep, settings_of())
    assert seen == [[], ["12_0", "12_1"]], "each id is on the disk before the next sbatch"
    [(submission, _)] = submitted(sweep)
    assert [(job.job_id, job.items) for job in submission.jobs] == [("12_0", [0]), ("12_1", [1])]
    mock_slurm.works("sbatch")
    outcome, shown = run(sweep, settings_of())
    assert "not submitted: 2 cells: 2 queued" in shown and outcome.exit_code == 0
    assert [item.cells for _, queue in submitted(sweep)[1:] for item in queue.items] == [["c"], ["d"]]


def test_split_arrays_share_the_limit_or_wait_for_each_other(tmp_path: Path, mock_slurm: MockSlurm) -> None:
    sweep = sweep_of(tmp_path / "runs" / "five", dict.fromkeys("abcde", "measures"))
    mock_slurm.largest_array(2)
    run(sweep, settings_of(array_parallelism=2, dependency="singleton"))
    scripts = [mock_slurm.script(number) for number in (12, 13, 14)]
    assert [re.findall(r"--array=(\S+)", text) for text in scripts] == [["0-1%2"], [], ["0-1%2"]]
    assert [re.findall(r"--dependency=(\S+)", text) for text in scripts] == [
        ["singleton"],
        ["singleton,afterany:12"],
        ["singleton,afterany:13"],
    ]
    [(submission, _)] = submitted(sweep)
    assert [job.job_id for job in submission.jobs] == ["12_0", "12_1", "13", "14_0", "14_1"]


def test_packed_jobs_share_the_queue(tmp_path: Path, mock_slurm: MockSlurm) -> None:
    sweep = sweep_of(tmp_path / "runs" / "five", dict.fromkeys("abcde", "measures"))
    run(sweep, settings_of(pack={"slots": 2, "timed": "shared"}, cpus_per_task=4))
    [(submission, queue)] = submitted(sweep)
    assert [(job.job_id, job.items) for job in submission.jobs] == [
        (f"12_{index}", [0, 1, 2, 3, 4]) for index in range(3)
    ]
    assert (queue.slots, queue.timed, queue.asked.cpus, len(queue.items)) == (2, "shared", 4, 5)
    pickled = DelayedSubmission.load(sweep.path / "submissions/001/submitit/12_2_submitted.pkl")
    assert pickled.function == WorkThrough(str(sweep.path.absolute() / "submissions/001/queue.json"), None)


def test_what_measures_time_has_a_packed_job_for_itself_unless_it_is_told_otherwise(
    two: SweepDirectory, mock_slurm: MockSlurm
) -> None:
    packed = ["hydra/launcher=slurm", "hydra.launcher.pack.slots=2", "hydra.launcher.cpus_per_task=2"]
    settings = read_launcher(compose(packed).launcher)
    assert isinstance(settings, SlurmSettings)
    run(two, settings)
    [(_, queue)] = submitted(two)
    assert (queue.slots, queue.timed) == (2, "exclusive")


def test_each_job_asks_for_what_its_cells_need(tmp_path: Path, mock_slurm: MockSlurm) -> None:
    """GPUs are for cuda cells alone, and each thread of a cell has a CPU."""
    path = tmp_path / "runs" / "mixed"
    for cell_id, device in (
        ("a", {"type": "cuda", "name": "cuda"}),
        ("b", {}),
        ("c", {"threads": 8}),
        ("d", {"threads": 2}),
        ("e", {"type": "cuda", "name": "cuda"}),
    ):
        freeze(path, "measures", cell_id=cell_id, device=device)
    sweep = SweepDirectory(path)
    _, shown = run(sweep, settings_of(gpus_per_node=1, cpus_per_task=4, mem_gb=2, partition="gpu"))
    asks = re.compile(r"--(gpus-per-node|cpus-per-task|mem|partition|array)=(\S+)")
    scripts = [dict(asks.findall(mock_slurm.script(main).partition("# setup")[0])) for main in (12, 13, 14)]
    common = {"mem": "2G", "partition": "gpu"}
    assert scripts == [
        {**common, "cpus-per-task": "4", "gpus-per-node": "1", "array": "0-1%2"},
        {**common, "cpus-per-task": "4", "array": "0-1%2"},
        {**common, "cpus-per-task": "8"},
    ]
    assert "--cpus-per-task=8" in mock_slurm.script(14).partition("# command")[2]
    found = submitted(sweep)
    assert [[item.cells for item in queue.items] for _, queue in found] == [[["a"], ["e"]], [["b"], ["d"]], [["c"]]]
    assert [(queue.asked.cpus, queue.asked.gpus) for _, queue in found] == [(4, 1), (4, None), (8, None)]
    for asked in ("4 CPUs, 1 GPU, 2 GiB", "4 CPUs, 2 GiB", "8 CPUs, 2 GiB"):
        assert f"(1 node, {asked}, 60 min, partition gpu)" in shown


SUBMITS = """
import sys, threading
from pathlib import Path
from launching.slurm.slurm_sweeps import run, settings_of
from worker.frozen import freeze
from scalerlt.records.store import SweepDirectory

LOCK = threading.Lock()

def measures(cell, recorder):
    with LOCK:
        recorder.metric("answer", 42)

path, mine = Path(sys.argv[1]), {"name": "probe", "_target_": "__main__.measures", "warmup": 0, "repeats": 1}
for cell_id in "ab":
    freeze(path, "measures", cell_id=cell_id, experiment=mine)
run(SweepDirectory(path), settings_of(timeout_min=5, signal_delay_s=60))
"""


def test_only_a_path_travels(tmp_path: Path, mock_slurm: MockSlurm) -> None:
    """Whatever the submitting process holds: the pickle is loaded by a fresh interpreter that stands elsewhere.

    What submits is no file: it has a lock that cannot be pickled, and an experiment that nobody can import.
    """
    sweep = tmp_path / "runs" / "two"
    environment = {**os.environ, "PYTHONPATH": search_path()}
    subprocess.run([sys.executable, "-c", SUBMITS, sweep], env=environment, check=True)
    file = (sweep / "submissions/001/submitit/12_1_submitted.pkl").absolute()
    assert file.stat().st_size < 1000 and b"__main__" not in file.read_bytes()
    loads = (
        "import sys, submitit.helpers as h; d = h.DelayedSubmission.load(sys.argv[1]); c = d.function.checkpoint();"
        "print(d.function.queue_path, d.function.item, c.function == d.function, d._timeout_countdown)"
    )
    environment["PYTHONPATH"] = str(package_root())
    ran = subprocess.run(
        [sys.executable, "-c", loads, file], cwd="/", env=environment, capture_output=True, text=True, check=True
    )
    queue = sweep.absolute() / "submissions/001/queue.json"
    assert ran.stdout.split()[:3] == [str(queue), "1", "True"]
    assert int(ran.stdout.split()[3]) > 1000, "submitit's own count of time-outs never ends a job"


def test_hundreds_of_cells_are_one_sbatch_and_no_pause(
    tmp_path: Path, mock_slurm: MockSlurm, no_pauses: list[float]
) -> None:
    path = tmp_path / "runs" / "many"
    text = freeze(path, "measures", cell_id="cell-000").read_text()
    for number in range(1, 200):
        (folder := path / f"cell-{number:03d}").mkdir()
        (folder / "cell.yaml").write_text(text.replace("cell-000", folder.name))
    sweep = SweepDirectory(path)
    plan, resolved = plan_of(sweep), resolved_cells(sweep)
    began = time.process_time()
    outcome, shown = run(sweep, settings_of(), plan, resolved=resolved)
    assert time.process_time() - began < 20, "a guard: of the processor, as other processes may run beside it"
    assert len(mock_slurm.calls("sbatch")) == 1 and no_pauses == []
    assert len(mock_slurm.jobs()) == 200 and {cell.state for cell in outcome.cells} == {"queued"}
    assert "submitted 200 jobs in 1 array" in shown


def test_a_snapshot_is_what_the_jobs_import(two: SweepDirectory, mock_slurm: MockSlurm, tmp_path: Path) -> None:
    run(two, settings_of(snapshot=True))
    [(submission, queue)] = submitted(two)
    code = two.path.absolute() / "submissions/001/code"
    assert submission.snapshot == queue.snapshot == str(code)
    assert f"export PYTHONPATH={code}${{PYTHONPATH:+:$PYTHONPATH}}" in mock_slurm.script(12)
    assert (code / "scalerlt/conf/config.yaml").read_bytes() == (package_root() / "conf/config.yaml").read_bytes()
    assert not any(path.is_symlink() or path.name == "__pycache__" for path in code.rglob("*"))


@pytest.mark.parametrize("snapshot", [True, False])
def test_what_is_edited_after_submitting_is_not_what_a_snapshot_runs(
    snapshot: bool, tmp_path: Path, mock_slurm: MockSlurm, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The job starts in the checkout, as those of a user who submits from there do."""
    checkout = take_snapshot(tmp_path / "checkout", {})
    sweep = sweep_of(tmp_path / "runs" / "one", {"a": "measures"})
    monkeypatch.setattr("scalerlt.launching.slurm.snapshot.package_root", lambda: checkout)
    run(sweep, settings_of(snapshot=snapshot))
    edited = checkout / "scalerlt/worker/slurm_job.py"
    edited.write_text("raise SystemExit('this was edited while the job waited')\n")
    job = {"SLURM_JOB_ID": "12", "SLURM_JOB_NUM_NODES": "1", "SLURM_NTASKS": "1", "SLURM_JOB_NODELIST": "n1"}
    environment = {**os.environ, **job, "PYTHONPATH": search_path()}
    subprocess.run(["bash", mock_slurm.folder / "jobs/12.sh"], cwd=checkout, env=environment, check=snapshot)
    record = sweep.cell("a").last_record()
    if snapshot:
        assert record is not None and record.verdict is Verdict.MEASURED
    else:
        assert record is None
        assert "edited while" in (sweep.path / "submissions/001/submitit/12_0_log.err").read_text()


def test_a_snapshot_knows_which_revision_it_is(tmp_path: Path) -> None:
    """A module edited after that is not what is imported from it, and the records name the revision submitted."""
    told = {"git_revision": "a" * 40, "git_dirty": True, "git_diff_sha256": "b" * 64, "version": "0"}
    code = take_snapshot(tmp_path, told)
    assert {key: value for key, value in provenance(code).items() if key.startswith("git_")} == {
        key: value for key, value in told.items() if key.startswith("git_")
    }
    shows = "import scalerlt.records.provenance as p; print(p.scalerlt.__file__); print(p.provenance()['git_revision'])"
    ran = subprocess.run(
        [sys.executable, "-c", shows],
        cwd="/",
        env={**os.environ, "PYTHONPATH": str(code)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert ran.stdout.split() == [str(code / "scalerlt/__init__.py"), "a" * 40]


def test_the_settings_are_written_down(two: SweepDirectory, mock_slurm: MockSlurm) -> None:
    run(two, settings_of(partition="gpu", sbatch={"nice": 5}, mem_gb=2))
    [(submission, _)] = submitted(two)
    assert submission.launcher["partition"] == "gpu" and submission.launcher["sbatch"] == {"nice": "5"}
    assert submission.job_name == "two-001"
    assert submission.jobs[0].resources == "1 node, 2 GiB, 60 min, partition gpu"
    again = read_launcher({**submission.launcher, "_target_": BASE["_target_"]})
    assert again == settings_of(partition="gpu", sbatch={"nice": 5}, mem_gb=2)


def test_ids_that_cannot_be_written_down_are_told(
    tmp_path: Path, mock_slurm: MockSlurm, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The disk is full in the moment in which sbatch has taken the jobs."""
    three = sweep_of(tmp_path / "runs" / "three", dict.fromkeys("abc", "measures"))
    write = Submission.write

    def full(submission: Submission, path: Path) -> None:
        if submission.jobs:
            raise UnwritableFile(f"{path}: cannot be written (No space left on device)")
        write(submission, path)

    monkeypatch.setattr(Submission, "write", full)
    with pytest.raises(
        JobsNotSubmitted, match=r"001\.json: cannot be written .*; sbatch took 12_0, 12_1, 12_2 all the"
    ):
        run(three, settings_of())
    assert len(mock_slurm.jobs()) == 3
