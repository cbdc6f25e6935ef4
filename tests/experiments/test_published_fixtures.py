"""The published numbers come out of our own counting, and what is not theirs is not said to be."""

from pathlib import Path
from typing import Any

import pytest
from schema.plain_config import plain_config

from scalerlt.experiments import published_fixtures
from scalerlt.experiments.published_fixtures import PUBLISHED
from scalerlt.records.record import Metric
from scalerlt.records.recorder import Recorder
from scalerlt.schema import Cell, load_cell
from scalerlt.schema.machine import Machine

CPU = Machine(gpus=0, gpu_reason="none here", cpus=2)


def make_cell(quantity: str, checkpoint: str, values: dict[str, Any] | None = None, **options: str) -> Cell:
    chosen = {"experiment": "published_fixtures", "model": "fixture_ouro", "algorithm": "rltt"} | options
    return load_cell(plain_config({"experiment.quantity": quantity} | (values or {}), checkpoint=checkpoint, **chosen))


def counted(directory: Path, cell: Cell) -> dict[str, Metric]:
    recorder = Recorder(directory)
    published_fixtures.run(cell, recorder)
    recorder.close()
    return recorder.metrics


@pytest.mark.parametrize(("quantity", "checkpoint"), PUBLISHED, ids="/".join)
def test_a_quantity_of_the_fixture(tmp_path: Path, quantity: str, checkpoint: str) -> None:
    cell = make_cell(quantity, checkpoint)
    assert cell.unsupported_on(CPU) is None
    found = counted(tmp_path, cell)
    assert found["published"].value == PUBLISHED[quantity, checkpoint]
    if checkpoint == "joint" or quantity in ("token_calls", "boundary_bytes"):
        assert found["ours"].value == found["published"].value
        assert found["agreement"].value == "equal"
    else:
        assert found["agreement"].value == "another graph"
        assert 0 < found["ours"].value < 2 * 45_656  # type: ignore[operator]


def test_streamed_runs_less_than_joint_and_is_not_published(tmp_path: Path) -> None:
    found = counted(tmp_path, make_cell("token_calls", "streamed"))
    assert found["ours"].value == 4 * 2 * (2 * 4 + 6) == 112
    assert found["published"].status == found["agreement"].status == "not_measured"
    assert "no published schedule like checkpoint=streamed" in (found["published"].reason or "")


@pytest.mark.parametrize(
    ("values", "options", "reason"),
    [
        ({"model.num_hidden_layers": 3}, {}, "another shape than model.num_hidden_layers=3"),
        ({}, {"precision": "fp64"}, "and this is precision=fp64"),
    ],
)
def test_another_fixture_is_not_compared(
    tmp_path: Path, values: dict[str, Any], options: dict[str, str], reason: str
) -> None:
    found = counted(tmp_path, make_cell("prompt_saved_bytes", "joint", values, **options))
    assert found["ours"].value == 32
    assert found["agreement"].status == "not_measured"
    assert reason in (found["published"].reason or "")


def test_a_wrong_count_differs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(PUBLISHED, ("token_calls", "joint"), 161)
    assert counted(tmp_path, make_cell("token_calls", "joint"))["agreement"].value == "differs"


def test_what_cannot_be_counted_is_refused() -> None:
    assert "use checkpoint=prefix or joint" in (make_cell("token_calls", "none").unsupported_on(CPU) or "")
    assert "counted in token_calls alone" in (make_cell("boundary_bytes", "streamed").unsupported_on(CPU) or "")
