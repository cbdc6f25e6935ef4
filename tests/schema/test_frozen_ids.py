"""Cells keep their names: what is added to the configuration leaves the identity of every earlier cell alone."""

from typing import Any

import pytest
from schema.plain_config import plain_config

from scalerlt.records.cell import FileInput
from scalerlt.schema import load_cell
from scalerlt.schema.identity import cell_id, identity, scientific_keys

INPUTS = {
    "task.rollouts": FileInput(path="a", sha256="0" * 64),
    "task.path": FileInput(path="b", sha256="1" * 64),
}
FROZEN = {
    "actor_update-tiny_ouro-fp32-small-s0-3a9c49fe97": {},
    "actor_update-tiny_ouro-bf16-small-joint-s0-a0a4134792": {"checkpoint": "joint", "precision": "bf16"},
    "rollout_throughput-tiny_ouro-fp32-small-s0-599e8eaed2": {
        "experiment": "rollout_throughput",
        "task": "random_tokens",
    },
    "gsm8k_eval-tiny_ouro-fp32-small-last_exited-s0-c1d8a3e2a9": {
        "experiment": "gsm8k_eval",
        "task": "gsm8k",
        "rollout": "last_exited",
    },
    "readout-tiny_ouro-fp32-small-s0-c9c575bc22": {"experiment": "readout"},
    "gsm8k_reward-tiny_ouro-fp32-small-s0-59577cc4ad": {"experiment": "gsm8k_reward", "algorithm": "grpo"},
}
"""As they were before `task=random_rollouts`. A changed one makes the measured cells of every user unknown."""


@pytest.mark.parametrize("name", FROZEN)
def test_a_cell_keeps_its_id(name: str) -> None:
    options = FROZEN[name]
    values: dict[str, Any] = {"model.weights": None}
    if options.get("task") == "gsm8k":
        values["task.path"] = "somewhere"
    cell = load_cell(plain_config(values, **options))
    assert cell_id(cell, identity(scientific_keys(cell, INPUTS))) == name
