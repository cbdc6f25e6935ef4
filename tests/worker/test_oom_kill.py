"""A SIGKILL is `oom` exactly when the kernel's counter for the cell's memory group has risen."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from worker.frozen import freeze

from scalerlt.measure.cgroup import limits, oom_kills
from scalerlt.records.record import Record, Verdict
from scalerlt.worker.processes import search_path


def tree(root: Path, own: str, files: dict[str, str]) -> tuple[Path, Path]:
    """A false /proc and /sys/fs/cgroup."""
    proc, mounts = root / "proc", root / "cgroup"
    for name, text in {"self/cgroup": own, "vmstat": "pgfault 9\noom_kill 77\n"}.items():
        (proc / name).parent.mkdir(parents=True, exist_ok=True)
        (proc / name).write_text(text)
    for name, text in files.items():
        (mounts / name).parent.mkdir(parents=True, exist_ok=True)
        (mounts / name).write_text(text)
    return proc, mounts


EVENTS = "low 0\nhigh 0\nmax 12\noom 4\noom_kill 3\noom_group_kill 0\n"
CONTROL = "oom_kill_disable 0\nunder_oom 0\noom_kill 5\n"


@pytest.mark.parametrize(
    ("own", "files", "count"),
    [
        ("0::/user/job\n", {"user/job/memory.events": EVENTS}, 3),
        ("4:memory:/job\n0::/\n", {"memory/job/memory.oom_control": CONTROL}, 5),
        ("0::/docker/abc\n", {"memory.events": EVENTS}, 3),  # a container whose own group is the mount's top
        ("0::/job\n", {"unified/job/memory.events": EVENTS}, 3),
        ("0::/\n", {}, 77),
    ],
)
def test_the_counter_is_found(tmp_path: Path, own: str, files: dict[str, str], count: int) -> None:
    assert oom_kills(*tree(tmp_path, own, files)) == count


def test_the_tightest_limit_above_counts(tmp_path: Path) -> None:
    files = {
        "slice/memory.max": "1000\n",
        "slice/job/memory.max": "max\n",
        "slice/cpu.max": "max 100000\n",
        "slice/job/cpu.max": "150000 100000\n",
    }
    assert limits(*tree(tmp_path, "0::/slice/job\n", files)) == {"memory_bytes": 1000, "cpus": 1.5}


def test_the_limits_of_v1(tmp_path: Path) -> None:
    files = {
        "memory/job/memory.limit_in_bytes": "2000\n",
        "memory/memory.limit_in_bytes": "9223372036854771712\n",
        "cpu,cpuacct/job/cpu.cfs_quota_us": "-1\n",
        "cpu,cpuacct/job/cpu.cfs_period_us": "100000\n",
    }
    assert limits(*tree(tmp_path, "4:memory:/job\n3:cpu,cpuacct:/job\n", files)) == {"memory_bytes": 2000}


@pytest.fixture
def small_group() -> Iterator[Path]:
    """A real memory group (v1 or v2) of 400 MiB below this process's own; skipped where none may be made."""
    for line in Path("/proc/self/cgroup").read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers not in ("memory", ""):
            continue
        top = Path("/sys/fs/cgroup") / controllers / path.lstrip("/")
        group = top / f"scalerlt-test-{os.getpid()}"
        limit = "memory.limit_in_bytes" if controllers else "memory.max"
        try:
            group.mkdir()
        except OSError:
            continue
        try:
            (group / limit).write_text(str(400 * 2**20))
            yield group
            return
        except OSError:
            continue
        finally:
            group.rmdir()
    pytest.skip("no memory group may be made here")


JOIN_AND_RUN = """
import os, runpy, sys
from pathlib import Path

(Path(sys.argv.pop(1)) / "cgroup.procs").write_text(str(os.getpid()))
runpy.run_module("scalerlt.worker", run_name="__main__", alter_sys=True)
"""


def test_the_kernels_own_kill_is_out_of_memory(small_group: Path, tmp_path: Path) -> None:
    cell_file = freeze(tmp_path, "fills_memory")
    subprocess.run(
        [sys.executable, "-c", JOIN_AND_RUN, str(small_group), str(cell_file)],
        env={**os.environ, "PYTHONPATH": search_path()},
        check=False,
        timeout=100,
    )
    record = Record.read(cell_file.parent / "attempt-001" / "record.json")
    assert record.verdict is Verdict.OOM
    assert "memory ran out" in (record.reason or "")
    assert record.failure is not None and record.failure.signal == signal.SIGKILL
