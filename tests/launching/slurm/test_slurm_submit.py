"""Submitting: what sbatch is given, in which environment, and what is written down."""

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from launching.slurm.mock import MockSlurm
from launching.slurm.slurm_sweeps import BASE, run, settings_of, submitted, sweep_of
from submitit.helpers import DelayedSubmission

from scalerlt.launching.slurm import submit
from scalerlt.launching.slurm.job import WorkThrough
from scalerlt.launching.slurm.snapshot import package_root, take_snapshot
from scalerlt.launching.slurm.submit import JobsNotSubmitted
from scalerlt.planning.hydra_bridge import compose
from scalerlt.planning.launcher import SlurmSettings, read_launcher
from scalerlt.records.provenance import provenance
from scalerlt.records.store import SweepDirectory

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
        (str(sweep.path.absolute()), "SWEEP"),
        (sys.executable, "PYTHON"),
        (str(package_root()), "PACKAGE"),
    ):
        script = script.replace(text, name)
    return script


@pytest.mark.parametrize(
    ("name", "overrides"),
    [
        ("slurm", []),
        ("slurm_gpu", []),
        ("slurm_preemptible", []),
        (
            "everything",
            [
                *("account=physics", "partition=main", "qos=high", "constraint=a100", "gres='gpu:a100:2'"),
                *("cpus_per_task=6", "mem_gb=1.5", "timeout_min=5", "signal_delay_s=60", "max_requeues=0"),
                *("nodelist='n[1-4]'", "exclude=n7", "comment='two words'", "dependency='afterok:3'"),
                *("array_parallelism=1", "setup=['module load cuda']", "env.HF_HUB_OFFLINE=0", "env.NAME='a b'"),
                *("srun_args=['--mpi=none']", "sbatch.reservation=tutorial", "sbatch.exclusive=true"),
                "python='apptainer exec image.sif python'",
            ],
        ),
        ("without_srun", ["use_srun=false"]),
    ],
)
def test_golden_text(
    name: str, overrides: list[str], two: SweepDirectory, mock_slurm: MockSlurm, request: pytest.FixtureRequest
) -> None:
    option = name if name.startswith("slurm") else "slurm"
    launcher = compose([f"hydra/launcher={option}", *(f"hydra.launcher.{text}" for text in overrides)]).launcher
    settings = read_launcher({**launcher, "snapshot": False})
    assert isinstance(settings, SlurmSettings) and launcher["snapshot"] is (name == "slurm_preemptible")
    run(two, settings)
    golden = GOLDEN / f"{name}.sh"
    text = plain(mock_slurm.script(12), two)
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


def test_only_a_path_travels(two: SweepDirectory, mock_slurm: MockSlurm) -> None:
    """Whatever the submitting process holds: the pickle is loaded by a fresh interpreter that stands elsewhere."""
    run(two, settings_of(timeout_min=5, signal_delay_s=60))
    file = (two.path / "submissions/001/submitit/12_1_submitted.pkl").absolute()
    assert file.stat().st_size < 1000
    loads = (
        "import sys, submitit.helpers as h; d = h.DelayedSubmission.load(sys.argv[1]); c = d.function.checkpoint();"
        "print(d.function.queue_path, d.function.item, c.function == d.function, d._timeout_countdown)"
    )
    environment = {**os.environ, "PYTHONPATH": str(package_root())}
    ran = subprocess.run(
        [sys.executable, "-c", loads, file], cwd="/", env=environment, capture_output=True, text=True, check=True
    )
    queue = two.path.absolute() / "submissions/001/queue.json"
    assert ran.stdout.split()[:3] == [str(queue), "1", "True"]
    assert int(ran.stdout.split()[3]) > 1000, "submitit's own count of time-outs never ends a job"


def test_a_snapshot_is_what_the_jobs_import(two: SweepDirectory, mock_slurm: MockSlurm, tmp_path: Path) -> None:
    run(two, settings_of(snapshot=True))
    [(submission, queue)] = submitted(two)
    code = two.path.absolute() / "submissions/001/code"
    assert submission.snapshot == queue.snapshot == str(code)
    assert f"export PYTHONPATH={code}${{PYTHONPATH:+:$PYTHONPATH}}" in mock_slurm.script(12)
    assert (code / "scalerlt/conf/config.yaml").read_bytes() == (package_root() / "conf/config.yaml").read_bytes()
    assert not any(path.is_symlink() or path.name == "__pycache__" for path in code.rglob("*"))


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
