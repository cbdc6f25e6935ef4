"""The engine's replay in cells: it is the rollout bit for bit, it is asked before every update, and it is charged."""

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from experiments import small_training
from experiments.actor_cells import make_cell as actor_cell
from experiments.test_learner_methods import MACHINE
from schema.plain_config import option, plain_config

from scalerlt.experiments import actor_update, gsm8k_reward
from scalerlt.experiments.answers import Answer
from scalerlt.experiments.building import build_engine, build_model
from scalerlt.experiments.learning import with_old_logprobs
from scalerlt.experiments.replaying import EngineReplay, engine_replay, with_replay_logprobs
from scalerlt.experiments.requests import request_seed
from scalerlt.learner.batching import TrainingResponse
from scalerlt.learner.step import ActorUpdate
from scalerlt.models.ouro import OuroForCausalLM
from scalerlt.numerics.precision import number_format
from scalerlt.records.recorder import Recorder
from scalerlt.records.samples import Sample, SamplesHeader, write_samples
from scalerlt.rollout.request import Request
from scalerlt.schema import Cell, load_cell

SMALL = {
    "model.weights": None,
    "model.vocab_size": 64,
    "model.hidden_size": 32,
    "model.intermediate_size": 48,
    "model.initializer_range": 0.1,
    "batch.prompts_per_step": 3,
    "batch.group_size": 4,
    "batch.minibatch_responses": 4,
    "batch.rollout_concurrency": 5,
    "rollout.max_new_tokens": 9,
    "rollout.temperature": 0.8,
    "logprob.replay": "engine",
}
SCHEDULES = ("dense", "last_exited", "delayed_exit", "deferred_fill", "shared_kv")
SWITCH = {"rollout.exit_threshold": 0.6, "rollout.min_loops": 1}


def make_cell(values: dict[str, Any] | None = None, *, rollout: str = "last_exited", **options: str) -> Cell:
    chosen = {"experiment": "gsm8k_reward", "algorithm": "grpo", "logprob": "hybrid", "rollout": rollout, **options}
    return load_cell(plain_config(SMALL | (SWITCH if rollout != "dense" else {}) | (values or {}), **chosen))


def model_of(cell: Cell) -> OuroForCausalLM:
    """With a gate that decides."""
    model = build_model(cell, number_format(cell.precision.name).dtype)
    with torch.no_grad():
        model.model.early_exit_gate.weight.mul_(6.0)
    return model


def generated(cell: Cell, model: OuroForCausalLM, stop_every: int = 9) -> list[TrainingResponse]:
    """A rollout batch with its record; more requests than slots, of many lengths."""
    requests = [
        Request(
            request_id=str(index),
            prompt_tokens=tuple(range(3 + index // 4, 6 + 2 * (index // 4))),
            max_new_tokens=cell.rollout.max_new_tokens,
            temperature=cell.rollout.temperature,
            seed=request_seed(cell.seed, index),
            stop_token_ids=tuple(range(0, 64, stop_every)),
        )
        for index in range(12)
    ]
    responses = build_engine(cell, model).generate(requests).responses
    assert len({len(response.tokens) for response in responses}) > 3
    return [
        TrainingResponse(
            list(request.prompt_tokens),
            list(response.tokens),
            math.sin(1 + 2.3 * index),
            exit_depths=list(response.exit_depths),
            rollout_logprobs=list(response.logprobs),
        )
        for index, (request, response) in enumerate(zip(requests, responses, strict=True))
    ]


def without_record(responses: list[TrainingResponse]) -> list[TrainingResponse]:
    return [replace(response, rollout_logprobs=None) for response in responses]


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("rollout", SCHEDULES)
def test_of_the_whole_batch_it_is_the_rollout_bit_for_bit(rollout: str, precision: str) -> None:
    cell = make_cell({"logprob.old": "replay"}, rollout=rollout, precision=precision)
    model = model_of(cell)
    responses = generated(cell, model)
    if rollout != "dense":
        assert len({depth for response in responses for depth in response.exit_depths[1:]}) > 1
    recorded = [response.rollout_logprobs for response in responses]
    asked = without_record(responses)
    assert EngineReplay(cell, model).logprobs(asked) == recorded
    engine = engine_replay(cell, model)
    assert [one.old_logprobs for one in with_old_logprobs(cell, model, asked, engine)] == recorded
    assert [one.replay_logprobs for one in with_replay_logprobs(cell, asked, engine)] == recorded


def test_a_pool_of_few_positions_admits_the_same_requests() -> None:
    """What a request may need counts, not how long its response became."""
    model = model_of(make_cell())
    prompt, longest = 5, SMALL["rollout.max_new_tokens"]
    slots = 3
    engine = option("rollout/engine", "native") | {"kv_cache_tokens": slots * (prompt + longest - 1)}
    cell = make_cell({"rollout.engine": engine})
    responses = generated(cell, model, stop_every=3)
    needed = max(response.rows for response in responses)
    assert slots * (prompt + longest - 1) // needed > slots
    assert EngineReplay(cell, model).logprobs(without_record(responses)) == [r.rollout_logprobs for r in responses]


@pytest.mark.parametrize("rollout", ["last_exited", "shared_kv"])
def test_deterministic_it_is_the_same_of_any_part(rollout: str) -> None:
    cell = make_cell({"rollout.deterministic": True}, rollout=rollout)
    model = model_of(cell)
    responses = generated(cell, model)
    for part in (responses[:4], responses[5:6], responses[::-1]):
        found = EngineReplay(cell, model).logprobs(without_record(part))
        assert found == [response.rollout_logprobs for response in part]


def test_it_is_of_the_weights_as_they_are_and_of_the_depths_that_are_given() -> None:
    cell = make_cell()
    model = model_of(cell)
    responses = without_record(generated(cell, model))
    engine = EngineReplay(cell, model)
    before = engine.logprobs(responses)
    assert (
        engine.logprobs([replace(one, rollout_logprobs=[0.0] * len(one.response_tokens)) for one in responses])
        == before
    )
    long = next(index for index, one in enumerate(responses) if len(one.response_tokens) > 2)
    depths = list(responses[long].exit_depths)
    depths[1] = depths[1] % 4 + 1
    mutant = [*responses[:long], replace(responses[long], exit_depths=depths), *responses[long + 1 :]]
    assert engine.logprobs(mutant)[long] != before[long]
    with torch.no_grad():
        model.model.layers[1].mlp.up_proj.weight[0, 0] += 1e-2
    after = engine.logprobs(responses)
    assert (
        sum(ours != theirs for a, b in zip(after, before, strict=True) for ours, theirs in zip(a, b, strict=True)) > 9
    )


def test_empty_responses_are_not_run_and_those_without_depths_run_all_loops() -> None:
    cell = make_cell(rollout="dense")
    model = model_of(cell)
    responses = generated(cell, model)[:3]
    bare = [replace(one, exit_depths=None) for one in without_record(responses)]
    empty = TrainingResponse([1, 2], [], 0.0)
    engine = EngineReplay(cell, model)
    found = engine.logprobs([empty, *bare, empty])
    assert found[0] == found[-1] == []
    assert found[1:-1] == engine.logprobs(without_record(responses))
    assert engine.take_bytes() > 0
    assert engine.take_bytes() == 0


def test_the_packed_replay_of_each_schedule_is_the_engines_to_rounding() -> None:
    for rollout in ("last_exited", "delayed_exit", "deferred_fill"):
        cell = make_cell({"logprob.old": "replay"}, rollout=rollout)
        model = model_of(cell)
        responses = generated(cell, model)
        packed = with_old_logprobs(cell, model, responses, None)
        differences = [
            abs(ours - theirs)
            for one in packed
            for ours, theirs in zip(one.old_logprobs, one.rollout_logprobs, strict=True)
        ]
        assert max(differences) < 5e-6, rollout
        dense = with_old_logprobs(make_cell({"logprob.old": "dense"}, rollout=rollout), model, responses, None)
        assert any(
            abs(ours - theirs) > 1e-3
            for one in dense
            for ours, theirs in zip(one.old_logprobs, one.rollout_logprobs, strict=True)
        )


# Whole cells.

REWARD = small_training.SMALL | {"experiment.steps": 2, "experiment.eval_problems": 2, "experiment.checkpoint_every": 0}


def train(monkeypatch: pytest.MonkeyPatch, path: Path, values: dict[str, Any], **options: str):
    """The steps' rows, and what each optimizer step was given with what it found."""
    monkeypatch.setattr(Answer, "reward", property(lambda self: float(sum(self.response.tokens) % 2 == 0)))
    seen: list[tuple[list[TrainingResponse], Any]] = []
    honest = ActorUpdate.step

    def step(self: ActorUpdate, responses: list[TrainingResponse], *rest: Any):
        result = honest(self, responses, *rest)
        seen.append((responses, result))
        return result

    monkeypatch.setattr(ActorUpdate, "step", step)
    chosen = {"experiment": "gsm8k_reward", "algorithm": "grpo", "rollout": "last_exited", **options}
    cell = load_cell(plain_config(REWARD | values, **chosen))
    assert cell.unsupported_on(MACHINE) is None
    path.mkdir()
    recorder = Recorder(path)
    gsm8k_reward.run(cell, recorder)
    recorder.close()
    rows = [json.loads(line) for line in (path / "series.jsonl").read_text().splitlines()]
    return [row for row in rows if "reward" in row], seen, recorder


ENGINE = {"logprob.replay": "engine"}


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("rollout", ["last_exited", "deferred_fill", "shared_kv"])
def test_old_log_probs_by_the_engine_are_the_rollouts_at_every_step(
    rollout: str, precision: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    values = ENGINE | {"logprob.old": "replay", "rollout.deterministic": True}
    rows, seen, recorder = train(
        monkeypatch, tmp_path / "run", values, logprob="hybrid", rollout=rollout, precision=precision
    )
    assert len(seen) == 4
    for responses, _ in seen:
        assert [one.old_logprobs for one in responses] == [one.rollout_logprobs for one in responses]
    for first, second in (seen[:2], seen[2:]):
        responses, result = first
        assert [one.replay_logprobs for one in responses] == [one.rollout_logprobs for one in responses]
        assert result.statistics["actor/ratio_max"] == 1
        responses, result = second  # the weights have changed, and so has the replay
        assert [one.replay_logprobs for one in responses] != [one.rollout_logprobs for one in responses]
        assert result.statistics["actor/ratio_max"] != 1
    assert all(row["timing_s/replay"] > 0 for row in rows)
    assert all(("loop/depth_match_fraction" in row) == (rollout != "shared_kv") for row in rows)
    assert recorder.metrics["io_bandwidth_share/replay"].status == "measured"


def test_a_dense_learner_is_charged_for_old_log_probs_by_the_engine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    values = ENGINE | {"logprob.old": "replay"}
    rows, seen, _ = train(monkeypatch, tmp_path / "run", values, rollout="shared_kv", correction="tis")
    assert all(row["timing_s/replay"] > 0 for row in rows)
    for responses, _ in seen:
        assert [one.old_logprobs for one in responses] == [one.rollout_logprobs for one in responses]
        assert all(one.replay_logprobs is None for one in responses)


@pytest.mark.parametrize("replay", ["packed", "recorded"])
def test_without_an_engine_there_is_no_phase_of_it(
    replay: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    values = {"logprob.replay": replay}
    rows, seen, _ = train(monkeypatch, tmp_path / "run", values, logprob="hybrid")
    assert all("timing_s/replay" not in row for row in rows)
    ratios = [result.statistics["actor/ratio_max"] for _, result in seen]
    if replay == "recorded":  # whatever the weights have become
        assert ratios == [1] * 4
    else:
        assert ratios[1] != pytest.approx(1, abs=1e-3)


def test_a_learner_that_replays_takes_its_value_from_the_engine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, seen, _ = train(monkeypatch, tmp_path / "run", ENGINE, logprob="replay")
    responses, result = seen[1]
    differences = [
        abs(ours - theirs)
        for one in responses
        for ours, theirs in zip(one.replay_logprobs or (), one.rollout_logprobs or (), strict=True)
    ]
    assert result.statistics["train_rollout_logprob_abs_diff_max"] == pytest.approx(max(differences), abs=1e-6)
    assert max(differences) > 1e-3


@pytest.fixture(scope="module")
def rollouts(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Recorded rollouts of the cell's own model under two schedules."""
    files = {}
    for schedule in ("last_exited", "shared_kv"):
        path = tmp_path_factory.mktemp("rollouts") / f"{schedule}.jsonl"
        cell = actor_cell(path, values=SWITCH | {"rollout.max_new_tokens": 9}, rollout=schedule)
        responses = generated(cell, build_model(cell, torch.float32))
        samples = [
            Sample(
                problem_id=str(index),
                prompt_group=index // 4,
                prompt_tokens=list(one.prompt_tokens),
                response_tokens=list(one.response_tokens),
                logprobs=list(one.rollout_logprobs or ()),
                temperature=1.0,
                finish_reason="length",
                seed=0,
                weight_version=0,
                reward=float(index % 2),
                advantage=one.advantage,
                exit_depths=list(one.exit_depths or ()),
            )
            for index, one in enumerate(responses)
        ]
        write_samples(path, SamplesHeader(model="small", vocab_size=64, made_by="tests"), samples)
        files[schedule] = path
    return files


def measure(tmp_path: Path, path: Path, values: dict[str, Any], **options: str) -> Recorder:
    attempt = tmp_path / f"attempt-{len(list(tmp_path.iterdir())):03d}"
    attempt.mkdir()
    recorder = Recorder(attempt)
    once = {"experiment.warmup": 0, "experiment.repeats": 1, "batch.minibatch_responses": 4}
    cell = actor_cell(path, values=once | values, **options)
    assert cell.unsupported_on(MACHINE) is None
    actor_update.run(cell, recorder)
    recorder.close()
    return recorder


def figure(recorder: Recorder, name: str) -> Any:
    metric = recorder.metrics[name]
    assert metric.status == "measured", metric.reason
    return metric.value


def test_a_learner_step_replays_by_the_engine(tmp_path: Path, rollouts: dict[str, Path]) -> None:
    path, options = rollouts["last_exited"], {"rollout": "last_exited", "algorithm": "grpo"}
    engine = measure(tmp_path, path, ENGINE, logprob="hybrid", **options)
    packed = measure(tmp_path, path, {}, logprob="hybrid", **options)
    dense = measure(tmp_path, path, {}, **options)
    recorded = measure(tmp_path, path, {"logprob.replay": "recorded"}, logprob="hybrid", **options)
    assert figure(engine, "replay_seconds") > 0
    assert figure(engine, "replay_bytes_moved") > 0
    for other in (packed, dense, recorded):
        assert "replay_seconds" not in other.metrics
    for given in (engine, recorded):
        assert figure(given, "token_calls") == figure(dense, "token_calls") < figure(packed, "token_calls")
        assert figure(given, "sharing_flop_limit") == figure(dense, "sharing_flop_limit")
    assert packed.metrics["sharing_flop_limit"].status == "not_measured"
    assert figure(engine, "train_rollout_logprob_abs_diff_max") < 5e-6
    assert figure(recorded, "train_rollout_logprob_abs_diff_max") < 1e-7
    assert figure(recorded, "actor/ratio_max") == 1
    assert figure(engine, "loss") == pytest.approx(figure(packed, "loss"), abs=1e-5)
    assert figure(engine, "grad_bias_relative_l2") == pytest.approx(figure(packed, "grad_bias_relative_l2"), rel=1e-3)


def test_a_learner_step_of_a_shared_plane(tmp_path: Path, rollouts: dict[str, Path]) -> None:
    values = ENGINE | {"logprob.old": "replay"}
    options = {"rollout": "shared_kv", "algorithm": "grpo", "logprob": "hybrid"}
    recorder = measure(tmp_path, rollouts["shared_kv"], values, **options)
    assert figure(recorder, "train_rollout_logprob_abs_diff_max") < 5e-6
    assert figure(recorder, "grad_norm") > 0
    assert recorder.metrics["grad_bias_relative_l2"].status == "unsupported"
    assert "no packed replay" in recorder.metrics["grad_bias_relative_l2"].reason
    assert figure(recorder, "grad_sd_relative") > 0


def test_auto_is_calibrated_without_a_packed_replay(tmp_path: Path, rollouts: dict[str, Path]) -> None:
    values = ENGINE | {"checkpoint.calibration_seconds": 0.05}
    options = {"rollout": "last_exited", "logprob": "hybrid", "checkpoint": "auto"}
    recorder = measure(tmp_path, rollouts["last_exited"], values, **options)
    assert figure(recorder, "auto_choice")
    assert figure(recorder, "replay_seconds") > 0
