"""One record, with the right verdict, however a cell ends. Every cell runs in a real child."""

import math
import os
import signal
import threading
import time
from pathlib import Path

import pytest
from worker.frozen import freeze
from worker.waiting import gone, wait_until

from scalerlt.records.base import UnreadableDocument
from scalerlt.records.journal import Journal
from scalerlt.records.lease import Lease
from scalerlt.records.record import Record, Verdict
from scalerlt.records.store import CellClaimed, CellDirectory
from scalerlt.worker.supervisor import Glimpse, Supervisor

BOTH_STARTS = pytest.mark.parametrize("supervisor", ["fork", "spawn"], indirect=True)


def attempt_of(cell_file: Path) -> Path:
    return cell_file.parent / "attempt-001"


def check_files(cell_file: Path, record: Record) -> None:
    """The record on disk is the one returned, and nothing temporary is left."""
    attempt = attempt_of(cell_file)
    assert Record.read(attempt / "record.json").to_json() == record.to_json()
    assert not [path.name for path in attempt.iterdir() if path.name.startswith(".")]
    assert {"lease.json", "environment.json", "stdout.log", "stderr.log"} <= {path.name for path in attempt.iterdir()}


@BOTH_STARTS
def test_a_cell_that_measures(supervisor: Supervisor, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    cell_file = freeze(tmp_path / "sweep", "measures", device={"threads": 3})
    glimpses: list[Glimpse] = []
    began = time.monotonic()
    record = supervisor.run(cell_file, plan="001.json", order=3, bundle="b", on_event=glimpses.append)
    elapsed = time.monotonic() - began
    check_files(cell_file, record)
    assert record.verdict is Verdict.MEASURED
    assert record.reason is None
    assert record.failure is None
    assert record.metrics["answer"].value == 42
    assert record.metrics["threads"].value == 3
    assert record.passes == ["time"]
    assert (record.sweep, record.cell_id, record.attempt) == ("sweep", "measures", 1)
    assert (record.plan, record.order, record.bundle) == ("001.json", 3, "b")
    assert record.start == request.node.callspec.params["supervisor"]
    assert record.axes["experiment"] == "probe"
    assert record.environment["host"]
    assert record.provenance["packages"]["torch"]
    (rank,) = record.ranks
    assert rank.exit_code == 0 and rank.signal is None and rank.phase is None
    assert rank.pid == record.metrics["pid"].value != os.getpid()
    assert record.overhead_seconds is not None and rank.experiment_seconds is not None
    assert rank.experiment_seconds > 0 and record.overhead_seconds > 0
    both = rank.experiment_seconds + record.overhead_seconds
    assert glimpses[-1].elapsed < both < elapsed, "the overhead is all but the experiment"


def test_an_exception_is_named_with_its_phase_and_what_was_measured_before(
    supervisor: Supervisor, tmp_path: Path
) -> None:
    cell_file = freeze(tmp_path, "raises")
    record = supervisor.run(cell_file)
    check_files(cell_file, record)
    assert record.verdict is Verdict.FAILED
    assert record.reason == "ValueError: the loss is NaN"
    assert record.failure is not None
    assert (record.failure.type, record.failure.message) == ("ValueError", "the loss is NaN\nat step 3")
    assert record.failure.phase == record.ranks[0].phase == "backward"
    assert "in raises" in (record.failure.traceback or "")
    assert "in raises" in (attempt_of(cell_file) / "stderr.log").read_text()
    assert record.metrics["before"].value == 1.5


@pytest.mark.parametrize(
    ("probe", "reason", "exit_code"),
    [
        ("exits_with_9", "exited with code 9 without a result", 9),
        ("exits_silently", "exited with code 0 without a result", 0),
    ],
)
def test_a_cell_that_leaves_without_a_result(
    supervisor: Supervisor, tmp_path: Path, probe: str, reason: str, exit_code: int
) -> None:
    record = supervisor.run(freeze(tmp_path, probe))
    assert record.verdict is Verdict.FAILED
    assert (record.reason or "").startswith(reason)
    assert record.failure is not None and record.failure.exit_code == exit_code == record.ranks[0].exit_code
    assert ("before" in record.metrics) == (probe == "exits_with_9")


def test_sys_exit_is_no_result(supervisor: Supervisor, tmp_path: Path) -> None:
    record = supervisor.run(freeze(tmp_path, "leaves_by_sys_exit"))
    assert (record.verdict, record.reason) == (Verdict.FAILED, "SystemExit: 3")


def test_a_cell_that_is_killed(supervisor: Supervisor, tmp_path: Path) -> None:
    cell_file = freeze(tmp_path, "kills_itself")
    record = supervisor.run(cell_file)
    check_files(cell_file, record)
    assert record.verdict is Verdict.KILLED
    assert record.failure is not None
    assert (record.failure.signal, record.failure.phase) == (signal.SIGKILL, "memory")
    assert (record.failure.rss_bytes or 0) > 50 * 2**20, "a child that has torch is larger than 50 MiB"
    assert "killed by SIGKILL" in (record.reason or "") and "phase memory" in (record.reason or "")
    assert record.passes == ["memory"]
    before = record.metrics["before"]
    assert before.values == [1.0, 3.0, math.inf] and before.scope == "decode"
    assert isinstance(before.value, float) and math.isnan(before.value)


def test_a_segmentation_fault_names_the_signal_and_leaves_a_traceback(supervisor: Supervisor, tmp_path: Path) -> None:
    cell_file = freeze(tmp_path, "segfaults")
    record = supervisor.run(cell_file)
    assert record.verdict is Verdict.KILLED
    assert "SIGSEGV" in (record.reason or "")
    assert "in segfaults" in (attempt_of(cell_file) / "stderr.log").read_text()


@pytest.mark.parametrize("probe", ["hangs", "hangs_and_ignores_sigterm", "hangs_with_a_subprocess"])
def test_the_time_limit_ends_a_cell_and_all_that_it_started(supervisor: Supervisor, tmp_path: Path, probe: str) -> None:
    """However long it takes to start: the watch does not look at its clock before the cell hangs."""

    def until_it_hangs(glimpse: Glimpse) -> None:
        wait_until(lambda: Journal.of(glimpse.attempt, 0).phase == "generate")

    record = supervisor.run(freeze(tmp_path, probe, timeout_s=0.6), on_event=until_it_hangs)
    assert record.verdict is Verdict.TIMEOUT
    assert (record.reason or "").startswith("exceeded its time limit of 0.6 s")
    assert record.failure is not None and record.failure.phase == "generate"
    assert record.metrics["before"].value == 1.5
    expected = signal.SIGKILL if probe == "hangs_and_ignores_sigterm" else signal.SIGTERM
    assert record.ranks[0].signal == expected
    started = [record.ranks[0].pid] + [metric.value for name, metric in record.metrics.items() if name == "helper"]
    assert all(gone(int(pid or 0)) for pid in started)


def test_what_a_cell_leaves_running_is_ended_with_it(supervisor: Supervisor, tmp_path: Path) -> None:
    record = supervisor.run(freeze(tmp_path, "leaves_a_subprocess"))
    assert record.verdict is Verdict.MEASURED
    assert gone(int(record.metrics["helper"].value or 0))


@BOTH_STARTS
def test_the_memory_limit_is_what_the_cell_may_allocate(supervisor: Supervisor, tmp_path: Path) -> None:
    """Of 200 MiB, 128 fit, although the interpreter with torch has about as much already; 256 do not."""
    record = supervisor.run(freeze(tmp_path, "allocates_by_torch", device={"memory_limit": "200MiB"}))
    assert record.metrics["sum"].value == 2**25
    assert record.verdict is Verdict.OOM
    assert record.failure is not None
    assert f"you tried to allocate {2**28} bytes" in (record.reason or "")
    assert record.failure.phase == "forward"
    assert (record.failure.rss_bytes or 0) > 128 * 2**20


def test_pythons_own_memory_error_is_out_of_memory(supervisor: Supervisor, tmp_path: Path) -> None:
    record = supervisor.run(freeze(tmp_path, "allocates_by_python", device={"memory_limit": "50MiB"}))
    assert (record.verdict, record.reason) == (Verdict.OOM, "MemoryError")


def test_unsupported_is_an_answer(supervisor: Supervisor, tmp_path: Path) -> None:
    record = supervisor.run(freeze(tmp_path, "is_unsupported"))
    assert record.verdict is Verdict.UNSUPPORTED
    assert record.reason == "fp64 has no kernel on this device"
    assert record.verdict.answers


def test_output_and_series_survive_a_kill(supervisor: Supervisor, tmp_path: Path) -> None:
    cell_file = freeze(tmp_path, "prints")
    assert supervisor.run(cell_file).verdict is Verdict.KILLED
    attempt = attempt_of(cell_file)
    assert (attempt / "stdout.log").read_text() == "to the output\n"
    assert (attempt / "stderr.log").read_text() == "to the error\n"
    rows = (attempt / "series.jsonl").read_text().splitlines()
    assert rows == ['{"step": 1, "reward": 0.5}', '{"step": 2, "reward": "NaN"}']


def test_import_time_variables_get_a_fresh_interpreter(supervisor: Supervisor, tmp_path: Path) -> None:
    forked = supervisor.run(freeze(tmp_path, "shows_its_start"))
    fresh = supervisor.run(freeze(tmp_path, "shows_its_start", device={"env": {"SCALERLT_PROBE": "x"}}, cell_id="two"))
    assert (forked.start, forked.metrics["variable"].value) == ("fork", "unset")
    assert (fresh.start, fresh.metrics["variable"].value) == ("spawn", "x")
    for record in (forked, fresh):
        assert record.metrics["session"].value == record.metrics["pid"].value, "a session of its own"
        assert record.metrics["tasks"].value == 1


def test_a_target_that_does_not_exist(supervisor: Supervisor, tmp_path: Path) -> None:
    record = supervisor.run(freeze(tmp_path, "no_such_probe"))
    assert record.verdict is Verdict.FAILED
    assert "no_such_probe" in (record.reason or "")
    assert record.failure is not None and record.failure.phase == "import"
    assert record.overhead_seconds is None, "no experiment ran"


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("repeats: 1", "repeats: -1", r"not a configuration that can be run \(experiment\.repeats=-1"),
        ("    repeats: 1", "    repeats: 2", "was changed after it was frozen, and is no longer the cell measures"),
        ("precision: fp32", "precision: fp64", "was changed after it was frozen, and is no longer the cell measures"),
        (
            "    weights: pkg://",
            "    weights: /",
            "was changed after it was frozen, and is no longer the cell measures",
        ),
        ("cell_id: measures", "cell_id: another", "holds another cell, another"),
    ],
)
def test_a_cell_that_was_changed_after_it_was_frozen_is_not_run(
    supervisor: Supervisor, tmp_path: Path, old: str, new: str, said: str
) -> None:
    cell_file = freeze(tmp_path, "measures")
    text = cell_file.read_text()
    assert old in text
    cell_file.write_text(text.replace(old, new))
    with pytest.raises(UnreadableDocument, match=said):
        supervisor.run(cell_file)
    assert not attempt_of(cell_file).exists()


def test_what_is_no_part_of_the_identity_may_be_changed(supervisor: Supervisor, tmp_path: Path) -> None:
    cell_file = freeze(tmp_path, "nothing", timeout_s=60.0)
    cell_file.write_text(cell_file.read_text().replace("timeout_s: 60.0", "timeout_s: 61.0"))
    assert supervisor.run(cell_file).verdict is Verdict.MEASURED


def test_a_cell_that_is_changed_while_it_starts_has_failed(
    supervisor: Supervisor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its process looks again: it is its own reading that it runs."""
    cell_file = freeze(tmp_path, "measures")
    claim = CellDirectory.claim

    def edit(cell: CellDirectory, seen: int | None = None) -> tuple[int, Path]:
        cell_file.write_text(cell_file.read_text().replace("    repeats: 1", "    repeats: 2"))
        return claim(cell, seen)

    monkeypatch.setattr(CellDirectory, "claim", edit)
    record = supervisor.run(cell_file)
    assert record.verdict is Verdict.FAILED and "was changed after it was frozen" in (record.reason or "")


def test_a_cell_file_that_is_none_starts_nothing(supervisor: Supervisor, tmp_path: Path) -> None:
    cell_file = freeze(tmp_path, "measures")
    cell_file.write_text(cell_file.read_text()[:200])
    with pytest.raises(UnreadableDocument, match="not a frozen cell"):
        supervisor.run(cell_file)
    assert not attempt_of(cell_file).exists()


def test_stop_ends_the_running_cell(supervisor: Supervisor, tmp_path: Path) -> None:
    stop = threading.Event()
    seen: list[Glimpse] = []

    def on_event(glimpse: Glimpse) -> None:
        seen.append(glimpse)
        if glimpse.phase == "generate":
            stop.set()

    record = supervisor.run(freeze(tmp_path, "hangs"), stop=stop, on_event=on_event)
    assert (record.verdict, record.reason) == (Verdict.KILLED, "interrupted")
    assert (seen[-1].done, seen[-1].total, seen[-1].what) == (2, 7, "prompts")
    assert record.metrics["before"].value == 1.5


def test_a_cell_that_another_process_runs_is_not_run(supervisor: Supervisor, tmp_path: Path) -> None:
    cell_file = freeze(tmp_path, "measures")
    _, attempt = CellDirectory(cell_file.parent).claim()
    with pytest.raises(CellClaimed, match="attempt-001 is running"):
        supervisor.run(cell_file)  # claimed, the lease not yet written
    Lease.of_this_process().write(attempt / "lease.json")
    with pytest.raises(CellClaimed, match=rf"attempt-001 is running on \S+ \(pid {os.getpid()}\)"):
        supervisor.run(cell_file)


def test_the_heartbeat_is_renewed(supervisor: Supervisor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("scalerlt.worker.watch.HEARTBEAT_SECONDS", 0.2)
    cell_file = freeze(tmp_path, "is_slow")
    supervisor.run(cell_file)
    lease = Lease.read(attempt_of(cell_file) / "lease.json")
    assert lease.heartbeat > lease.started
    assert lease.pid == os.getpid()


def test_a_leak_does_not_reach_the_next_cell(supervisor: Supervisor, tmp_path: Path) -> None:
    first, second = (supervisor.run(freeze(tmp_path, "leaks", cell_id=name)) for name in ("one", "two"))
    rss = [int(record.metrics["rss"].value or 0) for record in (first, second)]
    assert abs(rss[1] - rss[0]) < 20 * 2**20, "200 MiB were leaked in between"


def test_too_few_cpus_are_noted(supervisor: Supervisor, tmp_path: Path) -> None:
    threads = len(os.sched_getaffinity(0)) + 1
    record = supervisor.run(freeze(tmp_path, "measures", device={"threads": threads}))
    assert any(f"fewer than device.threads={threads}" in note for note in record.notes)
    assert not supervisor.run(freeze(tmp_path, "nothing")).notes
