"""How busy others keep the CPUs that this process may use, from files that look like the kernel's."""

import os
from pathlib import Path

import pytest

from scalerlt.measure import load
from scalerlt.measure.load import busy_cpus, crowded

IDLE, BUSY = (0, 0, 0, 100, 0, 0, 0, 0, 0, 0), (60, 10, 10, 10, 0, 5, 5, 0, 0, 0)


class Clock:
    """Every sleep lets the kernel count on."""

    def __init__(self, path: Path, ticks: dict[int, list[tuple[int, ...]]]) -> None:
        self.path, self.ticks, self.slept = path, ticks, []  # type: ignore[var-annotated]
        self.counts = {cpu: [0] * 10 for cpu in ticks}
        self.write()

    def write(self) -> None:
        lines = ["cpu  1 2 3 4 5 6 7 8 9 10"]
        lines += [f"cpu{cpu} {' '.join(map(str, counts))}" for cpu, counts in self.counts.items()]
        self.path.write_text("\n".join([*lines, "intr 1 2 3", "ctxt 5", ""]))

    def sleep(self, seconds: float) -> None:
        for cpu, counts in self.counts.items():
            step = self.ticks[cpu][min(len(self.slept), len(self.ticks[cpu]) - 1)]
            self.counts[cpu] = [have + more for have, more in zip(counts, step, strict=True)]
        self.slept.append(seconds)
        self.write()


def counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ticks: dict[int, list[tuple[int, ...]]], affinity: set[int]
) -> Clock:
    clock = Clock(tmp_path / "stat", ticks)
    monkeypatch.setattr(load, "time", clock)
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: affinity)
    return clock


def test_an_idle_machine_has_no_note(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = counted(tmp_path, monkeypatch, {0: [IDLE], 1: [IDLE]}, {0, 1})
    assert crowded(clock.path) is None
    assert clock.slept == [load.LOOK_SECONDS], "one short look"


def test_only_the_cpus_that_may_be_used_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = counted(tmp_path, monkeypatch, {0: [BUSY], 1: [IDLE]}, {1})
    assert crowded(clock.path) is None
    assert busy_cpus([0], 0.2, clock.path) == pytest.approx(0.9)
    assert busy_cpus([0, 1, 7], 0.2, clock.path) == pytest.approx(0.9)


def test_a_machine_that_others_use_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = counted(tmp_path, monkeypatch, {0: [BUSY], 1: [BUSY]}, {0, 1})
    note = crowded(clock.path)
    assert note is not None
    assert note.startswith("other processes used 1.8 of the 2 CPUs that may be used here when it started")


def test_what_was_busy_for_a_moment_is_looked_at_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = counted(tmp_path, monkeypatch, {0: [BUSY, IDLE]}, {0})
    assert crowded(clock.path) is None
    assert clock.slept == [load.LOOK_SECONDS, load.LOOK_AGAIN_SECONDS]


def test_without_the_kernels_file_nothing_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    counted(tmp_path, monkeypatch, {0: [BUSY]}, {0})
    assert crowded(tmp_path / "none") is None


def test_the_kernels_own_file_is_read() -> None:
    cpus = sorted(os.sched_getaffinity(0))
    assert 0.0 <= busy_cpus(cpus, 0.05) <= len(cpus) + 0.01
