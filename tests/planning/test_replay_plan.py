"""What a plan takes for replays: operations and memory."""

from typing import Any

import pytest
import torch
from schema.plain_config import plain_config

from scalerlt.experiments.building import build_model
from scalerlt.experiments.learning import training_responses
from scalerlt.experiments.recorded import recorded_samples
from scalerlt.experiments.replaying import EngineReplay
from scalerlt.planning.capacity import Capacity
from scalerlt.planning.memory import memory_plan, parameter_bytes
from scalerlt.planning.workload import flops
from scalerlt.rollout.native import NativeEngine
from scalerlt.schema import Cell, load_cell

RANDOM = {
    "model.weights": None,
    "task.prompt_length": 7,
    "task.response_length": 9,
    "batch.prompts_per_step": 2,
    "batch.group_size": 3,
    "batch.minibatch_responses": 6,
    "batch.rollout_concurrency": 4,
    "rollout.max_new_tokens": 12,
}


def make_cell(replay: str = "packed", logprob: str = "hybrid", values: dict[str, Any] | None = None) -> Cell:
    options = {"task": "random_rollouts", "rollout": "last_exited", "logprob": logprob}
    return load_cell(plain_config(RANDOM | {"logprob.replay": replay} | (values or {}), **options))


@pytest.mark.parametrize("longest", [5, 12])
def test_an_engines_replay_holds_its_pool_beside_the_learner(longest: int, monkeypatch: pytest.MonkeyPatch) -> None:
    cell = make_cell("engine", values={"rollout.max_new_tokens": longest})
    phases = memory_plan(cell, Capacity(None, "", None)).phases
    pools: list[int] = []
    honest = NativeEngine.generate

    def generate(self: NativeEngine, requests: Any) -> Any:
        result = honest(self, requests)
        pools.append(result.stats.kv_cache_bytes)
        return result

    monkeypatch.setattr(NativeEngine, "generate", generate)
    EngineReplay(cell, build_model(cell, torch.float32)).logprobs(training_responses(recorded_samples(cell), None))
    for name in ("replay_prefill", "replay_sampling"):
        assert [phases[name]["kv_cache"]] == pools
        assert phases[name]["weights"] == parameter_bytes(cell)
        assert phases[name]["optimizer"] == phases["layers"]["optimizer"]


def test_no_other_replay_adds_a_phase() -> None:
    plain = memory_plan(make_cell(), Capacity(None, "", None)).phases
    recorded = memory_plan(make_cell("recorded"), Capacity(None, "", None)).phases
    assert plain == recorded
    assert not [name for name in plain if "replay" in name]


def test_operations_follow_the_passes() -> None:
    dense, packed, engine, recorded = (
        flops(cell) for cell in (make_cell(logprob="dense"), make_cell(), make_cell("engine"), make_cell("recorded"))
    )
    assert dense == recorded
    assert packed == engine == pytest.approx(dense * 4 / 3)
