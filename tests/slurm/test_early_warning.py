"""Slurm's warning to a job whose Python has not started yet."""

import sys

import pytest
from slurm.conftest import Lab, wait_for

from scalerlt.records.record import Verdict


@pytest.mark.parametrize("use_srun", [True, False])
def test_a_job_warned_before_its_python_starts_is_queued_again(lab: Lab, use_srun: bool) -> None:
    """All processes of its step are signalled, those that a slow file system keeps from starting too."""
    slow, signalled = lab.folder / "slow_python", lab.folder / "signalled"
    waits = f"touch {lab.folder}/starts\nuntil [ -e {signalled} ]; do sleep 0.2; done"
    slow.write_text(f'#!/bin/bash\n{waits}\nexec {sys.executable} "$@"\n')
    slow.chmod(0o755)
    settings = [f"hydra.launcher.python={slow}", f"hydra.launcher.use_srun={str(use_srun).lower()}"]
    experiment = lab.experiment("waits")
    lab.scalerlt(*lab.submission(f"experiment={experiment}", "seed=0", *settings, "hydra.launcher.wait=false"))
    lab.go("adhoc-waits")
    wait_for("a process of the job", (lab.folder / "starts").exists)
    (job,) = lab.jobs("RUNNING")
    lab.cluster.ask("scancel", "--signal=USR2", *([] if use_srun else ["--batch"]), job)
    signalled.touch()
    wait_for("a record", lambda: lab.records("adhoc-waits"))
    ((record,),) = lab.records("adhoc-waits").values()
    assert record.verdict is Verdict.MEASURED, record.reason
    assert (record.attempt, record.slurm["job_id"], record.slurm["restarts"]) == (1, job, 1)
