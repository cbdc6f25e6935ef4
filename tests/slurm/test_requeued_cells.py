"""A cell that needs longer than its job may last."""

import json

from slurm.conftest import Lab, wait_for

from scalerlt.records.record import Verdict


def test_a_cell_that_outlives_its_limit_twice_goes_on_and_finishes(lab: Lab) -> None:
    """Slurm looks at time limits every 30 s: its signal comes 75 to 105 s after the start of each job."""
    experiment = lab.experiment("counts")
    limits = ["hydra.launcher.timeout_min=2", "hydra.launcher.signal_delay_s=15"]
    lab.scalerlt(*lab.submission(f"experiment={experiment}", "seed=0", *limits, "hydra.launcher.wait=false"))
    wait_for(
        "a measured attempt",
        lambda: any(record.verdict is Verdict.MEASURED for record in lab.records("adhoc-counts").get(0, [])),
    )
    (attempts,) = lab.records("adhoc-counts").values()
    *cut, last = attempts
    assert last.verdict is Verdict.MEASURED and {record.verdict for record in cut} == {Verdict.PREEMPTED}
    assert len(cut) >= 2, "a job that starts late may be told to end before its cell has saved anything"
    saved = [record.attempt for record in cut if record.slurm["saved"]]
    assert len(saved) == 2 and last.metrics["attempts"].value == 3
    assert last.continues == saved[-1]
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
    assert steps == list(range(1, int(last.metrics["count"].value or 0) + 1)), "no step is lost, none runs twice"
    assert lab.status("adhoc-counts")[0]["state"] == "measured"
    assert lab.status("adhoc-counts")[0]["attempt"] == last.attempt
