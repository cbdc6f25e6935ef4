"""Cells of several ranks: one process each, one record for all."""

import signal
from pathlib import Path

from worker.frozen import freeze

from scalerlt.records.record import Verdict
from scalerlt.worker.supervisor import Supervisor


def test_two_ranks_reduce_over_gloo(supervisor: Supervisor, tmp_path: Path) -> None:
    cell_file = freeze(tmp_path, "all_reduces")
    record = supervisor.run(cell_file, ranks=2)
    assert (record.verdict, record.reason) == (Verdict.MEASURED, None)
    assert record.metrics["total"].value == 1.0 + 2.0
    assert record.metrics["rank"].value == 0, "the record's metrics are rank 0's"
    assert [rank.rank for rank in record.ranks] == [0, 1]
    assert record.ranks[0].metrics == {}
    assert record.ranks[1].metrics["total"].value == 3.0
    assert record.ranks[1].metrics["rank"].value == 1
    assert record.ranks[0].pid != record.ranks[1].pid
    names = {path.name for path in (cell_file.parent / "attempt-001").iterdir()}
    assert {"stdout.log", "stderr.log", "stdout-rank1.log", "stderr-rank1.log"} <= names


def test_when_one_rank_dies_the_others_are_ended(supervisor: Supervisor, tmp_path: Path) -> None:
    record = supervisor.run(freeze(tmp_path, "second_rank_dies"), ranks=2)
    assert record.verdict is Verdict.KILLED
    assert (record.reason or "").startswith("rank 1: killed by SIGKILL")
    assert record.failure is not None and record.failure.phase == "all_reduce"
    assert [rank.signal for rank in record.ranks] == [signal.SIGTERM, signal.SIGKILL]
    assert record.metrics["rank"].value == 0
    assert record.ranks[1].metrics["rank"].value == 1


def test_the_rank_that_raised_first_is_named(supervisor: Supervisor, tmp_path: Path) -> None:
    """Rank 0 fails too, for its partner is gone; the record names the cause."""
    record = supervisor.run(freeze(tmp_path, "second_rank_raises"), ranks=2)
    assert record.verdict is Verdict.FAILED
    assert record.reason == "rank 1: ValueError: only here"
    assert all(rank.ended is not None for rank in record.ranks)
