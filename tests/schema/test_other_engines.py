"""What `rollout/engine=vllm` and `hf` are refused for when a cell is planned, each with its reason."""

import re
from typing import Any

import pytest
from schema.plain_config import option, plain_config

from scalerlt.schema import load_cell
from scalerlt.schema.machine import Machine

NO_GPU = Machine(gpus=0, gpu_reason="none", cpus=1)


def fault(values: dict[str, Any] | None = None, name: str = "vllm", **options: str) -> str | None:
    given = {"experiment": "rollout_throughput", "model": "small_ouro"} | options
    # Values of the engine come after it.
    engine = {"rollout.engine": option("rollout/engine", name)}
    for key, value in (values or {}).items():
        if key.startswith("rollout.engine."):
            engine["rollout.engine"][key.removeprefix("rollout.engine.")] = value
        else:
            engine[key] = value
    cell = load_cell(plain_config(engine, **given))
    return cell.unsupported_on(NO_GPU if cell.device.type == "cpu" else Machine(gpus=1, gpu_reason="", cpus=1))


@pytest.mark.parametrize("experiment", ["rollout_throughput", "gsm8k_eval", "gsm8k_reward"])
@pytest.mark.parametrize("rollout", ["dense", "greedy"])
def test_full_depth_is_supported(experiment: str, rollout: str) -> None:
    assert fault(experiment=experiment, rollout=rollout) is None


@pytest.mark.parametrize("rollout", ["last_exited", "delayed_exit", "deferred_fill", "shared_kv", "trace"])
def test_early_exit_is_not(rollout: str) -> None:
    said = fault(rollout=rollout)
    assert said is not None and "one depth for a whole batch" in said and f"rollout={rollout}" in said


@pytest.mark.parametrize(
    ("values", "options", "said"),
    [
        ({"rollout.deterministic": True}, {}, "forms batches as it likes"),
        ({}, {"precision": "fp64"}, "has no fp64"),
        ({"rollout.temperature": 0.005}, {}, "no lower temperature than 0.01"),
        ({}, {"model": "tiny_ouro"}, "head dimensions 32, .* model=tiny_ouro has 16"),
        ({"rollout.engine.sleep": True}, {}, "a GPU's memory, not a CPU's"),
        ({"experiment.replay": True}, {}, "no tokens to be forced to"),
        ({"experiment.lag": 1}, {"experiment": "gsm8k_reward"}, "one policy at a time"),
        ({"logprob.replay": "engine"}, {"logprob": "hybrid"}, "takes no depths to be forced to"),
    ],
)
def test_other_reasons(values: dict[str, Any], options: dict[str, str], said: str) -> None:
    found = fault(values, **options)
    assert found is not None
    assert re.search(said, found), found


def test_a_gpu_has_what_a_cpu_has_not() -> None:
    assert fault({"rollout.engine.sleep": True}, device="cuda", model="tiny_ouro") is None


@pytest.mark.parametrize(
    ("values", "options", "said"),
    [
        ({}, {"model": "small_ouro"}, "no looped models, and model=small_ouro is one"),
        ({"rollout.deterministic": True}, {}, "runs padded batches"),
        ({"rollout.engine.shared_prefill": True}, {}, "keeps no prompts"),
        ({"experiment.replay": True}, {}, "rollout/engine=hf takes no tokens to be forced to"),
        (
            {"experiment.lag": 2},
            {"experiment": "gsm8k_reward"},
            "engine=hf serves one policy",
        ),
        ({}, {"rollout": "last_exited"}, "one loop, which no token can leave out"),
        ({}, {"algorithm": "rltt"}, "deals rewards among loops"),
    ],
)
def test_what_transformers_and_plain_models_cannot(values: dict[str, Any], options: dict[str, str], said: str) -> None:
    found = fault(values, "hf", **({"model": "hf"} | options))
    assert found is not None
    assert re.search(said, found), found


@pytest.mark.parametrize("engine", ["native", "plain", "vllm", "hf"])
def test_a_plain_transformer_is_for_all_engines(engine: str) -> None:
    assert fault({"rollout.engine.shared_prefill": False}, engine, model="hf") is None
