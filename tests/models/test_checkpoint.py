import json
import random
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from models.small import SMALL, small_model
from safetensors.torch import load_file, save_file

from scalerlt.errors import UserError
from scalerlt.models.checkpoint import build, load_hf, save_hf
from scalerlt.models.config import OuroConfig
from scalerlt.models.headers import read_config

OURO_1_4B = OuroConfig(
    vocab_size=49152,
    hidden_size=2048,
    intermediate_size=5632,
    num_hidden_layers=24,
    num_attention_heads=16,
    num_key_value_heads=16,
    head_dim=128,
    total_ut_steps=4,
    rope_theta=1e6,
    rms_norm_eps=1e-6,
    max_position_embeddings=65536,
)


@pytest.mark.parametrize(
    ("config", "tensors", "parameters"),
    [(OURO_1_4B, 269, 1_434_652_673), (replace(OURO_1_4B, num_hidden_layers=48), 533, 2_667_974_657)],
)
def test_the_real_models_on_the_meta_device(config: OuroConfig, tensors: int, parameters: int) -> None:
    model = build(config, dtype=torch.bfloat16, device="meta", seed=0)
    named = dict(model.named_parameters())
    assert len(named) == tensors
    assert sum(p.numel() for p in named.values()) == parameters
    assert {name: tuple(p.shape) for name, p in named.items()} == config.tensor_shapes()
    assert {p.dtype for p in named.values()} == {torch.bfloat16}
    hidden = model(torch.zeros(2, 5, dtype=torch.int64, device="meta"))
    assert [tuple(h.shape) for h in hidden] == [(2, 5, 2048)] * 4


def test_random_weights_depend_on_the_seed_alone() -> None:
    state = torch.random.get_rng_state()
    one = build(SMALL, dtype=torch.float32, device="cpu", seed=1)
    assert torch.equal(torch.random.get_rng_state(), state)
    torch.manual_seed(99)
    again = build(SMALL, dtype=torch.float32, device="cpu", seed=1)
    half = build(SMALL, dtype=torch.bfloat16, device="cpu", seed=1)
    double = build(SMALL, dtype=torch.float64, device="cpu", seed=1)
    for name, p in one.named_parameters():
        assert torch.equal(p, again.get_parameter(name))
        assert torch.equal(p.bfloat16(), half.get_parameter(name))
        assert torch.equal(p.double(), double.get_parameter(name))
    other = build(SMALL, dtype=torch.float32, device="cpu", seed=2)
    assert not torch.equal(one.lm_head.weight, other.lm_head.weight)


def test_random_weights_are_normal_norms_one_bias_zero() -> None:
    model = build(replace(SMALL, hidden_size=256, initializer_range=0.02), dtype=torch.float32, device="cpu", seed=0)
    for name, p in model.named_parameters():
        if "norm" in name:
            assert torch.equal(p, torch.ones_like(p))
        elif name.endswith("bias"):
            assert torch.equal(p, torch.zeros_like(p))
        else:
            assert abs(p.std().item() / 0.02 - 1) < 4 / p.numel() ** 0.5
            assert abs(p.mean().item()) < 4 * 0.02 / p.numel() ** 0.5


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("limit", [10**9, 4000, 1])
def test_round_trip_is_bit_for_bit(tmp_path: Path, dtype: torch.dtype, limit: int) -> None:
    model = small_model(dtype)
    save_hf(model, tmp_path / "saved", max_shard_bytes=limit)
    files = sorted(p.name for p in (tmp_path / "saved").iterdir())
    if limit == 10**9:
        assert files == ["config.json", "model.safetensors"]
    else:
        index = json.loads((tmp_path / "saved/model.safetensors.index.json").read_text())
        assert set(index["weight_map"]) == set(SMALL.tensor_shapes())
        size = torch.empty(0, dtype=dtype).element_size()
        assert index["metadata"]["total_size"] == SMALL.parameter_count * size
        shards = sorted(set(index["weight_map"].values()))
        assert shards == [f"model-{i:05d}-of-{len(shards):05d}.safetensors" for i in range(1, len(shards) + 1)]
        assert len(shards) == 27 if limit == 1 else 1 < len(shards) < 27
    loaded = load_hf(tmp_path / "saved", dtype, "cpu")
    assert loaded.config == model.config
    for name, p in model.named_parameters():
        assert torch.equal(p, loaded.get_parameter(name))
        assert loaded.get_parameter(name).requires_grad


def test_shards_stay_below_their_limit(tmp_path: Path) -> None:
    save_hf(small_model(torch.float32), tmp_path / "saved", max_shard_bytes=8000)
    for file in (tmp_path / "saved").glob("*.safetensors"):
        assert sum(t.numel() * 4 for t in load_file(file).values()) <= 8000


def test_loading_converts(tmp_path: Path) -> None:
    model = small_model(torch.float32)
    save_hf(model, tmp_path / "saved")
    half = load_hf(tmp_path / "saved", torch.bfloat16, "cpu")
    assert torch.equal(half.lm_head.weight, model.lm_head.weight.bfloat16())


def test_saving_overwrites_nothing(tmp_path: Path) -> None:
    save_hf(small_model(), tmp_path / "saved")
    with pytest.raises(UserError, match=r"already holds config.json, model.safetensors"):
        save_hf(small_model(), tmp_path / "saved")


# What bad checkpoints get.


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    save_hf(small_model(torch.float32), tmp_path / "saved")
    return tmp_path / "saved"


@pytest.fixture
def sharded(tmp_path: Path) -> Path:
    save_hf(small_model(torch.float32), tmp_path / "sharded", max_shard_bytes=6000)
    return tmp_path / "sharded"


def error_of(path: Path) -> str:
    with pytest.raises(UserError) as caught:
        load_hf(path, torch.float32, "cpu")
    return str(caught.value)


def rewrite(path: Path, change) -> None:
    tensors = load_file(path)
    change(tensors)
    save_file(tensors, path)


def test_inv_freq_is_skipped(saved: Path) -> None:
    rewrite(
        saved / "model.safetensors",
        lambda t: t.update(
            {"model.rotary_emb.inv_freq": torch.ones(3), "model.layers.0.self_attn.rotary_emb.inv_freq": torch.ones(3)}
        ),
    )
    load_hf(saved, torch.float32, "cpu")


def test_missing_directory_config_or_weights(tmp_path: Path, saved: Path) -> None:
    assert "no such directory" in error_of(tmp_path / "nowhere")
    (saved / "model.safetensors").unlink()
    assert "holds neither model.safetensors nor model.safetensors.index.json" in error_of(saved)
    (saved / "pytorch_model.bin").touch()
    assert "pytorch_model.bin" in error_of(saved)
    (saved / "config.json").unlink()
    assert "config.json: no such file" in error_of(saved)


def test_config_that_is_not_json(saved: Path) -> None:
    (saved / "config.json").write_text("{")
    assert "config.json: cannot be read as JSON" in error_of(saved)
    (saved / "config.json").write_text("[]")
    assert "has to be a JSON object, is a list" in error_of(saved)
    (saved / "config.json").write_bytes(b"\xff\xfe\x00")
    assert "config.json: cannot be read as JSON" in error_of(saved)
    with pytest.raises(UserError, match=r"config.json"):
        read_config(saved)


@pytest.mark.parametrize("keep", [0, 4, 100, 0.5, 0.999])
def test_truncated_weights(saved: Path, keep: float) -> None:
    file = saved / "model.safetensors"
    content = file.read_bytes()
    file.write_bytes(content[: int(keep * len(content)) if 0 < keep < 1 else int(keep)])
    message = error_of(saved)
    assert "damaged files: model.safetensors: truncated or not a safetensors file" in message
    assert "missing tensors" not in message


def test_any_cut_and_any_garbage_is_one_error(saved: Path) -> None:
    file = saved / "model.safetensors"
    content = file.read_bytes()
    rng = random.Random(0)
    for _ in range(30):
        file.write_bytes(content[: rng.randrange(len(content))])
        error_of(saved)
        file.write_bytes(rng.randbytes(rng.randrange(200)))
        error_of(saved)


def test_all_wrong_tensors_are_named_in_one_error(saved: Path) -> None:
    def change(tensors: dict[str, torch.Tensor]) -> None:
        del tensors["model.norm.weight"], tensors["lm_head.weight"]
        for layer in range(2):
            tensors[f"model.layers.{layer}.self_attn.q_proj.bias"] = torch.zeros(24)
            tensors[f"model.layers.{layer}.mlp.up_proj.weight"] = torch.zeros(28, 7)
        tensors["model.layers.1.mlp.down_proj.weight"] = torch.zeros(20, 28, dtype=torch.int32)

    rewrite(saved / "model.safetensors", change)
    message = error_of(saved)
    assert "missing tensors: lm_head.weight [29, 20]; model.norm.weight [20]" in message
    assert "unknown tensors: model.layers.0-1.self_attn.q_proj.bias [24]" in message
    assert "wrong shape: model.layers.0-1.mlp.up_proj.weight [28, 7] instead of [28, 20]" in message
    assert "not floating-point: model.layers.1.mlp.down_proj.weight I32" in message


def test_a_config_of_another_model_is_told_by_its_tensors(saved: Path) -> None:
    config = json.loads((saved / "config.json").read_text())
    (saved / "config.json").write_text(json.dumps(config | {"num_hidden_layers": 4, "layer_types": None}))
    message = error_of(saved)
    assert "model.layers.2-3.mlp.gate_proj.weight [28, 20]" in message
    assert message.count("model.layers.") == 11


def test_absent_and_damaged_shards(sharded: Path) -> None:
    shards = sorted(sharded.glob("*.safetensors"))
    assert len(shards) >= 4
    shards[1].unlink()
    shards[2].write_bytes(shards[2].read_bytes()[:-1])
    message = error_of(sharded)
    assert f"damaged files: {shards[1].name}: no such file; {shards[2].name}: truncated" in message
    assert "missing" not in message


def test_an_index_that_does_not_fit_its_shards(sharded: Path) -> None:
    index_file = sharded / "model.safetensors.index.json"
    index = json.loads(index_file.read_text())
    first, last = index["weight_map"]["model.embed_tokens.weight"], index["weight_map"]["lm_head.weight"]
    index["weight_map"]["lm_head.weight"] = first
    index_file.write_text(json.dumps(index))
    assert f"not in the file that the index names: lm_head.weight {first}" in error_of(sharded)
    rewrite(sharded / first, lambda t: t.update({"lm_head.weight": torch.zeros(29, 20)}))
    assert last in index["weight_map"].values()  # so that it is still read
    assert f"stored twice: lm_head.weight {first} and {last}" in error_of(sharded)
    index_file.write_text(json.dumps({"weight_map": {"a": 3}}))
    assert "weight_map has to map tensor names to file names" in error_of(sharded)


def test_a_tensor_in_two_shards(sharded: Path) -> None:
    shards = sorted(sharded.glob("*.safetensors"))
    rewrite(shards[-1], lambda t: t.update({"model.embed_tokens.weight": torch.zeros(29, 20)}))
    message = error_of(sharded)
    assert f"tensors stored twice: model.embed_tokens.weight {shards[0].name} and {shards[-1].name}" in message


def test_nothing_is_loaded_from_half_a_checkpoint(sharded: Path, tmp_path: Path) -> None:
    """A tensor missing from the index alone is missing, even though its shard holds it under no other name."""
    copy = tmp_path / "copy"
    shutil.copytree(sharded, copy)
    rewrite(sorted(copy.glob("*.safetensors"))[0], lambda t: t.pop("model.embed_tokens.weight"))
    assert "missing tensors: model.embed_tokens.weight [29, 20]" in error_of(copy)
