"""`experiment=test_accounting`: the outcomes of a directory's tests, counted from pytest's own report."""

import os
import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree as ElementTree
from collections import Counter
from pathlib import Path

from scalerlt.errors import UserError
from scalerlt.records.recorder import Recorder
from scalerlt.schema import Cell
from scalerlt.schema.experiment.test_accounting import TestAccounting
from scalerlt.schema.fields import resolve_path

OUTCOMES = ("passed", "failed", "skipped", "xfailed")
PUBLISHED = {"passed": 158, "skipped": 4, "xfailed": 12}
"""Of the published learner's tests (vime, `docs/prefix_rematerialization_results.md`); skipped are those of a GPU."""
RAN = (0, 1)
"""Pytest's exit codes when all tests ran and passed, and when some failed."""
NAMED = 5
"""Failed tests that are named, at most."""


def run(cell: Cell, recorder: Recorder) -> None:
    """Run the tests of the cell and count their outcomes."""
    experiment = cell.experiment
    assert isinstance(experiment, TestAccounting)
    with recorder.measuring("tests"):
        started = time.perf_counter()
        outcomes = run_tests(resolve_path(experiment.tests))
        seconds = time.perf_counter() - started
    counts = Counter(outcomes.values())
    for outcome in OUTCOMES:
        recorder.metric(outcome, counts[outcome], "test", method="pytest's report; errors are failures")
    for outcome, count in PUBLISHED.items():
        recorder.metric(f"published_{outcome}", count, "test", method="vime, docs/prefix_rematerialization_results.md")
    recorder.metric("tests_seconds", seconds, "s", scope="tests", method="wall time of checking: never a speed")
    if failed := [name for name, outcome in outcomes.items() if outcome == "failed"]:
        more = f" and {len(failed) - NAMED} more" if len(failed) > NAMED else ""
        recorder.note(f"failed: {', '.join(failed[:NAMED])}{more}")


def run_tests(directory: Path) -> dict[str, str]:
    """The outcome of each test below a directory, by name: one of `OUTCOMES`; an error is a failure.

    Raises:
        UserError: pytest does not come to run them, or finds none.
    """
    with tempfile.TemporaryDirectory() as place:
        report = Path(place) / "report.xml"
        command = [
            sys.executable,
            "-m",
            "pytest",
            "-q",
            "-p",
            "no:cacheprovider",
            str(directory),
            f"--junitxml={report}",
        ]
        environment = {key: value for key, value in os.environ.items() if not key.startswith("PYTEST_")}
        ran = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
        if ran.returncode not in RAN or not report.is_file():
            said = (ran.stdout + ran.stderr).strip().splitlines() or ["no message"]
            raise UserError(
                f"experiment.tests={directory}: pytest ends with code {ran.returncode} and no outcomes ({said[-1]})"
            )
        cases = list(ElementTree.parse(report).iter("testcase"))
    return {f"{case.get('classname')}::{case.get('name')}": _outcome(case) for case in cases}


def _outcome(case: ElementTree.Element) -> str:
    if case.find("failure") is not None or case.find("error") is not None:
        return "failed"
    skipped = case.find("skipped")
    if skipped is None:
        return "passed"
    return "xfailed" if skipped.get("type") == "pytest.xfail" else "skipped"
