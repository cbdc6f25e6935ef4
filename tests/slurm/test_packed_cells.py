"""One job that works through many cells, several at a time."""

import json
import os

from slurm.conftest import Lab, wait_for

from scalerlt.records.record import Record, Verdict

SEEDS = range(12)


def test_twelve_cells_on_two_gpus_of_one_job_that_ends_too_early(lab: Lab) -> None:
    """The GPUs are none: the cells of this experiment look at what they may see, and use nothing of it."""
    experiment = lab.experiment("shares")
    pack = [
        "hydra.launcher.gpus_per_node=2",
        "hydra.launcher.cpus_per_task=2",
        "hydra.launcher.mem_gb=3",
        "hydra.launcher.max_jobs=1",
    ]
    pack += ["hydra.launcher.pack.slots=2", "hydra.launcher.pack.timed=shared", "hydra.launcher.max_requeues=0"]
    overrides = [f"experiment={experiment}", f"seed={','.join(map(str, SEEDS))}", *pack]
    lab.scalerlt(*lab.submission(*overrides, "hydra.launcher.wait=false", device="cuda"))
    (job,) = lab.jobs()
    wait_for(
        "a killed cell and four more",
        lambda: len(lab.records("adhoc-shares")) >= 5 and 3 in lab.records("adhoc-shares"),
    )
    lab.cluster.ask("scancel", "--signal=USR2", job)  # as Slurm does before the limit, or for a job of more importance
    wait_for("the end of the job", lambda: lab.jobs()[job] in ("COMPLETED", "FAILED"))
    first = lab.records("adhoc-shares")
    (killed,) = first[3]
    assert killed.verdict is Verdict.KILLED and "SIGKILL" in (killed.reason or "")
    verdicts = [attempts[0].verdict for seed, attempts in first.items() if seed != 3]
    assert set(verdicts) <= {Verdict.MEASURED, Verdict.PREEMPTED} and verdicts.count(Verdict.MEASURED) >= 4
    assert len(first) < 12, "the job ended before its queue did"

    lab.go("adhoc-shares")
    lab.scalerlt(*lab.submission(*overrides, "hydra.launcher.wait=true", device="cuda"))
    records = lab.records("adhoc-shares")
    assert sorted(records) == list(SEEDS)
    for seed, attempts in records.items():
        assert [record.verdict for record in attempts].count(Verdict.MEASURED) == 1, "measured, and once"
        assert attempts[:-1] == [record for record in first.get(seed, []) if record.verdict is not Verdict.MEASURED]
    measured = [attempts[-1] for attempts in records.values()]
    assert {record.metrics["gpu"].value for record in measured} == {"0", "1"}
    assert not [pair for pair in pairs(measured) if overlap(*pair) and pair[0].metrics["gpu"] == pair[1].metrics["gpu"]]
    for record in measured:
        assert json.loads(str(record.metrics["cpus"].value)) == record.slurm["cpus"], "its own part, and no more"
    together = [pair for pair in pairs(measured) if overlap(*pair)]
    assert together, "two at a time"
    for one, other in together:
        assert other.cell_id in one.beside and one.cell_id in other.beside
        if len(os.sched_getaffinity(0)) > 1:
            assert not set(one.slurm["cpus"]) & set(other.slurm["cpus"])
    assert len({str(record.slurm["job_id"]) for record in measured}) == 2


def pairs(records: list[Record]) -> list[tuple[Record, Record]]:
    return [(one, other) for index, one in enumerate(records) for other in records[:index]]


def overlap(one: Record, other: Record) -> bool:
    def span(record: Record) -> tuple[float, float]:
        return float(record.metrics["began"].value or 0), float(record.metrics["ended"].value or 0)

    return max(span(one)[0], span(other)[0]) < min(span(one)[1], span(other)[1])
