import os
from pathlib import Path

import numpy as np
import pytest

from scalerlt.measure.resident import ResidentPeak

MIB = 2**20


def touch(mib: int) -> None:
    """Make so many MiB resident, and give them back."""
    array = np.empty(mib * MIB, dtype=np.uint8)
    array[:: os.sysconf("SC_PAGE_SIZE")] = 1


@pytest.mark.skipif(not os.access("/proc/self/clear_refs", os.W_OK), reason="no writable /proc/self/clear_refs")
def test_the_peak_is_that_of_what_ran_inside():
    touch(96)  # before: a peak of the process's life would show it
    resident = ResidentPeak()
    with resident.tracing():
        with resident.phase("forward"):
            touch(48)
        with resident.phase("backward"):
            pass
    assert resident.reason is None
    rise = resident.peak_bytes - resident.baseline_bytes
    assert 40 * MIB < rise < 80 * MIB
    assert resident.phases["forward"] == resident.peak_bytes
    assert resident.phases["backward"] - resident.baseline_bytes < 24 * MIB


def test_without_a_reset_there_is_a_reason_and_no_figure(tmp_path: Path):
    (tmp_path / "status").write_text("VmHWM:\t    900 kB\nVmRSS:\t    800 kB\n")
    (tmp_path / "clear_refs").mkdir()  # cannot be written to, even by root
    resident = ResidentPeak(proc=tmp_path)
    with resident.tracing(), resident.phase("forward"):
        pass
    assert resident.peak_bytes is None
    assert resident.phases == {}
    assert resident.baseline_bytes == 800 * 1024
    assert "clear_refs" in resident.reason


def test_units_and_reset_are_those_of_the_kernel(tmp_path: Path):
    (tmp_path / "status").write_text("Name:\tx\nVmHWM:\t    900 kB\nVmRSS:\t    800 kB\n")
    (tmp_path / "clear_refs").touch()
    resident = ResidentPeak(proc=tmp_path)
    with resident.tracing():
        pass
    assert resident.peak_bytes == 900 * 1024
    assert (tmp_path / "clear_refs").read_text() == "5"


def test_no_such_system_has_a_reason(tmp_path: Path):
    resident = ResidentPeak(proc=tmp_path / "nothing")
    with resident.tracing():
        pass
    assert resident.baseline_bytes is None
    assert resident.reason is not None
