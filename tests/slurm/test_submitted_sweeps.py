"""Sweeps that Slurm runs, from the submission to the table."""

import os
import shlex
import signal
import sys

import yaml
from slurm.conftest import Lab, wait_for

from scalerlt.records.record import Verdict

ALL_OF_SIX = {
    **dict.fromkeys((0, 1, 3, 5), Verdict.MEASURED),
    2: Verdict.FAILED,
    4: Verdict.FAILED,
}


def test_an_array_of_six_of_which_one_raises_and_one_leaves(lab: Lab) -> None:
    experiment = lab.experiment("measures")
    said = lab.scalerlt(
        *lab.submission(f"experiment={experiment}", "seed=0,1,2,3,4,5", "hydra.launcher.wait=true"), expect=1
    )
    records = lab.records("adhoc-measures")
    assert {seed: [record.verdict for record in attempts] for seed, attempts in records.items()} == {
        seed: [verdict] for seed, verdict in ALL_OF_SIX.items()
    }
    for seed in (0, 1, 3, 5):
        assert records[seed][0].metrics["answer"].value == 40 + seed
    assert records[2][0].reason == "ValueError: the loss is NaN"
    assert records[4][0].ranks[0].exit_code == 9
    assert records[4][0].metrics["before"].value == 1.5, "what it had written before it left"
    assert "4 measured" in said and "2 failed" in said
    jobs = lab.jobs()
    assert len(jobs) == 6 and len({job.partition("_")[0] for job in jobs}) == 1, "one array"
    assert {str(record.slurm["job_id"]) for (record,) in records.values()} == set(jobs)
    assert set(jobs.values()) <= {"COMPLETED", "COMPLETING"}, "Slurm finds nothing wrong: verdicts are not its matter"
    assert {seed: cell["state"] for seed, cell in lab.status("adhoc-measures").items()} == {
        seed: verdict.value for seed, verdict in ALL_OF_SIX.items()
    }


def test_a_submission_outlives_the_shell_that_did_not_wait(lab: Lab) -> None:
    experiment = lab.experiment("waits")
    submit = lab.command(*lab.submission(f"experiment={experiment}", "seed=0,1,2", "hydra.launcher.wait=false"))
    shell = lab.start("bash", "-c", f"{shlex.join(submit)}; echo exit code $?; sleep 600")
    assert shell.stdout is not None
    said = "".join(iter(shell.stdout.readline, "exit code 0\n"))  # it returns although its cells wait for us
    os.killpg(shell.pid, signal.SIGKILL)
    jobs = lab.jobs()
    assert len(jobs) == 3 and all(job in said for job in jobs), said
    wait_for("running cells", lambda: sorted(lab.at_work("adhoc-waits")) == [0, 1, 2])
    told = lab.status("adhoc-waits")
    assert {cell["state"] for cell in told.values()} == {"running"} and {cell["job"] for cell in told.values()} == set(
        jobs
    )
    lab.go("adhoc-waits")
    wait_for("three records", lambda: len(lab.records("adhoc-waits")) == 3)
    assert {seed: cell["state"] for seed, cell in lab.status("adhoc-waits").items()} == dict.fromkeys(
        range(3), "measured"
    )
    lab.scalerlt("report", "runs/adhoc-waits", "--out", "report")
    assert list((lab.folder / "report").glob("tables/*.csv"))


def test_a_shell_that_waits_and_is_killed_loses_nothing(lab: Lab) -> None:
    """Of two jobs one runs at a time: the second starts and ends when nobody is there who submitted it."""
    experiment = lab.experiment("waits")
    overrides = [
        f"experiment={experiment}",
        "seed=0,1",
        "hydra.launcher.wait=true",
        "hydra.launcher.array_parallelism=1",
    ]
    shell = lab.start(*lab.command(*lab.submission(*overrides)))
    wait_for("one running cell", lambda: lab.at_work("adhoc-waits"))
    os.killpg(shell.pid, signal.SIGKILL)
    shell.wait()
    assert sorted(cell["state"] for cell in lab.status("adhoc-waits").values()) == ["queued", "running"]
    lab.go("adhoc-waits")
    wait_for("both records", lambda: len(lab.records("adhoc-waits")) == 2)
    assert "2 measured" in lab.scalerlt("status", "runs/adhoc-waits")


def test_what_is_edited_while_a_job_waits_changes_nothing_of_it(lab: Lab) -> None:
    experiment = lab.experiment("waits", repeats=3)
    sweeps = lab.folder / "sweeps"
    sweeps.mkdir()
    (sweeps / "mine.yaml").write_text(yaml.safe_dump({"grid": {"experiment": experiment, "seed": [0, 1]}}))
    lab.scalerlt(*lab.submission("+sweeps=mine", "hydra.launcher.wait=false", "hydra.launcher.sbatch.hold=true"))
    assert set(lab.jobs().values()) == {"PENDING"}
    assert {cell["state"] for cell in lab.status("mine").values()} == {"queued"}
    lab.experiment("waits", repeats=7, _target_="slurm.probes.measures")
    (sweeps / "mine.yaml").write_text(yaml.safe_dump({"grid": {"experiment": experiment, "seed": [4]}}))
    lab.go("mine")
    lab.cluster.ask("scontrol", "release", *lab.jobs())
    records = wait_for("two records", lambda: len(found := lab.records("mine")) == 2 and found)
    assert sorted(records) == [0, 1]
    for (record,) in records.values():
        assert record.verdict is Verdict.MEASURED
        assert record.metrics["repeats"].value == 3


def test_what_slurm_told_the_caller_is_not_passed_on(lab: Lab) -> None:
    """As from within an interactive job: its binding would put every cell on one core."""
    experiment = lab.experiment("measures")
    callers = {
        "SLURM_CPU_BIND": "quiet,mask_cpu:0x1",
        "SLURM_CPU_BIND_TYPE": "mask_cpu:",
        "SLURM_ARRAY_JOB_ID": "4711",
        "SLURM_ARRAY_TASK_ID": "13",
        "SLURM_JOB_ID": "4711",
        "SLURM_NTASKS": "64",
        "SLURM_MEM_PER_CPU": "1",
        "SBATCH_PARTITION": "nowhere",
    }
    cpus = 2 * (os.cpu_count() or 1)
    asks = [f"device.threads={cpus}", f"hydra.launcher.cpus_per_task={cpus}"]
    lab.scalerlt(*lab.submission(f"experiment={experiment}", "seed=0", *asks, "hydra.launcher.wait=true"), **callers)
    ((record,),) = lab.records("adhoc-measures").values()
    assert record.verdict is Verdict.MEASURED
    (job,) = lab.jobs()
    assert record.slurm["job_id"] == job and job.partition("_")[0] != "4711"
    assert record.metrics["array"].value in ("unset", job.partition("_")[0])
    assert "0x1" not in str(record.metrics["bind"].value)
    had = record.environment["affinity"]
    assert len(had) == record.metrics["affinity"].value
    assert int(record.environment["slurm"]["SLURM_CPUS_ON_NODE"]) == cpus
    assert [note for note in record.notes if str(len(had)) in note and str(cpus) in note], record.notes
    assert record.metrics["offline"].value == "1"


def test_what_a_job_is_given_beside_its_size(lab: Lab) -> None:
    experiment = lab.experiment("measures")
    given = ["setup=['export FROM_SETUP=1','export LOST=2']", "env.FROM_ENV='a b'", "comment='for table 3'"]
    given += ["gres=gpu:1", "python='env FROM_PYTHON=3 PYTHON'".replace("PYTHON'", f"{sys.executable}'"), "wait=true"]
    overrides = [f"hydra.launcher.{one}" if not one.startswith("env.") else f"+hydra.launcher.{one}" for one in given]
    lab.scalerlt(*lab.submission(f"experiment={experiment}", "seed=0", *overrides, device="cuda"))
    ((record,),) = lab.records("adhoc-measures").values()
    found = {name: record.metrics[name].value for name in ("FROM_SETUP", "FROM_ENV", "FROM_PYTHON", "SLURM_JOB_GPUS")}
    assert found == {"FROM_SETUP": "1", "FROM_ENV": "a b", "FROM_PYTHON": "3", "SLURM_JOB_GPUS": "0"}
    assert "for table 3" in lab.cluster.ask("scontrol", "show", "job", str(record.slurm["job_id"]))
