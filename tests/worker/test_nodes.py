"""Cells of several nodes: here as two tasks on this host, which share nothing but a folder."""

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path

import pytest
from worker.frozen import freeze, freeze_torchless, option
from worker.waiting import LONG, gone, wait_until

from scalerlt.errors import UserError
from scalerlt.records.journal import Journal
from scalerlt.records.queue import Asked
from scalerlt.records.record import Record, Verdict
from scalerlt.worker import beat
from scalerlt.worker.beat import Beat, Heard, Message
from scalerlt.worker.nodes import Leader, Place, hosts_of
from scalerlt.worker.processes import search_path
from scalerlt.worker.starting import Job
from scalerlt.worker.supervisor import Placement, Supervisor

HOSTS = ("localhost", "second-node")
TASK = """
import sys
from pathlib import Path

from scalerlt.worker import beat
from scalerlt.worker.follower import follow
from scalerlt.worker.nodes import Leader, Place
from scalerlt.worker.supervisor import Supervisor

folder, node, beat.BEAT_SECONDS = Path(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3])
place = Place(node, ("localhost", "second-node"), "7.0")
if not place.leads:
    sys.exit(follow(folder, place))
with Leader(folder, place.hosts) as leader:
    Supervisor(nodes=leader).run(Path(sys.argv[4]))
"""


@contextmanager
def task(
    folder: Path, node: int, *cells: Path, beat_seconds: float = 1.0, first: str = ""
) -> Iterator[subprocess.Popen[bytes]]:
    """The task of one node, in a process of its own; `first` are statements that it runs before."""
    running = subprocess.Popen(
        [sys.executable, "-c", first + TASK, str(folder), str(node), str(beat_seconds), *map(str, cells)],
        env={**os.environ, "PYTHONPATH": search_path()},
    )
    try:
        yield running
    finally:
        running.kill()
        running.wait()


def pids(cell_file: Path, ranks: int) -> list[int]:
    """Of the ranks of the running attempt, as far as they have met."""
    journals = [Journal.of(cell_file.parent / "attempt-001", rank) for rank in range(ranks)]
    met = [journal.metrics["pid"].value for journal in journals if journal.phase == "all_reduce"]
    return [int(pid or 0) for pid in met]


def run_until_met(
    leader: Leader, cell_file: Path, ranks: int, then: Callable[[list[int]], None]
) -> tuple[Record, list[int], float]:
    """Run the cell; when its ranks have met, `then` gets their pids. The record comes so many seconds later."""
    met: list[int] = []
    moment = 0.0

    def look(_: object) -> None:
        nonlocal moment
        if not met and len(found := pids(cell_file, ranks)) == ranks:
            met.extend(found)
            then(found)
            moment = time.monotonic()

    record = Supervisor(nodes=leader).run(cell_file, on_event=look)
    return record, met, time.monotonic() - moment


def test_two_nodes_with_two_ranks_each(tmp_path: Path) -> None:
    chosen = {**option("experiment", "all_reduce"), "bytes": "8KiB", "warmup": 0, "repeats": 2}
    cell_file = freeze(tmp_path / "s", "all_reduce", ranks=(2, 2), experiment=chosen, timeout_s=None)
    with task(tmp_path / "talk", 1) as follower:
        with Leader(tmp_path / "talk", HOSTS) as leader:
            record = Supervisor(nodes=leader).run(cell_file)
        assert follower.wait(timeout=LONG) == 0, "it is told that there will be no more"
    assert (record.verdict, record.reason, record.start) == (Verdict.MEASURED, None, "spawn")
    assert record.metrics["ranks"].value == 4 and record.metrics["sum_errors"].value == 0
    assert [rank.host for rank in record.ranks] == ["localhost", "localhost", "second-node", "second-node"]
    assert len({rank.pid for rank in record.ranks}) == 4
    for rank in record.ranks:
        assert (rank.exit_code, rank.signal) == (0, None)
        assert rank.ended and rank.experiment_seconds and (rank.rss_peak_bytes or 0) > 50 * 2**20
    assert all(rank.metrics["sum_errors"].value == 0 for rank in record.ranks[1:])
    assert not [path for path in (cell_file.parent / "attempt-001").iterdir() if path.name.startswith(".")]


def test_the_rank_that_raised_is_named_and_what_each_node_had(tmp_path: Path) -> None:
    """The second may use one CPU alone. Rank 0, which fails because its partner is gone, is seen to fail first."""
    probes = ("second_rank_raises", "ends")
    cells = [freeze_torchless(tmp_path / "s", probe, ranks=(2, 1), device={"threads": 2}) for probe in probes]
    cut = "import os; os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})\n"
    with task(tmp_path / "talk", 1, first=cut), Leader(tmp_path / "talk", HOSTS) as leader:
        supervisor, placement = Supervisor(nodes=leader), Placement(asked=Asked(cpus=2))
        failed, measured = (supervisor.run(cell_file, placement=placement) for cell_file in cells)
    assert (failed.verdict, failed.reason) == (Verdict.FAILED, "rank 1 on second-node: ValueError: only here")
    assert [rank.host for rank in failed.ranks] == ["localhost", "second-node"]
    assert measured.verdict is Verdict.MEASURED
    for record in (failed, measured):
        assert record.environment["affinity"] == sorted(os.sched_getaffinity(0))
        assert list(record.hosts) == ["second-node"]
        there = record.hosts["second-node"]
        assert there["affinity"] == [max(os.sched_getaffinity(0))] and there.keys() == record.environment.keys()
        assert [note for note in record.notes if note.startswith("second-node: ")] == [
            "second-node: only 1 CPU may be used (affinity), fewer than device.threads=2",
            "second-node: the job may use 1 CPU, fewer than the 2 that it was asked for",
        ]
    assert measured.ranks[1].metrics["affinity"].value == 1


def test_a_killed_rank_of_another_node_is_named(tmp_path: Path) -> None:
    cell_file = freeze_torchless(tmp_path / "s", "waits_for_the_others", ranks=(2, 2), timeout_s=None)
    with task(tmp_path / "talk", 1), Leader(tmp_path / "talk", HOSTS) as leader:
        record, met, seconds = run_until_met(leader, cell_file, 4, lambda found: os.kill(found[3], signal.SIGKILL))
    assert record.verdict is Verdict.KILLED
    assert (record.reason or "").startswith("rank 3 on second-node: killed by SIGKILL (phase all_reduce, ")
    assert record.failure is not None and record.failure.signal == signal.SIGKILL
    assert [rank.pid for rank in record.ranks] == met and record.ranks[3].signal == signal.SIGKILL
    assert all(rank.ended is not None for rank in record.ranks) and all(gone(pid, 0.0) for pid in met)
    assert seconds < 30


def test_a_node_that_vanishes_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """From then on the leader's beats, by which silence is counted, come quickly; before, nobody is taken for gone."""
    cell_file = freeze_torchless(tmp_path / "s", "waits_for_the_others", ranks=(2, 1), timeout_s=None)
    with task(tmp_path / "talk", 1) as follower, Leader(tmp_path / "talk", HOSTS) as leader:

        def vanish(_: object) -> None:
            follower.kill()
            monkeypatch.setattr(beat, "BEAT_SECONDS", 0.4)

        record, met, _ = run_until_met(leader, cell_file, 2, vanish)
    assert record.verdict is Verdict.KILLED
    assert (record.reason or "").startswith("rank 1 on second-node: its node has given no sign of life for 4 s (phase")
    assert record.failure is not None and record.failure.type == "NodeLost"
    assert all(gone(pid) for pid in met), "the kernel ends a rank whose task is gone"
    assert record.hosts["second-node"]["affinity"], "what it had told of itself stays"


def test_a_node_that_never_comes_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(beat, "BEAT_SECONDS", 0.2)
    monkeypatch.setattr(beat, "UNHEARD_BEATS", 5)
    cell_file = freeze_torchless(tmp_path / "s", "hangs", ranks=(2, 1))
    with Leader(tmp_path / "talk", HOSTS) as leader:
        record = Supervisor(nodes=leader).run(cell_file)
    assert record.verdict is Verdict.KILLED
    assert record.reason == "rank 1 on second-node: its node has not answered within 1 s (phase start)"
    assert record.ranks[0].signal in (signal.SIGTERM, signal.SIGKILL) and record.ranks[1].pid is None
    assert record.hosts == {}


def test_without_its_leader_a_follower_ends_its_ranks(tmp_path: Path) -> None:
    cell_file = freeze_torchless(tmp_path / "s", "waits_for_the_others", ranks=(2, 1), timeout_s=None)
    quick = "import signal; signal.signal(signal.SIGUSR1, lambda *_: setattr(beat, 'BEAT_SECONDS', 0.1))\n"
    with (
        task(tmp_path / "talk", 1, beat_seconds=2.0, first=quick) as follower,
        task(tmp_path / "talk", 0, cell_file, beat_seconds=2.0) as leader,
    ):
        wait_until(lambda: len(pids(cell_file, 2)) == 2)
        met = pids(cell_file, 2)
        leader.kill()
        follower.send_signal(signal.SIGUSR1)  # its beats, by which it counts silence, come quickly from now on
        assert follower.wait(timeout=LONG) == 1
        assert all(gone(pid) for pid in met)


def test_stop_and_time_limit_reach_the_other_nodes(tmp_path: Path) -> None:
    stop = threading.Event()
    cell_file = freeze_torchless(tmp_path / "s", "hangs", ranks=(2, 1), timeout_s=None, cell_id="stopped")
    limited = freeze_torchless(tmp_path / "s", "hangs", ranks=(2, 1), timeout_s=2.0)

    def look(_: object) -> None:
        journals = [Journal.of(cell_file.parent / "attempt-001", rank) for rank in range(2)]
        if all(journal.phase == "generate" for journal in journals):
            stop.set()

    with task(tmp_path / "talk", 1) as follower, Leader(tmp_path / "talk", HOSTS) as leader:
        wait_until((tmp_path / "talk" / "report-1.json").exists)
        follower.send_signal(signal.SIGTERM)  # as Slurm does, to all tasks: the leader says what is to be done
        stopped = Supervisor(nodes=leader).run(cell_file, stop=stop, on_event=look)
        timed_out = Supervisor(nodes=leader).run(limited)
    assert (stopped.verdict, stopped.reason) == (Verdict.KILLED, "interrupted")
    assert [rank.signal for rank in stopped.ranks] == [signal.SIGTERM] * 2
    assert timed_out.verdict is Verdict.TIMEOUT
    assert all(rank.signal in (signal.SIGTERM, signal.SIGKILL) for rank in timed_out.ranks)


def test_a_rank_that_cannot_be_started_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Here because its node sees no such folder."""
    cell_file = freeze_torchless(tmp_path / "s", "hangs", ranks=(2, 1), timeout_s=None)

    def elsewhere(job: Job) -> dict[str, object]:
        return {**asdict(job), "attempt": "/no/such/folder"}

    monkeypatch.setattr(Job, "plain", elsewhere)
    with task(tmp_path / "talk", 1), Leader(tmp_path / "talk", HOSTS) as leader:
        record = Supervisor(nodes=leader).run(cell_file)
    assert record.verdict is Verdict.FAILED
    assert (record.reason or "").startswith("rank 1 on second-node: could not be started (/no/such/folder/")
    assert record.ranks[0].signal is not None and record.ranks[1].pid is None


def test_a_cell_of_more_nodes_than_the_job_has(tmp_path: Path) -> None:
    with Leader(tmp_path / "talk", HOSTS) as leader:
        record = Supervisor(nodes=leader).run(freeze_torchless(tmp_path / "s", "hangs", ranks=(3, 1)))
    assert record.verdict is Verdict.FAILED
    assert "parallel.nodes=3 needs a job of as many nodes, and this one has 2" in (record.reason or "")


def test_a_disk_that_stands_still_silences_nobody(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Silence is counted by the beats that one writes oneself."""
    monkeypatch.setattr(beat, "BEAT_SECONDS", 0.02)
    folder = tmp_path / "talk"
    folder.mkdir()
    own = Beat(folder / "own.json", Message)
    other = Heard(folder / "other.json", Message, own)
    Message(beat=1).write(folder / "other.json")
    assert other.look() and not other.look()
    folder.rename(tmp_path / "away")
    tried = own._number
    wait_until(lambda: own._number > tried + 1)  # what was being written then has been
    still = own.count
    other.expect()
    wait_until(lambda: own._number > tried + 3 * beat.LOST_BEATS)
    assert own.count == still and other.silence is None
    (tmp_path / "away").rename(folder)
    wait_until(lambda: other.silence is not None)
    assert other.silence == "has given no sign of life for 0.2 s"
    own.close()


@pytest.mark.parametrize(
    ("listed", "hosts"),
    [
        ("n1", ["n1"]),
        ("n[1-2,5],m07", ["n1", "n2", "n5", "m07"]),
        ("gpu-[008-011].cluster", ["gpu-008.cluster", "gpu-009.cluster", "gpu-010.cluster", "gpu-011.cluster"]),
        ("r[1-2]n[01,3]", ["r1n01", "r1n3", "r2n01", "r2n3"]),
    ],
)
def test_node_lists(listed: str, hosts: list[str]) -> None:
    assert hosts_of(listed) == hosts


@pytest.mark.parametrize("listed", ["", "n[1-", "n[a-b]", "n 1"])
def test_what_is_no_node_list(listed: str) -> None:
    with pytest.raises(UserError, match="not a list of nodes"):
        hosts_of(listed)


def test_the_place_among_the_tasks_of_a_job(tmp_path: Path) -> None:
    variables = {"SLURM_JOB_ID": "12", "SLURM_JOB_NODELIST": "n[1-4]", "SLURM_NODEID": "1"}
    place = Place.in_slurm(variables)
    assert (place.node, place.hosts, place.leads) == (1, ("n1", "n2", "n3", "n4"), False)
    assert place.folder(tmp_path) == tmp_path / "12.0"
    again = Place.in_slurm({**variables, "SLURM_STEP_NODELIST": "n[2-3]", "SLURM_RESTART_COUNT": "2"})
    assert again.hosts == ("n2", "n3") and again.folder(tmp_path) == tmp_path / "12.2"
    for wrong, said in (({"SLURM_JOB_ID": ""}, "no task"), ({"SLURM_LOCALID": "1"}, "several tasks"),
                        ({"SLURM_NODEID": "4"}, "not among the 4 nodes")):  # fmt: skip
        with pytest.raises(UserError, match=said):
            Place.in_slurm({**variables, **wrong})
