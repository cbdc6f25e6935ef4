"""A soak: a sweep through faults and interruptions (make soak prints the figures of a larger one)."""

import secrets
from pathlib import Path

import pytest
from soak.course import Course
from soak.processes import Soak

SECONDS = 1200.0


@pytest.mark.timeout(SECONDS)
def test_a_sweep_through_faults_and_interruptions(tmp_path: Path, pytestconfig: pytest.Config) -> None:
    if not pytestconfig.getoption("--run-soak"):
        pytest.skip("runs for minutes; make soak runs it")
    chosen = pytestconfig.getoption("--soak-seed")
    seed = secrets.randbelow(2**31) if chosen is None else chosen
    soak = Soak.drawn(tmp_path / "soak", pytestconfig.getoption("--soak-cells"), seed, timeout=5.0)
    report = Course(soak, say=print).run()
    print(report.table())
    assert not report.problems, f"seed {seed}: " + "\n".join(report.problems)
