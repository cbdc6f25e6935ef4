"""`report_speed`: what is read and built is counted; nothing is asserted of the times."""

from pathlib import Path

import pytest
from schema.plain_config import plain_config

from scalerlt.experiments import report_speed
from scalerlt.records.recorder import Recorder
from scalerlt.schema import load_cell


def test_a_generated_sweep_is_read_and_reported(tmp_path: Path) -> None:
    values = {"experiment.records": 30, "experiment.figures": 41, "experiment.repeats": 1}
    recorder = Recorder(tmp_path)
    report_speed.run(load_cell(plain_config(values, experiment="report_speed")), recorder)
    recorder.close()
    metrics = recorder.metrics
    assert metrics["records"].value == 30
    cells = metrics["cells"].value
    assert isinstance(cells, int)
    assert cells >= 30
    for name in ("load_seconds", "report_seconds", "report_processor_seconds"):
        assert metrics[name].n == 1
    assert isinstance(metrics["page_bytes"].value, int)
    assert metrics["page_bytes"].value > 100_000
    assert recorder.passes == ["time"]


def test_a_report_that_fails_says_why(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(report_speed, "LOAD", "raise SystemExit('no such luck')")
    cell = load_cell(plain_config({"experiment.records": 1}, experiment="report_speed"))
    with pytest.raises(RuntimeError, match="no such luck"):
        report_speed.run(cell, Recorder(tmp_path))
