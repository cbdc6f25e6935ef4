"""Cells of several processes on several nodes: one supervisor on each node, one record."""

import os
import signal
from datetime import UTC, datetime
from pathlib import Path

from slurm.conftest import Lab, wait_for

from scalerlt.records.record import Verdict

RANKS = ["experiment=all_reduce", "parallel=ranks", "parallel.nodes=2", "parallel.ranks_per_node=2"]
RANKS += ["hydra.launcher.nodes=2", "hydra.launcher.cpus_per_task=2", "experiment.bytes=1KiB", "experiment.warmup=1"]


def test_four_ranks_on_two_nodes_add_up(lab: Lab) -> None:
    lab.experiment("measures")
    lab.scalerlt(*lab.submission(*RANKS, "seed=0", "experiment.repeats=3", "hydra.launcher.wait=true"))
    ((record,),) = lab.records("adhoc-all_reduce").values()
    assert record.verdict is Verdict.MEASURED, record.reason
    assert [rank.rank for rank in record.ranks] == [0, 1, 2, 3]
    assert [rank.host for rank in record.ranks] == ["n1", "n1", "n2", "n2"]
    assert [rank.exit_code for rank in record.ranks] == [0] * 4
    assert all((rank.rss_peak_bytes or 0) > 2**20 for rank in record.ranks)
    assert len({rank.pid for rank in record.ranks}) == 4


def test_one_rank_that_is_killed_ends_all_and_is_named(lab: Lab) -> None:
    lab.experiment("measures")
    lab.scalerlt(*lab.submission(*RANKS, "seed=0", "experiment.repeats=10000000", "hydra.launcher.wait=false"))
    (job,) = lab.jobs()
    wait_for("ranks that add up", lambda: lab.at_work("adhoc-all_reduce", "time"))
    last = pid_of(lab, rank=3)
    assert last is not None
    killed = datetime.now(UTC)
    os.kill(last, signal.SIGKILL)
    records = wait_for("the record", lambda: lab.records("adhoc-all_reduce"), 60)
    ((record,),) = records.values()
    assert record.verdict is Verdict.KILLED
    assert (record.reason or "").startswith("rank 3"), record.reason
    assert (datetime.fromisoformat(record.ended) - killed).total_seconds() < 30
    assert record.ranks[3].signal == signal.SIGKILL and record.ranks[3].host == "n2"
    wait_for("the end of the job", lambda: lab.jobs()[job] in ("COMPLETED", "FAILED", "CANCELLED"))
    assert [pid for rank in range(4) if (pid := pid_of(lab, rank))] == []
    assert len(lab.records("adhoc-all_reduce")[0]) == 1


def pid_of(lab: Lab, rank: int) -> int | None:
    """The process that writes the journal of a rank; every node is this host."""
    journals = list(lab.sweep("adhoc-all_reduce").path.glob(f"*/attempt-*/.progress-rank{rank}"))
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            for descriptor in (entry / "fd").iterdir():
                flags = int((entry / "fdinfo" / descriptor.name).read_text().split()[3], 8)
                if flags & os.O_WRONLY and descriptor.resolve() in journals:
                    return int(entry.name)
        except OSError:
            continue
    return None
