"""`experiment=readout`: a cell leaves its figures; the two readouts agree, and one of them keeps less."""

from pathlib import Path
from typing import Any

import pytest
from schema.plain_config import plain_config

from scalerlt.experiments import readout
from scalerlt.records.recorder import Recorder
from scalerlt.schema import load_cell

SMALL = {"rows": 16, "vocabulary": 5000, "width": 8, "tile": 128, "warmup": 1, "repeats": 3}


def measure(directory: Path, kind: str, precision: str) -> Recorder:
    values: dict[str, Any] = {f"experiment.{key}": value for key, value in SMALL.items()}
    directory.mkdir()
    recorder = Recorder(directory)
    cell = load_cell(plain_config({**values, "experiment.readout": kind}, experiment="readout", precision=precision))
    readout.run(cell, recorder)
    recorder.close()
    return recorder


@pytest.mark.parametrize(("precision", "error"), [("fp64", 1e-13), ("fp32", 1e-5), ("bf16", 0.05)])
def test_a_cell_leaves_its_figures(tmp_path: Path, precision: str, error: float) -> None:
    recorders = {kind: measure(tmp_path / kind, kind, precision) for kind in ("full", "tiled")}
    figures = {kind: {k: m.value for k, m in one.metrics.items()} for kind, one in recorders.items()}
    for recorder in recorders.values():
        assert recorder.passes == ["warm_up", "time", "memory", "reference"]
        seconds = recorder.metrics["readout_seconds"]
        assert seconds.n == 3 and seconds.scope == "readout"
        phases = zip(*(recorder.metrics[f"{phase}_seconds"].values for phase in ("forward", "backward")), strict=True)
        assert all(sum(parts) <= whole for parts, whole in zip(phases, seconds.values, strict=True))
    full, tiled = figures["full"], figures["tiled"]
    number = {"fp64": 8, "fp32": 4, "bf16": 4}[precision]
    assert full["saved_bytes"] >= 16 * 5000 * number
    assert tiled["saved_bytes"] == 16 * 8 + 2 * 16 * number
    assert 0 < tiled["live_working_bytes"] < 0.2 * full["live_working_bytes"]
    for one in figures.values():
        assert one["logprob_error_fp64"] <= error
        assert one["gradient_relative_l2"] <= error
    assert tiled["gradient_relative_l2"] > 0  # it is not the reference itself
