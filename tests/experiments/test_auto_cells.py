"""`checkpoint=auto` in cells: what the record says of it, and that a resumed run goes on by the same measurements."""

from pathlib import Path
from typing import Any

import pytest
import torch
from experiments.actor_cells import make_cell, write_rollouts
from experiments.test_gsm8k_reward import attempt, series, train
from experiments.test_gsm8k_reward import make_cell as reward_cell
from learner.prefix_cases import TWO_UPDATES, group
from schema.plain_config import plain_config

from scalerlt.errors import RequestErrors
from scalerlt.experiments import actor_update, calibrating, gsm8k_reward
from scalerlt.experiments.building import build_learner, build_model
from scalerlt.experiments.calibrating import chosen_for, expected_responses
from scalerlt.experiments.resume import save_policy
from scalerlt.learner import calibration
from scalerlt.learner.auto import AutoLayout, CostModel
from scalerlt.learner.checkpoint import LayerCheckpoint, NoCheckpoint
from scalerlt.learner.work import SECONDS_FEATURES
from scalerlt.planning.capacity import Capacity
from scalerlt.planning.memory import memory_plan, saved_bytes
from scalerlt.planning.workload import update_flops
from scalerlt.records.recorder import Recorder
from scalerlt.schema import load_cell

QUICK = {"checkpoint.calibration_seconds": 0.2}


def measure(tmp_path: Path, **values: Any) -> Recorder:
    rollouts = write_rollouts(tmp_path / "rollouts.jsonl")
    directory = tmp_path / "attempt"
    directory.mkdir()
    recorder = Recorder(directory)
    actor_update.run(make_cell(rollouts, checkpoint="auto", values=QUICK | values), recorder)
    recorder.close()
    return recorder


def test_an_actor_update_cell_says_what_was_chosen_and_why(tmp_path: Path) -> None:
    recorder = measure(tmp_path)
    found = recorder.metrics
    candidates = ("none", "packed_shared", "prefix")
    assert recorder.passes == ["warm_up", "time", "memory", "bandwidth", "reference"]
    for name in candidates:
        coefficients = [found[f"auto_coefficient/{name}/{feature}"] for feature in SECONDS_FEATURES]
        assert all(one.unit == "s" and one.value >= 0 for one in coefficients)
        assert any(one.value > 0 for one in coefficients)
        assert found[f"auto_fit_error/{name}"].n >= 2
        assert found[f"auto_predicted_seconds/{name}"].value > 0
    assert set(found["auto_choice"].value.split(" + ")) <= set(candidates)
    steps = [found[name].value for name in found if name.startswith("auto_optimizer_steps/")]
    assert sum(steps) == found["optimizer_steps"].value == 2
    assert not any(name.startswith(("auto_predicted_bytes", "auto_bytes_coefficient")) for name in found)
    assert found["auto_calibration_seconds"].value > 0
    assert found["grad_sched_relative_l2"].value < 2e-6, "of what it chose"
    assert not any("memory_budget" in note for note in recorder.notes)


def test_a_budget_that_nothing_keeps_to_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calibration, "live_bytes", lambda run, device: 5000)  # counting takes long
    recorder = measure(tmp_path, **{"checkpoint.memory_budget": 1000})
    found = recorder.metrics
    assert any("memory_budget in 2 of 2 optimizer steps" in note for note in recorder.notes)
    predicted = {
        name.partition("/")[2]: metric.value
        for name, metric in found.items()
        if name.startswith("auto_predicted_bytes")
    }
    assert len(predicted) == 7
    assert all(value > 1000 for value in predicted.values())
    assert "auto_bytes_coefficient/loop/graph_row" in found


def test_rollouts_without_anything_to_learn_are_not_calibrated(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path)
    cell = make_cell(write_rollouts(tmp_path / "rollouts.jsonl"), checkpoint="auto", values=QUICK)
    chooser = AutoLayout(2, None, 1.0)
    calibrating.calibrate_auto(cell, recorder, None, chooser, [])  # type: ignore[arg-type]
    calibrating.record_choices(cell, recorder, chooser, [[]])
    recorder.close()
    assert chooser.costs is None
    assert {name: metric.status for name, metric in recorder.metrics.items()} == {
        "auto_calibration_seconds": "not_measured",
        "auto_choice": "not_measured",
    }


def test_errors_are_of_what_was_timed(tmp_path: Path) -> None:
    """Over fewer responses `auto` might choose otherwise."""
    cell = make_cell(write_rollouts(tmp_path / "rollouts.jsonl"), checkpoint="auto")
    short, long = group(31, 4, [5] * 2), group(32, 30, [2] * 8)
    chooser = AutoLayout(2, None, 1.0)
    costs = {"none": (1.0, 0, 0.1, 0, 0, 0), "packed_shared": (2.0, 0, 0.1, 0, 0, 0), "prefix": (9.0, 0, 0, 0, 0, 0)}
    chooser.costs = CostModel(costs, {})
    assert chosen_for(cell, chooser, [long, []]) is chooser.candidates["packed_shared"].layout
    assert chosen_for(cell, chooser, [short]) is chooser.candidates["none"].layout
    assert chosen_for(cell, chooser, [short, long]) is chooser
    other = NoCheckpoint()
    assert chosen_for(cell, other, [long]) is other


def test_other_schedules_record_nothing(tmp_path: Path) -> None:
    cell = make_cell(write_rollouts(tmp_path / "rollouts.jsonl"), checkpoint="layer")
    recorder, schedule, responses = Recorder(tmp_path), LayerCheckpoint(), group(31, 4, [5] * 2)
    learner = build_learner(cell, build_model(cell, torch.float32), schedule=schedule, settings=TWO_UPDATES)
    calibrating.calibrate_auto(cell, recorder, learner, schedule, responses)
    calibrating.record_choices(cell, recorder, schedule, [responses])
    calibrating.record_chosen(recorder, schedule)
    recorder.close()
    assert recorder.metrics == {}
    assert calibrating.chosen_steps(schedule) == {}


def test_a_resumed_run_goes_on_by_the_same_measurements(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    options = {"checkpoint": "auto", "rollout": "last_exited", "logprob": "hybrid"}
    cell = reward_cell(QUICK, **options)
    first = Recorder(attempt(tmp_path, 1))
    training = gsm8k_reward.Training(cell, first)
    for _ in range(2):
        training.train_step()
    training.accuracies[2] = 0.5
    save_policy(training)
    training.train_step()
    first.close()
    assert training.policy.schedule.steps.total() == 6

    monkeypatch.setattr(calibrating, "calibrate", None)  # what is measured now does not matter
    path = attempt(tmp_path, 2)
    second = Recorder(path)
    resumed = gsm8k_reward.Training(cell, second)
    assert resumed.policy.schedule.costs == training.policy.schedule.costs
    assert resumed.policy.schedule.steps.total() == 4
    assert "the attempt which this one continues" in second.metrics["auto_calibration_seconds"].reason
    assert "auto_coefficient/none/pass" in second.metrics
    resumed.train_step()
    second.close()
    assert resumed.policy.schedule.steps == training.policy.schedule.steps
    for mine, theirs in zip(resumed.policy.model.parameters(), training.policy.model.parameters(), strict=True):
        assert torch.equal(mine, theirs)
    (row,) = series(path)
    assert sum(count for name, count in row.items() if name.startswith("auto_optimizer_steps/")) == 2


@pytest.mark.parametrize("options", [{}, {"algorithm": "rltt"}], ids=["grpo", "rltt"])
def test_a_training_run_says_what_was_chosen(options: dict[str, str], tmp_path: Path) -> None:
    values = QUICK | {"experiment.steps": 1, "experiment.evaluate_every": 1}
    recorder = train(reward_cell(values, checkpoint="auto", **options), attempt(tmp_path, 1))
    steps = [metric.value for name, metric in recorder.metrics.items() if name.startswith("auto_optimizer_steps/")]
    assert sum(steps) == 2
    assert recorder.metrics["auto_choice"].status == "measured"


def test_expected_responses_are_as_long_as_a_rollout_may_make_them() -> None:
    options = {"checkpoint": "auto", "rollout": "last_exited", "logprob": "hybrid"}
    cell = reward_cell({"algorithm.kl_coef": 0.1}, **options)
    found = expected_responses(cell, [(1, 2, 3), (4, 5)])
    assert [len(one.prompt_tokens) for one in found] == [3, 3, 3, 3, 2, 2]
    for one in found:
        assert len(one.response_tokens) == cell.rollout.max_new_tokens
        assert one.exit_depths == [4] * cell.rollout.max_new_tokens
        assert one.ref_logprobs is not None
    assert expected_responses(reward_cell(checkpoint="auto"), [(1,)])[0].exit_depths is None


@pytest.mark.parametrize(
    ("key", "value", "said"),
    [
        ("memory_budget", "2 gigs", "is not a size"),
        ("memory_budget", 0, "not a size above zero"),
        ("calibration_seconds", 0.0, "greater than 0"),
        ("calibration_seconds", "soon", "valid number"),
        ("wave_responses", 0, "greater than 0"),
    ],
)
def test_wrong_values_are_refused(key: str, value: Any, said: str) -> None:
    with pytest.raises(RequestErrors, match=said):
        load_cell(plain_config({f"checkpoint.{key}": value}, checkpoint="auto"))


def test_a_plan_takes_the_most_that_may_be_chosen() -> None:
    none, auto = (load_cell(plain_config({"model.weights": None}, checkpoint=name)) for name in ("none", "auto"))
    packed = load_cell(plain_config({"model.weights": None}, checkpoint="packed_shared"))
    assert saved_bytes(auto) == max(saved_bytes(none), saved_bytes(packed))
    lengths = [(30, 10)] * 8
    assert update_flops(auto, lengths) == update_flops(none, lengths)
    unlimited = Capacity(None, "", None)
    plans = {cell.checkpoint.name: memory_plan(cell, unlimited) for cell in (none, packed, auto)}
    assert plans["auto"] is not None
    assert plans["auto"].step == max(plans["none"].step, plans["packed_shared"].step)


def test_a_plan_goes_no_further_than_the_budget() -> None:
    values = {"model.weights": None, "checkpoint.memory_budget": "3MiB"}
    plan = memory_plan(load_cell(plain_config(values, checkpoint="auto")), Capacity(None, "", None))
    without = memory_plan(load_cell(plain_config({"model.weights": None}, checkpoint="auto")), Capacity(None, "", None))
    assert plan is not None and without is not None
    standing = plan.phases["layers"]["weights"] + plan.phases["layers"]["optimizer"]
    assert plan.step == standing + 3 * 2**20 < without.step
