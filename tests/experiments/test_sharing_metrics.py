"""What sharing prompts can save: counted here pair by pair, and against published limits."""

import itertools
from pathlib import Path
from typing import Any

import pytest
from experiments.actor_cells import make_cell, write_rollouts
from hypothesis import given, settings
from hypothesis import strategies as st
from schema.plain_config import plain_config

from scalerlt.experiments import actor_update
from scalerlt.experiments.sharing_metrics import Workload, workload_of
from scalerlt.learner.batching import TrainingResponse
from scalerlt.records.recorder import Recorder
from scalerlt.schema import load_cell
from scalerlt.schema.model import Model


def fixture(width: int = 8, **more: Any) -> Model:
    values = {
        "model.hidden_size": width,
        "model.intermediate_size": 7 * width // 4,
        "model.head_dim": width // 2,
        **{f"model.{key}": value for key, value in more.items()},
    }
    return load_cell(plain_config(values, model="fixture_ouro")).model


def alike(prompt: int, response: int, group: int) -> Workload:
    return Workload(((prompt, (response,) * group),))


@pytest.mark.parametrize(
    ("shape", "width", "published", "off"),
    [
        ((256, 8, 32), 8, 12.4, 0.7),
        ((256, 8, 32), 64, 15.4, 0.05),
        ((256, 8, 32), 256, 16.8, 0.05),
        ((100, 200, 8), 256, 1.4, 0.05),
        ((900, 200, 8), 256, 3.2, 0.13),
        ((130, 1024, 16), 256, 1.1, 0.05),
        ((4, 16, 1), 8, 1.0, 0.0),
    ],
)
def test_limits_of_the_comparisons(shape: tuple[int, int, int], width: int, published: float, off: float) -> None:
    prompt, response, group = shape
    found = alike(*shape)
    assert found.flop_limit(fixture(width)) == pytest.approx(published, abs=off or 1e-12)
    assert found.token_limit == group * (prompt + response) / (prompt + group * response)


def operations(model: Model, sequences: list[list[tuple[int, int]]], labels: int) -> int:
    """By the definition: `sequences` hold for each row its place and the first of the keys that it does not see."""
    weights = 4 * model.hidden_size**2 + 3 * model.hidden_size * model.intermediate_size
    per_row = sum(2 * weights + 4 * model.hidden_size * seen for rows in sequences for _, seen in rows)
    return model.total_ut_steps * model.num_hidden_layers * per_row + 2 * labels * model.hidden_size * model.vocab_size


PROMPTS = st.lists(
    st.tuples(st.integers(1, 9), st.lists(st.integers(1, 7), min_size=1, max_size=5)), min_size=1, max_size=3
)


@settings(max_examples=50, deadline=None)
@given(prompts=PROMPTS, readouts=st.sampled_from([1, 4]))
def test_the_operations_row_by_row(prompts: list[tuple[int, list[int]]], readouts: int) -> None:
    model = fixture()
    labels = readouts * sum(sum(responses) for _, responses in prompts)
    unshared = [[(i, i + 1) for i in range(p + r - 1)] for p, responses in prompts for r in responses]
    shared = [[(i, i + 1) for i in range(p)] for p, _ in prompts]
    shared += [[(p + i, p + i + 1) for i in range(r - 1)] for p, responses in prompts for r in responses]
    found = Workload(tuple((p, tuple(responses)) for p, responses in prompts))
    limit = operations(model, unshared, labels) / operations(model, shared, labels)
    assert found.flop_limit(model, readouts) == pytest.approx(limit, rel=1e-12)
    assert limit >= 1


def test_prompts_are_shared_within_an_optimizer_step_and_what_is_not_trained_does_not_count() -> None:
    first = [TrainingResponse([1, 2], [3] * n, 1.0) for n in (2, 4, 0)]
    masked = TrainingResponse([1, 2], [3, 3], 1.0, mask=[False, False])
    other = TrainingResponse([7], [3], 1.0)
    assert workload_of([[*first, masked, other], [first[0]]]).prompts == ((2, (2, 4)), (1, (1,)), (2, (2,)))


RANDOM = {
    "model.vocab_size": 64,
    "model.weights": None,
    "batch.prompts_per_step": 2,
    "batch.microbatch_tokens": 10_000,
    "task.prompt_length": 9,
    "task.response_length": 4,
    "experiment.warmup": 0,
    "experiment.repeats": 1,
    "batch.minibatch_responses": 8,
}


def measured(directory: Path, values: dict[str, Any] | None = None, **options: str) -> Recorder:
    directory.mkdir()
    recorder = Recorder(directory)
    actor_update.run(
        load_cell(plain_config(RANDOM | (values or {}), **{"task": "random_rollouts"} | options)), recorder
    )
    recorder.close()
    return recorder


def test_a_cell_of_random_rollouts_leaves_its_counts(tmp_path: Path) -> None:
    cells = {name: measured(tmp_path / name, checkpoint=name).metrics for name in ("none", "prefix", "joint")}
    calls = {name: found["token_calls"].value for name, found in cells.items()}
    layers = 4 * 2 * 2
    assert calls["none"] == layers * 4 * (9 + 3)
    assert calls["prefix"] == layers * (9 + 4 * 3)
    assert calls["joint"] == 2 * calls["prefix"]
    for found in cells.values():
        assert found["sharing_token_limit"].value == 4 * (9 + 4) / (9 + 4 * 4)
        assert 1 < found["sharing_flop_limit"].value < 4
        assert found["trained_tokens"].value == 2 * 4 * 4
    assert cells["prefix"]["grad_sched_relative_l2"].value < 2e-5
    assert cells["prefix"]["grad_norm"].value > 0


def test_the_limit_counts_the_readout_after_every_loop_and_no_loops_that_were_left_out(tmp_path: Path) -> None:
    rltt = measured(tmp_path / "rltt", algorithm="rltt").metrics["sharing_flop_limit"]
    plain = Workload(((9, (4,) * 4),) * 2)
    model = load_cell(plain_config(RANDOM, task="random_rollouts")).model
    assert rltt.value == plain.flop_limit(model, 4) < plain.flop_limit(model)
    early = measured(tmp_path / "early", {"task.exit_depths": "random"}, logprob="replay").metrics
    assert early["sharing_flop_limit"].status == "not_measured"
    assert "logprob=replay leaves out loops" in (early["sharing_flop_limit"].reason or "")
    assert early["sharing_token_limit"].value == plain.token_limit


def test_a_step_without_anything_to_learn_has_no_limit(tmp_path: Path) -> None:
    from scalerlt.experiments.sharing_metrics import record_sharing

    recorder = Recorder(tmp_path)
    silent = TrainingResponse([1], [2], 1.0, mask=[False])
    record_sharing(make_cell(write_rollouts(tmp_path / "rollouts.jsonl")), recorder, [[silent]], [])
    recorder.close()
    assert {m.status for n, m in recorder.metrics.items() if n.startswith("sharing")} == {"not_measured"}


def test_ragged_random_rollouts_are_planned_as_they_are() -> None:
    from scalerlt.planning.workload import training_sequences

    values = RANDOM | {"task.response_length": 9, "task.response_length_min": 2}
    cell = load_cell(plain_config(values, task="random_rollouts"))
    planned = training_sequences(cell)
    samples = actor_update.recorded_samples(cell)
    assert planned.lengths == tuple((len(s.prompt_tokens), len(s.response_tokens)) for s in samples)
    assert planned.known and len(set(planned.lengths)) > 1
    assert all(len(list(group)) == 4 for _, group in itertools.groupby(s.prompt_group for s in samples))


def test_one_prompt_group_has_no_spread_and_its_other_errors(tmp_path: Path) -> None:
    values = {"batch.prompts_per_step": 1, "batch.minibatch_responses": 4}
    found = measured(tmp_path / "one", values, checkpoint="packed_shared").metrics
    assert (found["grad_sd_relative"].status, found["grad_bias_relative_l2"].value) == ("not_measured", 0.0)
    assert 0 < found["grad_round_relative_l2"].value < 1e-4
    assert measured(tmp_path / "two").metrics["grad_sd_relative"].value > 0
