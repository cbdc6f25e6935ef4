"""Which versions of vLLM may run an Ouro model; and what an engine says where there is no vLLM."""

import importlib.util

import pytest
import torch

from scalerlt.errors import Unsupported, UserError
from scalerlt.models.checkpoint import build
from scalerlt.models.config import OuroConfig
from scalerlt.rollout.vllm.engine import VllmEngine
from scalerlt.rollout.vllm.versions import ALLOW_UNTESTED, TESTED, check_version


@pytest.mark.parametrize("build_of", ["", "+cpu", "+cu130"])
def test_tested_releases_may_run_whatever_they_were_built_for(build_of: str) -> None:
    for release in TESTED:
        check_version(release + build_of)


@pytest.mark.parametrize("version", ["0.26.0", "0.33.0", "0.32.0.post1", "0.32.1rc1"])
def test_others_only_where_they_are_allowed(version: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(ALLOW_UNTESTED, raising=False)
    with pytest.raises(UserError, match=f"Ouro on vLLM {version}: .*tested with 0.32.0.*SCALERLT_VLLM_UNTESTED=1"):
        check_version(version)
    monkeypatch.setenv(ALLOW_UNTESTED, "1")
    check_version(version)


def test_without_vllm_a_cell_is_unsupported(monkeypatch: pytest.MonkeyPatch) -> None:
    real = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *rest: None if name == "vllm" else real(name, *rest))
    config = OuroConfig(
        vocab_size=16,
        hidden_size=8,
        intermediate_size=8,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=2,
        head_dim=4,
        total_ut_steps=2,
        rope_theta=1e4,
        rms_norm_eps=1e-6,
        max_position_embeddings=32,
    )
    model = build(config, dtype=torch.float32, device="cpu", seed=0)
    with pytest.raises(Unsupported, match=r"vllm is not installed here: see docs/vllm.md"):
        VllmEngine(model, concurrency=2)
