"""Ouro models from and to Hugging Face directories (config.json, safetensors), and random ones."""

import json
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import save_file

from scalerlt.errors import UserError
from scalerlt.models.config import OuroConfig
from scalerlt.models.headers import CONFIG_FILE, INDEX_FILE, SINGLE_FILE, check_files, read_config
from scalerlt.models.ouro import OuroForCausalLM


def build(config: OuroConfig, *, dtype: torch.dtype, device: torch.device | str, seed: int) -> OuroForCausalLM:
    """A model with random weights: normal with `initializer_range`, norms 1, the gate's bias 0.

    The weights are drawn in fp32 on the CPU from `seed` alone, then rounded to `dtype`: they depend neither on the
    device nor on the global random state. On the meta device nothing is drawn.
    """
    model = OuroForCausalLM(config, dtype=dtype, device=device)
    if model.device.type == "meta":
        return model
    generator = torch.Generator().manual_seed(seed)
    parameters = dict(model.named_parameters())
    with torch.no_grad():
        for name, shape in config.tensor_shapes().items():
            if name.endswith("norm.weight") or "layernorm" in name:
                parameters[name].fill_(1.0)
            elif name.endswith(".bias"):
                parameters[name].zero_()
            else:
                drawn = torch.empty(shape, dtype=torch.float32)
                parameters[name].copy_(drawn.normal_(0.0, config.initializer_range, generator=generator))
    return model


def load_hf(path: str | Path, dtype: torch.dtype, device: torch.device | str) -> OuroForCausalLM:
    """The model in the Hugging Face directory `path`, converted to `dtype`.

    All files are checked before a weight is read; then tensors are read one by one, so memory holds one copy.
    A stored `rotary_emb.inv_freq` is skipped: RoPE tables are always computed anew.

    Raises:
        UserError: one, naming every file that is missing or damaged and every tensor that is missing, unknown,
            mis-shaped, stored twice or not floating-point.
    """
    config = read_config(path)
    files = check_files(path, config)
    model = OuroForCausalLM(config, dtype=dtype, device=device)
    parameters = dict(model.named_parameters())
    with torch.no_grad():
        for file in files:
            with safe_open(file.path, framework="pt") as stored:
                for name in file.shapes:
                    parameters[name].copy_(stored.get_tensor(name))
    return model


def save_hf(model: OuroForCausalLM, path: str | Path, *, max_shard_bytes: int = 5 * 10**9) -> None:
    """Writes config.json and the weights in the model's dtype to directory `path`, which is made if need be.

    One model.safetensors, or several shards with model.safetensors.index.json where one would exceed
    `max_shard_bytes` (a single larger tensor gets a shard of its own).

    Raises:
        UserError: the directory already holds a checkpoint; nothing is overwritten.
    """
    directory = Path(path)
    directory.mkdir(parents=True, exist_ok=True)
    if old := sorted(p.name for p in directory.iterdir() if p.name == CONFIG_FILE or p.name.startswith("model")):
        raise UserError(f"checkpoint {directory}: already holds {', '.join(old)}; give a new directory")
    parameters = dict(model.named_parameters())
    sizes = {name: tensor.numel() * tensor.element_size() for name, tensor in parameters.items()}
    shards = _shards(sizes, max_shard_bytes)
    names = [SINGLE_FILE] if len(shards) == 1 else _shard_names(len(shards))
    for name, shard in zip(names, shards, strict=True):
        tensors = {key: parameters[key].detach().contiguous() for key in shard}
        save_file(tensors, directory / name, metadata={"format": "pt"})
    if len(shards) > 1:
        places = {key: name for name, shard in zip(names, shards, strict=True) for key in shard}
        _write_json(directory / INDEX_FILE, {"metadata": {"total_size": sum(sizes.values())}, "weight_map": places})
    dtype = str(model.dtype).removeprefix("torch.")
    _write_json(directory / CONFIG_FILE, {**model.config.to_hf(), "torch_dtype": dtype})
    for name in names:  # safetensors leaves its files to their owner alone
        (directory / name).chmod((directory / CONFIG_FILE).stat().st_mode)


def _shards(sizes: dict[str, int], limit: int) -> list[list[str]]:
    """The names in order, cut so that each part holds at most `limit` bytes, or one name."""
    shards: list[list[str]] = [[]]
    used = 0
    for name, size in sizes.items():
        if shards[-1] and used + size > limit:
            shards.append([])
            used = 0
        shards[-1].append(name)
        used += size
    return shards


def _shard_names(count: int) -> list[str]:
    return [f"model-{number:05d}-of-{count:05d}.safetensors" for number in range(1, count + 1)]


def _write_json(path: Path, values: dict[str, Any]) -> None:
    path.write_text(json.dumps(values, indent=2) + "\n", encoding="utf-8")
