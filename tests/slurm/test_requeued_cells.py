"""A cell that needs longer than its job may last."""

import json

from slurm.conftest import Lab, wait_for

from scalerlt.records.record import Verdict


def test_a_cell_that_outlives_its_limit_twice_finishes_as_the_third_attempt(lab: Lab) -> None:
    """Slurm looks at time limits every 30 s: its signal comes 75 to 105 s after the start of each job."""
    experiment = lab.experiment("counts")
    limits = ["hydra.launcher.timeout_min=2", "hydra.launcher.signal_delay_s=15"]
    lab.scalerlt(*lab.submission(f"experiment={experiment}", "seed=0", *limits, "hydra.launcher.wait=false"))
    wait_for("the third attempt", lambda: len(lab.records("adhoc-counts").get(0, [])) == 3)
    (attempts,) = lab.records("adhoc-counts").values()
    assert [record.verdict for record in attempts] == [Verdict.PREEMPTED, Verdict.PREEMPTED, Verdict.MEASURED]
    assert [record.attempt for record in attempts] == [1, 2, 3]
    assert [record.continues for record in attempts] == [None, 1, 2]
    (job,) = lab.jobs()
    assert {record.slurm["job_id"] for record in attempts} == {job}, "the same job, queued again"
    restarts = [int(record.slurm["restarts"]) for record in attempts]
    assert restarts == sorted(set(restarts)), restarts
    (cell,) = lab.sweep("adhoc-counts").cells()
    steps = [
        json.loads(line)["step"]
        for attempt in cell.attempts()
        for line in (attempt.path / "series.jsonl").read_text().splitlines()
    ]
    assert steps == list(range(1, int(attempts[2].metrics["count"].value or 0) + 1)), "no step is lost, none runs twice"
    assert lab.status("adhoc-counts")[0]["state"] == "measured"
    assert lab.status("adhoc-counts")[0]["attempt"] == 3
