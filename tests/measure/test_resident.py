import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from scalerlt.measure.resident import ResidentPeak

MIB = 2**20


MEASURED_ALONE = """
import json, os
import numpy as np
from scalerlt.measure.resident import ResidentPeak

def touch(mib):  # make so many MiB resident, and give them back
    array = np.empty(mib * 2**20, dtype=np.uint8)
    array[:: os.sysconf("SC_PAGE_SIZE")] = 1

touch(96)  # before: a peak of the process's life would show it
resident = ResidentPeak()
with resident.tracing():
    with resident.phase("forward"):
        touch(48)
    with resident.phase("backward"):
        pass
print(json.dumps([resident.reason, resident.baseline_bytes, resident.peak_bytes, resident.phases]))
"""


@pytest.mark.skipif(not os.access("/proc/self/clear_refs", os.W_OK), reason="no writable /proc/self/clear_refs")
def test_the_peak_is_that_of_what_ran_inside():
    """In a process of its own, in which no other test has left memory that comes and goes."""
    done = subprocess.run([sys.executable, "-c", MEASURED_ALONE], capture_output=True, text=True, check=True)
    reason, baseline, peak, phases = json.loads(done.stdout)
    assert reason is None
    assert 40 * MIB < peak - baseline < 80 * MIB
    assert phases["forward"] == peak
    assert phases["backward"] - baseline < 24 * MIB


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
