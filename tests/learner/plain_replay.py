"""The rollouts `last_exited` and `deferred_fill` a second time, from their definitions, one token and one loop at a
time, with gradients.

Every token owns one version of K and V per layer and loop that it ran; a query at loop d reads version min(d, e) of a
token with exit depth e. Under `deferred_fill` the loops behind e are run too, after the token has been read out.
Nothing is shared with the package but the weights.
"""

import math
from collections.abc import Mapping

import torch
from torch import Tensor

from scalerlt.models.config import OuroConfig


def plain_replay(
    weights: Mapping[str, Tensor],
    config: OuroConfig,
    prompt: list[int],
    response: list[int],
    exit_depths: list[int],
    temperature: float,
    filled: bool = False,
) -> list[Tensor]:
    """log p of each response token; `exit_depths` are the loops that produced each."""
    inputs = [*prompt, *response][:-1]
    depths = [config.total_ut_steps] * len(prompt) + exit_depths[1:]
    ran = [config.total_ut_steps] * len(inputs) if filled else depths
    versions: dict[tuple[int, int, int], tuple[Tensor, Tensor]] = {}  # (token, loop, layer): K rotated, V
    logprobs = []
    for token, (identity, depth) in enumerate(zip(inputs, depths, strict=True)):
        h = weights["model.embed_tokens.weight"][identity]
        for loop in range(1, ran[token] + 1):
            for layer in range(config.num_hidden_layers):
                h = _layer(weights, config, h, token, loop, layer, ran, versions)
            h = _rms(h, weights["model.norm.weight"], config)
            if loop == depth:
                exited = h
        if token >= len(prompt) - 1:
            scaled = weights["lm_head.weight"] @ exited / temperature
            logprobs.append(scaled[response[token - len(prompt) + 1]] - torch.log(torch.exp(scaled).sum()))
    return logprobs


def _layer(weights, config, x, token, loop, layer, depths, versions):
    prefix = f"model.layers.{layer}."
    size, heads = config.head_dim, config.num_attention_heads
    shared = heads // config.num_key_value_heads
    normed = _rms(x, weights[prefix + "input_layernorm.weight"], config)
    q, k, v = (weights[f"{prefix}self_attn.{name}_proj.weight"] @ normed for name in "qkv")
    keys = torch.cat([_rope(head, token, config) for head in k.split(size)])
    versions[token, loop, layer] = keys, v
    mixed = []
    for head in range(heads):
        query = _rope(q[head * size : (head + 1) * size], token, config)
        kv = slice(head // shared * size, (head // shared + 1) * size)
        read = [versions[other, min(loop, depths[other]), layer] for other in range(token + 1)]
        scores = torch.stack([query @ key[kv] / math.sqrt(size) for key, _ in read])
        probabilities = torch.exp(scores) / torch.exp(scores).sum()
        mixed.append(sum(p * value[kv] for p, (_, value) in zip(probabilities, read, strict=True)))
    attended = weights[prefix + "self_attn.o_proj.weight"] @ torch.cat(mixed)
    x = x + _rms(attended, weights[prefix + "input_layernorm_2.weight"], config)
    normed = _rms(x, weights[prefix + "post_attention_layernorm.weight"], config)
    gate = weights[prefix + "mlp.gate_proj.weight"] @ normed
    inner = gate / (1 + torch.exp(-gate)) * (weights[prefix + "mlp.up_proj.weight"] @ normed)
    down = weights[prefix + "mlp.down_proj.weight"] @ inner
    return x + _rms(down, weights[prefix + "post_attention_layernorm_2.weight"], config)


def _rms(x: Tensor, weight: Tensor, config: OuroConfig) -> Tensor:
    return weight * x / torch.sqrt((x * x).mean() + config.rms_norm_eps)


def _rope(x: Tensor, position: int, config: OuroConfig) -> Tensor:
    half = config.head_dim // 2
    angles = torch.tensor([position * config.rope_theta ** (-j / half) for j in range(half)], dtype=x.dtype)
    first, second = x[:half], x[half:]
    cos, sin = torch.cos(angles), torch.sin(angles)
    return torch.cat([first * cos - second * sin, second * cos + first * sin])
