"""TensorBoard's own reader finds in the event files what the series and the record say."""

import math
from pathlib import Path

import pytest
from tracking.mirrored_cells import leave_attempt, mirror, mirrored_cell

from scalerlt.records.record import Metric

pytest.importorskip("tensorboard", reason="tensorboard is not installed: the dev extra has it")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    axes = {"experiment": "gsm8k_reward", "batch.group_size": 8, "task.file": None, "seed": 0, "on": True}
    cell_file = mirrored_cell(tmp_path_factory.mktemp("runs") / "sweep", "measures", "tensorboard", axes=axes)
    metrics = {"accuracy": Metric(value=0.75), "speed": Metric(status="unsupported"), "name": Metric(value="a text")}
    attempt = leave_attempt(cell_file, [1, 2, 5], evaluations=[0], metrics=metrics)
    assert mirror(attempt) == [[{"ready": True, "notes": []}]]
    return attempt / "mirrors" / "tensorboard"


def test_scalars_stand_against_the_step(folder: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    found = EventAccumulator(str(folder))
    found.Reload()
    columns = {"samples", "tokens", "seconds", "reward", "odd"}
    assert set(found.Tags()["scalars"]) == {*columns, "record/accuracy"}
    rewards = [(event.step, event.value) for event in found.Scalars("reward")]
    assert rewards == [(1, pytest.approx(0.1)), (2, pytest.approx(0.2)), (5, pytest.approx(0.5))]
    assert all(math.isnan(event.value) for event in found.Scalars("odd"))
    assert [(event.step, event.value) for event in found.Scalars("record/accuracy")] == [(5, 0.75)]
    assert found.Scalars("reward")[0].wall_time > 1e9


def test_hyperparameters_are_the_axes(folder: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    from tensorboard.plugins.hparams import metadata

    found = EventAccumulator(str(folder))
    found.Reload()
    content = found.PluginTagToContent("hparams")[metadata.SESSION_START_INFO_TAG]
    told = metadata.parse_session_start_info_plugin_data(content)
    values = {name: value.ListFields()[0][1] for name, value in told.hparams.items()}
    assert values == {"experiment": "gsm8k_reward", "batch.group_size": 8.0, "seed": 0.0, "on": True}
    assert told.group_name == "" or "measures" in told.group_name
