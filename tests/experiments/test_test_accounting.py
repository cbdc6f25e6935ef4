"""`test_accounting`: outcomes of tests are counted as pytest reports them."""

import importlib.util
from pathlib import Path
from typing import Any

import pytest
from schema.plain_config import plain_config

from scalerlt.errors import RequestErrors, UserError
from scalerlt.experiments import test_accounting as accounting
from scalerlt.planning.hydra_bridge import compose
from scalerlt.planning.resolve import resolve_all
from scalerlt.records.recorder import Recorder
from scalerlt.schema import Cell, load_cell
from scalerlt.schema.machine import Machine

CPU = Machine(gpus=0, gpu_reason="none here", cpus=2)
TESTS = """
import pytest

@pytest.mark.parametrize("n", range(5))
def test_passes(n): pass

def test_fails(): assert False

@pytest.fixture
def broken(): raise ValueError

def test_has_an_error(broken): pass

@pytest.mark.skip(reason="no GPU")
def test_is_skipped(): pass

@pytest.mark.xfail(strict=True)
def test_is_expected_to_fail(): assert False

@pytest.mark.xfail(strict=True)
def test_passes_unexpectedly(): pass
"""


def make_cell(tests: Path) -> Cell:
    values: dict[str, Any] = {"experiment.tests": str(tests), "experiment.suite": "mine"}
    return load_cell(plain_config(values, experiment="test_accounting"))


def test_outcomes_are_counted(tmp_path: Path) -> None:
    tests = tmp_path / "suite"
    tests.mkdir()
    (tests / "test_of_all_kinds.py").write_text(TESTS)
    recorder = Recorder(tmp_path)
    accounting.run(make_cell(tests), recorder)
    recorder.close()
    found = {name: metric.value for name, metric in recorder.metrics.items()}
    assert [found[outcome] for outcome in accounting.OUTCOMES] == [5, 3, 1, 1]
    assert [found[f"published_{outcome}"] for outcome in ("passed", "skipped", "xfailed")] == [158, 4, 12]
    seconds = recorder.metrics["tests_seconds"]
    assert (seconds.scope, seconds.method) == ("tests", "wall time of checking: never a speed")
    [note] = recorder.notes
    assert "test_fails" in note and "test_passes_unexpectedly" in note


def test_no_tests_and_broken_ones_are_said(tmp_path: Path) -> None:
    tests = tmp_path / "suite"
    tests.mkdir()
    (tests / "no_test.py").write_text("")
    with pytest.raises(UserError, match="ends with code 5 and no outcomes"):
        accounting.run_tests(tests)
    (tests / "test_broken.py").write_text("def test(: pass")
    with pytest.raises(UserError, match="ends with code 2"):
        accounting.run_tests(tests)


def planned(*overrides: str) -> list[Any]:
    return resolve_all(compose(["experiment=test_accounting", "device=cpu", *overrides]).cells, CPU)


def test_a_missing_directory_is_refused_before_anything_runs(tmp_path: Path) -> None:
    with pytest.raises(RequestErrors, match=r"experiment\.tests=.*there is no such file or directory with"):
        planned(f"experiment.tests={tmp_path / 'nowhere'}")


def test_the_tests_are_part_of_the_identity_and_their_place_is_not(tmp_path: Path) -> None:
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "test_x.py").write_text("def test(): pass")
    one, two = (planned(f"experiment.tests={tmp_path / name}")[0].cell_id for name in ("one", "two"))
    assert one == two
    (tmp_path / "two" / "test_x.py").write_text("def test(): assert True")
    assert planned(f"experiment.tests={tmp_path / 'two'}")[0].cell_id != one


def test_without_pytest_it_is_unsupported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cell = make_cell(tmp_path)
    assert cell.unsupported_on(CPU) is None
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert "runs pytest, which is not installed here" in (cell.unsupported_on(CPU) or "")
