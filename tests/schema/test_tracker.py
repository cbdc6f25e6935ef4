"""A tracker shows results and is no part of what is measured."""

import pytest
from schema.plain_config import plain_config

from scalerlt.errors import RequestErrors
from scalerlt.planning.hydra_bridge import compose
from scalerlt.records.cell import FileInput
from scalerlt.schema import load_cell
from scalerlt.schema.identity import axes, cell_id, identity, scientific_keys
from scalerlt.schema.tracker import NoTracker

INPUTS = {"task.rollouts": FileInput(path="a", sha256="0" * 64)}


@pytest.mark.parametrize("tracker", ["wandb", "tensorboard"])
def test_it_is_no_part_of_the_identity(tracker: str) -> None:
    found = []
    for option in ("none", tracker):
        cell = load_cell(plain_config({"model.weights": None}, tracker=option))
        keys = scientific_keys(cell, INPUTS)
        found.append((identity(keys), cell_id(cell, identity(keys)), axes(keys)))
    assert found[0] == found[1]
    assert not any(key.startswith("tracker") for key in found[0][2])


def test_a_cell_that_was_frozen_before_there_was_one_has_none() -> None:
    values = plain_config({"model.weights": None})
    del values["tracker"]
    assert isinstance(load_cell(values).tracker, NoTracker)


@pytest.mark.parametrize("project", ["", "a/b", "50%", "a:b", "x" * 129])
def test_a_project_that_wandb_would_refuse_is_refused_beforehand(project: str) -> None:
    with pytest.raises(RequestErrors, match=r"tracker\.project=.*a project has 1 to 128 characters"):
        load_cell(plain_config({"model.weights": None, "tracker.project": project}, tracker="wandb"))


def test_a_mode_is_one_of_three() -> None:
    with pytest.raises(RequestErrors, match=r"tracker\.mode='shared'"):
        load_cell(plain_config({"model.weights": None, "tracker.mode": "shared"}, tracker="wandb"))


def test_it_is_chosen_on_the_command_line() -> None:
    request = compose(["tracker=wandb", "tracker.project=mine", "tracker.mode=offline"], None)
    tracker = request.cells[0].config["tracker"]
    assert (tracker["name"], tracker["project"], tracker["mode"], tracker["entity"]) == (
        "wandb",
        "mine",
        "offline",
        None,
    )
