"""How replays are evaluated: what is refused, with its reason, and what is no part of an identity."""

import itertools
from typing import Any

import pytest
from schema.plain_config import plain_config

from scalerlt.records.cell import FileInput
from scalerlt.schema import load_cell
from scalerlt.schema.cell import Cell
from scalerlt.schema.identity import scientific_keys
from scalerlt.schema.machine import Machine

MACHINE = Machine(gpus=0, gpu_reason="none here", cpus=4)


def make_cell(values: dict[str, Any], **options: str) -> Cell:
    chosen = {"experiment": "gsm8k_reward", "algorithm": "grpo", **options}
    return load_cell(plain_config({"model.weights": None, **values}, **chosen))


ENGINE, RECORDED = {"logprob.replay": "engine"}, {"logprob.replay": "recorded"}
OLD = {"logprob.old": "replay"}
SHARED = {"rollout": "shared_kv"}

REFUSED = [
    (ENGINE, {}, "logprob=dense replays nothing"),
    (ENGINE | {"logprob.old": "dense"}, {}, "logprob=dense replays nothing"),
    (RECORDED, {}, "use logprob=hybrid"),
    (RECORDED, {"logprob": "replay"}, "use logprob=hybrid"),
    (RECORDED | OLD, {"logprob": "hybrid"}, "use logprob.old=rollout"),
    (OLD, {"algorithm": "policy_gradient"}, "takes no ratio"),
    ({}, SHARED | {"logprob": "replay"}, "use logprob=hybrid with logprob.replay=engine"),
    (ENGINE, SHARED | {"logprob": "replay"}, "use logprob=hybrid with logprob.replay=engine"),
    ({}, SHARED | {"logprob": "hybrid"}, "use logprob.replay=engine"),
    (OLD, SHARED, "logprob.old=replay: rollout=shared_kv with shared K/V has no packed replay"),
    (ENGINE | {"algorithm.kl_coef": 0.1}, SHARED | {"logprob": "hybrid"}, "algorithm.kl_coef=0.1"),
    (ENGINE | {"experiment.grad_bias_every": 2}, SHARED | {"logprob": "hybrid"}, "grad_bias"),
    (ENGINE, {"rollout": "trace", "logprob": "hybrid"}, "rollout=trace gives depths"),
    (ENGINE, {"algorithm": "rltt", "logprob": "hybrid"}, "reads out after every loop"),
]


@pytest.mark.parametrize(("values", "options", "reason"), REFUSED)
def test_impossible_combinations_are_refused_with_one_sentence(values, options, reason: str) -> None:
    found = make_cell(values, **options).unsupported_on(MACHINE)
    assert found is not None
    assert reason in found
    assert "\n" not in found


def test_the_plain_engine_cannot_be_forced_to_depths() -> None:
    cell = make_cell(ENGINE | {"rollout.engine": {"name": "plain", "_target_": "a.b"}}, logprob="hybrid")
    assert "rollout/engine=plain" in str(cell.logprob.supports(cell, MACHINE))


ALLOWED = [
    ({}, {"logprob": "hybrid", "rollout": "last_exited"}),
    (ENGINE, {"logprob": "hybrid", "rollout": "last_exited"}),
    (ENGINE, {"logprob": "hybrid", "rollout": "deferred_fill"}),
    (ENGINE, {"logprob": "replay", "rollout": "deferred_fill"}),
    ({}, {"logprob": "replay", "rollout": "deferred_fill"}),
    (ENGINE | OLD, {"rollout": "delayed_exit"}),
    (ENGINE | OLD, SHARED),
    ({}, SHARED),
    (ENGINE, SHARED | {"logprob": "hybrid"}),
    (RECORDED, SHARED | {"logprob": "hybrid"}),
    (RECORDED, {"logprob": "hybrid"}),
    (ENGINE | OLD, {"logprob": "hybrid"}),
    (ENGINE, {"experiment": "actor_update", "rollout": "trace", "logprob": "hybrid"}),
]


@pytest.mark.parametrize(("values", "options"), ALLOWED)
def test_all_others_are_allowed(values, options) -> None:
    assert make_cell(values, **options).unsupported_on(MACHINE) is None


def test_traced_depths_over_a_shared_plane_have_no_packed_replay_either() -> None:
    cell = make_cell({"rollout.kv": "shared_kv"}, experiment="actor_update", rollout="trace", logprob="hybrid")
    assert "rollout=trace with shared K/V has no packed replay" in str(cell.unsupported_on(MACHINE))


def test_only_another_replay_than_the_packed_one_enters_the_identity() -> None:
    inputs = {"task.rollouts": FileInput(path="rollouts.jsonl", sha256="0" * 64)}
    for kind, expected in (("packed", {"name": "hybrid"}), ("engine", {"name": "hybrid", "replay": "engine"})):
        cell = make_cell({"logprob.replay": kind}, experiment="actor_update", logprob="hybrid")
        assert scientific_keys(cell, inputs)["logprob"] == expected


def test_passes_for_values_alone() -> None:
    def passes(name: str, replay: str, rollout: str = "last_exited") -> int:
        cell = make_cell({"logprob.replay": replay}, logprob=name, rollout=rollout)
        return cell.logprob.extra_passes(cell)

    pairs = itertools.product(("dense", "replay", "hybrid"), ("packed", "engine", "recorded"))
    assert {pair for pair in pairs if passes(*pair)} == {
        ("hybrid", "packed"),
        ("hybrid", "engine"),
        ("replay", "engine"),
    }
    assert passes("hybrid", "packed", "deferred_fill") == 0
    assert passes("hybrid", "engine", "deferred_fill") == 1
