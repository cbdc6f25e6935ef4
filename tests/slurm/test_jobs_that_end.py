"""Jobs that Slurm, or somebody, ended: what became of their cells is told with what Slurm says, accounting or not."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from slurm.conftest import PATIENCE, Lab, wait_for

from scalerlt.records.record import Verdict

FRAGILE = ["hydra.launcher.partition=fragile", "hydra.launcher.sbatch.exclusive=true", "hydra.launcher.wait=false"]
"""A node of its own, which may fail: other tests have jobs, too."""


def test_cancelled_while_running_and_while_waiting(lab: Lab) -> None:
    """The shell that waits for them hears of it too: submitit alone would wait for ever."""
    experiment = lab.experiment("waits")
    overrides = [
        f"experiment={experiment}",
        "seed=0,1",
        "hydra.launcher.array_parallelism=1",
        "hydra.launcher.wait=true",
    ]
    shell = lab.start(*lab.command(*lab.submission(*overrides)))
    (running,) = wait_for("a running cell", lambda: lab.at_work("adhoc-waits"))
    waiting = 1 - running
    for state in ("PENDING", "RUNNING"):  # in this order, or the waiting one would start
        (job,) = lab.jobs(state)
        lab.cluster.ask("scancel", job)
    output, _ = shell.communicate(timeout=PATIENCE)
    assert shell.returncode == 1, output
    records = lab.records("adhoc-waits")
    assert waiting not in records, "it never ran"
    (record,) = records[running]
    assert record.verdict is Verdict.KILLED
    assert "cancelled (Slurm says JobState=C" in (record.reason or ""), record.reason
    told = lab.status("adhoc-waits")
    assert told[running]["state"] == "killed"
    assert told[waiting]["state"] == "planned" and "CANCELLED" in told[waiting]["reason"], told[waiting]
    lab.go("adhoc-waits")
    lab.scalerlt(*lab.submission(*overrides))
    assert [attempts[-1].verdict for attempts in lab.records("adhoc-waits").values()] == [Verdict.MEASURED] * 2


def test_a_node_that_fails_loses_its_attempt_and_the_job_goes_on_elsewhere(lab: Lab) -> None:
    experiment = lab.experiment("waits")
    lab.scalerlt(*lab.submission(f"experiment={experiment}", "seed=0", *FRAGILE))
    wait_for("a running cell", lambda: lab.at_work("adhoc-waits"))
    with failing(lab) as first:
        wait_for("a job elsewhere", lambda: node_of(lab) not in (None, first))
        lab.go("adhoc-waits")
        wait_for("two records", lambda: len(lab.records("adhoc-waits").get(0, [])) == 2)
    lost, measured = lab.records("adhoc-waits")[0]
    assert (lost.verdict, measured.verdict) == (Verdict.LOST, Verdict.MEASURED)
    assert "put back into the queue" in (lost.reason or "") or "NODE_FAIL" in (lost.reason or ""), lost.reason
    assert measured.slurm["job_id"] == lost.slurm["job_id"] and measured.slurm["restarts"] == 1
    assert lab.status("adhoc-waits")[0]["state"] == "measured"


def test_a_node_that_fails_for_good(lab: Lab) -> None:
    experiment = lab.experiment("waits")
    lab.scalerlt(*lab.submission(f"experiment={experiment}", "seed=0", *FRAGILE, "hydra.launcher.max_requeues=0"))
    wait_for("a running cell", lambda: lab.at_work("adhoc-waits"))
    with failing(lab):
        wait_for("a verdict", lambda: lab.status("adhoc-waits")[0]["state"] == "lost")
        assert "NODE_FAIL" in (reason := lab.status("adhoc-waits")[0]["reason"]), reason
        lab.scalerlt("status", "--reconcile", "runs/adhoc-waits", expect=1)
    ((record,),) = lab.records("adhoc-waits").values()
    assert record.verdict is Verdict.LOST and "NODE_FAIL" in (record.reason or ""), record.reason


def test_more_memory_than_the_job_was_given(lab: Lab) -> None:
    """Without cgroups only a cluster with accounting enforces it; the supervisor is killed with the cell."""
    if not lab.cluster.accounting:
        pytest.skip("without accounting and cgroups, as on this cluster, nothing looks at memory")
    experiment = lab.experiment("takes_memory")
    lab.scalerlt(*lab.submission(f"experiment={experiment}", "seed=0", "hydra.launcher.wait=true"))
    ((record,),) = lab.records("adhoc-takes_memory").values()
    assert record.verdict is Verdict.OOM, record.reason
    assert "was killed because memory ran out" in (record.reason or "")
    assert record.failure is not None and record.failure.phase == "fill"


@contextmanager
def failing(lab: Lab) -> Iterator[str]:
    """The node of the only job has no power."""
    node = node_of(lab)
    assert node is not None
    lab.cluster.fail_node(node)
    try:
        yield node
    finally:
        lab.cluster.repair_node(node)


def node_of(lab: Lab) -> str | None:
    return lab.cluster.ask("squeue", "-h", "-t", "RUNNING", "-j", ",".join(lab.jobs()), "-o", "%N").strip() or None
