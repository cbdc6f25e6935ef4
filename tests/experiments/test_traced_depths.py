"""`rollout=trace`: depths that are given, through planning, engine and learner."""

from collections import Counter
from pathlib import Path

import pytest
from schema.plain_config import plain_config

from scalerlt.errors import RequestErrors
from scalerlt.experiments import rollout_throughput
from scalerlt.experiments.requests import requests_of
from scalerlt.records.recorder import Recorder
from scalerlt.schema import load_cell
from scalerlt.schema.machine import Machine

CPU = Machine(gpus=0, gpu_reason="none here", cpus=2)
VALUES = {
    "model.weights": None,
    "rollout.max_new_tokens": 9,
    "rollout.ignore_eos": True,
    "task.prompt_length": 5,
    "experiment.repeats": 1,
    "experiment.warmup": 0,
}


def config(values=None, **options):
    chosen = {"experiment": "rollout_throughput", "task": "random_tokens", "rollout": "trace"} | options
    return plain_config(VALUES | (values or {}), **chosen)


def test_depths_are_those_of_the_request_and_have_the_shares() -> None:
    shares = [0.1, 0.2, 0.3, 0.4]
    many = config({"rollout.depth_shares": shares, "batch.prompts_per_step": 64, "rollout.max_new_tokens": 101})
    requests = requests_of(load_cell(many))
    assert requests == requests_of(load_cell(many))
    assert all(request.forced_depths[0] == 4 and len(request.forced_depths) == 101 for request in requests)
    counts = Counter(depth for request in requests for depth in request.forced_depths[1:])
    total = sum(counts.values())
    for depth, share in enumerate(shares, start=1):
        assert counts[depth] / total == pytest.approx(share, abs=4 * (share * (1 - share) / total) ** 0.5)
    assert len({request.forced_depths for request in requests}) == len(requests)


def test_a_cell_runs_them_and_its_log_probs_are_the_learners(tmp_path: Path) -> None:
    cell = load_cell(config({"rollout.depth_shares": [0.5, 0.0, 0.5, 0.0]}))
    assert cell.unsupported_on(CPU) is None
    recorder = Recorder(tmp_path)
    rollout_throughput.run(cell, recorder)
    recorder.close()
    found = {name: metric.value for name, metric in recorder.metrics.items()}
    assert {name for name in found if name.startswith("decode_tokens/")} == {
        "decode_tokens/depth_1",
        "decode_tokens/depth_3",
    }
    assert found["logprob_error_learner"] < 2e-6


@pytest.mark.parametrize(
    ("values", "options", "reason"),
    [
        ({}, {"experiment": "gsm8k_eval", "task": "arithmetic"}, "would judge the depths and not the policy"),
        ({"rollout.depth_shares": [0.5, 0.5]}, {}, "has 2 shares and model.total_ut_steps=4"),
    ],
)
def test_what_it_cannot_do_is_said_in_the_plan(values, options, reason: str) -> None:
    chosen = config(values, **options)
    if "experiment" in options:
        chosen = plain_config({"model.weights": None}, rollout="trace", **options)
    assert reason in (load_cell(chosen).unsupported_on(CPU) or "")


def test_shares_sum_to_one() -> None:
    with pytest.raises(RequestErrors, match=r"the shares sum to 0\.9, not to 1"):
        load_cell(config({"rollout.depth_shares": [0.1, 0.2, 0.3, 0.3]}))
