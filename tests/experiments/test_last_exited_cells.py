"""`rollout=last_exited` as a cell: what it measures, what it says it does not, and which loops it refuses."""

from pathlib import Path
from typing import Any

import pytest
from schema.plain_config import plain_config

from scalerlt.experiments import rollout_throughput
from scalerlt.experiments.building import exit_rule
from scalerlt.experiments.preflight import exit_loops
from scalerlt.records.recorder import Recorder
from scalerlt.rollout.exit_rule import ExitRule
from scalerlt.schema import Cell, load_cell

SMALL = {
    "model.weights": None,
    "batch.prompts_per_step": 2,
    "batch.group_size": 3,
    "batch.minibatch_responses": 6,
    "batch.rollout_concurrency": 4,
    "rollout.max_new_tokens": 5,
    "rollout.ignore_eos": True,
    "experiment.repeats": 1,
}


def make_cell(values: dict[str, Any] | None = None, rollout: str = "last_exited") -> Cell:
    return load_cell(plain_config(SMALL | (values or {}), experiment="rollout_throughput", rollout=rollout))


def test_the_cells_rule_reaches_the_engine(tmp_path: Path) -> None:
    """Fresh weights: the gate says about 1/2 at each loop, so the probability of 0.6 is reached at loop 2."""
    recorder = Recorder(tmp_path)
    rollout_throughput.run(make_cell({"rollout.exit_threshold": 0.6}), recorder)
    recorder.close()
    metrics = recorder.metrics
    assert metrics["decode_tokens/depth_2"].value == 6 * 4
    assert metrics["mean_executed_depth"].value == (4 + 4 * 2) / 5
    assert metrics["recurrent_rows"].value == 4 * metrics["prompt_tokens"].value + 2 * 6 * 4
    for name in ("logprob_error_learner", "logprob_error_fp64"):
        assert 0 < metrics[name].value < 2e-6
        assert "replay" in metrics[name].method


def test_the_rule_of_a_cell() -> None:
    assert exit_rule(make_cell(rollout="dense")) is None
    assert exit_rule(make_cell()) == ExitRule(0.8, 2, None)
    values = {"rollout.exit_threshold": 0.5, "rollout.min_loops": 1, "rollout.max_loops": 3}
    assert exit_rule(make_cell(values)) == ExitRule(0.5, 1, 3)


@pytest.mark.parametrize(
    ("loops", "said"),
    [
        ({"rollout.min_loops": 4}, None),
        ({"rollout.min_loops": 1, "rollout.max_loops": 1}, None),
        ({"rollout.min_loops": 5}, "rollout.min_loops=5, rollout.max_loops=null"),
        ({"rollout.max_loops": 5}, "rollout.min_loops=2, rollout.max_loops=5"),
        ({"rollout.min_loops": 3, "rollout.max_loops": 2}, "rollout.min_loops=3, rollout.max_loops=2"),
    ],
)
def test_loops_that_the_model_has_not(loops: dict[str, int], said: str | None) -> None:
    expected = [] if said is None else [f"{said}: min_loops <= max_loops <= model.total_ut_steps=4 has to hold"]
    assert exit_loops(make_cell(loops)) == expected
