"""`planning_speed`: what is planned and composed is counted; nothing is asserted of the times."""

from pathlib import Path

import pytest
from schema.plain_config import plain_config

from scalerlt.experiments import planning_speed
from scalerlt.records.recorder import Recorder
from scalerlt.schema import load_cell


def test_a_request_is_planned_and_composed(tmp_path: Path) -> None:
    values = {
        "experiment.kind": "values",
        "experiment.request": "precision=fp32,bf16 checkpoint=none,layer seed=range(3)",
        "experiment.repeats": 1,
        "experiment.hydra_cells": 2,
    }
    recorder = Recorder(tmp_path)
    planning_speed.run(load_cell(plain_config(values, experiment="planning_speed")), recorder)
    recorder.close()
    metrics = recorder.metrics
    assert metrics["cells"].value == 12
    assert metrics["combinations"].value == 4
    assert metrics["plan_seconds"].n == 1
    assert metrics["plain_hydra_seconds"].n == 2
    assert "2 of the 12 cells" in (metrics["plain_hydra_seconds"].method or "")
    mean = sum(metrics["plain_hydra_seconds"].values or []) / 2
    shortest = min(metrics["plan_seconds"].values or [])
    assert metrics["plain_hydra_ratio"].value == pytest.approx(mean / shortest)


def test_a_request_that_is_wrong_says_so(tmp_path: Path) -> None:
    cell = load_cell(plain_config({"experiment.request": "precison=fp32"}, experiment="planning_speed"))
    with pytest.raises(RuntimeError, match="did you mean precision"):
        planning_speed.run(cell, Recorder(tmp_path))
