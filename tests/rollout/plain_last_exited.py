"""The deferred rollouts a second time, from their definition: one token at a time, plain fp64, no cache.

For every token that is generated everything before it is computed again. K/V are never copied: every token owns one
version per loop that it ran, and a query at loop r reads of token j the version min(r, depth of j) under `last_exited`,
version r under `deferred_fill`, and of a response under `shared_kv` the version that is the depth of j.
"""

import math
from dataclasses import dataclass

import numpy as np
from models.plain_ouro import PlainOuro, Vector, plain_uniform

Versions = dict[tuple[int, int, int], tuple[Vector, Vector]]
"""Key and value rows of (token, loop, layer), all heads in one row, keys not rotated."""


@dataclass(frozen=True)
class PlainResponse:
    tokens: list[int]
    logprobs: list[float]
    raw_logprobs: list[float]
    depths: list[int]
    margin: float
    """Smallest distance of a gate's decision to its threshold."""


def one_loop(
    model: PlainOuro, x: Vector, index: int, loop: int, depths: list[int], versions: Versions, kv: str = "last_exited"
) -> Vector:
    """Loop `loop` of token `index`; `depths` are those of the tokens before it."""
    read = {
        "last_exited": lambda j: min(loop, depths[j]),
        "deferred_fill": lambda j: loop,
        "shared_kv": lambda j: depths[j],
        "prompt": lambda j: loop,
    }[kv]
    w = model.weights
    for layer in range(model.layers):
        p = f"model.layers.{layer}."
        normed = model.rms(x, p + "input_layernorm")
        versions[index, loop, layer] = (
            w[p + "self_attn.k_proj.weight"] @ normed,
            w[p + "self_attn.v_proj.weight"] @ normed,
        )
        query = w[p + "self_attn.q_proj.weight"] @ normed
        mixed = []
        for head in range(model.heads):
            kv_head = head // (model.heads // model.kv_heads)
            q = model.rope(model.head(query, head), index)
            scores, values = [], []
            for j in range(index + 1):
                version = loop if j == index else read(j)
                key, value = versions[j, version, layer]
                scores.append(float(q @ model.rope(model.head(key, kv_head), j)) / math.sqrt(model.head_dim))
                values.append(model.head(value, kv_head))
            weights = np.exp(np.array(scores) - max(scores))
            mixed.append((weights / weights.sum()) @ np.stack(values))
        x = x + model.rms(w[p + "self_attn.o_proj.weight"] @ np.concatenate(mixed), p + "input_layernorm_2")
        normed = model.rms(x, p + "post_attention_layernorm")
        gate = w[p + "mlp.gate_proj.weight"] @ normed
        inner = gate / (1 + np.exp(-gate)) * (w[p + "mlp.up_proj.weight"] @ normed)
        x = x + model.rms(w[p + "mlp.down_proj.weight"] @ inner, p + "post_attention_layernorm_2")
    return model.rms(x, "model.norm")


def hazard(model: PlainOuro, h: Vector) -> float:
    w = model.weights
    return 1 / (1 + math.exp(-float(w["model.early_exit_gate.weight"][0] @ h + w["model.early_exit_gate.bias"][0])))


def log_softmax(logits: Vector) -> Vector:
    shifted = logits - logits.max()
    return shifted - math.log(np.exp(shifted).sum())


def plain_last_exited(
    model: PlainOuro,
    prompt: list[int],
    count: int,
    *,
    temperature: float,
    seed: int,
    stops: set[int],
    threshold: float = 1.0,
    min_loops: int = 1,
    max_loops: int | None = None,
    delay: int = 0,
    trace: list[int] | None = None,
    forced: list[int] | None = None,
    kv: str = "last_exited",
) -> PlainResponse:
    """`trace` gives the depths instead of the gate, `forced` the tokens instead of the sampling."""
    tokens, depths = list(prompt), [model.loops] * len(prompt)
    result = PlainResponse([], [], [], [], math.inf)
    margin = math.inf
    while len(result.tokens) < count:
        versions: Versions = {}
        depth, h = model.loops, np.zeros(0)
        for index, token in enumerate(tokens):
            h = model.weights["model.embed_tokens.weight"][token]
            known = depths[index] if index < len(depths) else None
            remaining, depth, ends_at = 1.0, 0, model.loops
            # Under `deferred_fill` the loops that a token left out have run when they are read.
            loops = model.loops if known is None or kv == "deferred_fill" else known
            for loop in range(1, loops + 1):
                h = one_loop(model, h, index, loop, depths, versions, "prompt" if index < len(prompt) else kv)
                depth = loop
                if known is None and trace is not None:
                    if loop == trace[len(result.tokens)]:
                        break
                elif known is None:
                    remaining *= 1 - hazard(model, h)
                    if threshold < 1 and loop >= min_loops:
                        margin = min(margin, abs(1 - remaining - threshold))
                    if threshold < 1 and loop >= min_loops and 1 - remaining >= threshold:
                        ends_at = min(ends_at, loop + delay)
                    if loop in (max_loops, ends_at):
                        break
            if known is None:
                depths.append(depth)
        logits = model.weights["lm_head.weight"] @ h
        logprobs, raw = log_softmax(logits / (temperature or 1.0)), log_softmax(logits)
        if forced is not None:
            token = forced[len(result.tokens)]
        elif temperature == 0:
            token = int(logprobs.argmax())
        else:
            token, left = 0, plain_uniform(seed, len(tokens))
            while left >= math.exp(logprobs[token]):
                left -= math.exp(logprobs[token])
                token += 1
        tokens.append(token)
        result.tokens.append(token)
        result.logprobs.append(float(logprobs[token]))
        result.raw_logprobs.append(float(raw[token]))
        result.depths.append(depth)
        if forced is None and token in stops:
            break
    return PlainResponse(result.tokens, result.logprobs, result.raw_logprobs, result.depths, margin)
