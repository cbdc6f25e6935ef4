"""Ouro and its sampling a second time, from the formulas: one vector at a time, no batch, no cache, plain fp64.

It shares no code with the package. Weights come in as a dictionary of arrays under their checkpoint names.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

Vector = np.ndarray


@dataclass
class PlainOuro:
    weights: Mapping[str, np.ndarray]
    layers: int
    loops: int
    heads: int
    kv_heads: int
    head_dim: int
    theta: float
    eps: float

    def rms(self, x: Vector, name: str) -> Vector:
        return self.weights[name + ".weight"] * (x / math.sqrt(sum(value * value for value in x) / len(x) + self.eps))

    def rope(self, x: Vector, position: int) -> Vector:
        half = self.head_dim // 2
        y = np.empty(self.head_dim)
        for j in range(half):
            angle = position * self.theta ** (-2 * j / self.head_dim)
            y[j] = x[j] * math.cos(angle) - x[j + half] * math.sin(angle)
            y[j + half] = x[j + half] * math.cos(angle) + x[j] * math.sin(angle)
        return y

    def head(self, x: Vector, index: int) -> Vector:
        return x[index * self.head_dim : (index + 1) * self.head_dim]

    def layer(self, states: list[Vector], index: int) -> list[Vector]:
        """One layer for all tokens; token i sees tokens 0..i."""
        prefix = f"model.layers.{index}."
        w = {name: self.weights[f"{prefix}{name}.weight"] for name in (
            "self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj",
            "mlp.gate_proj", "mlp.up_proj", "mlp.down_proj",
        )}  # fmt: skip
        out = []
        for i, x in enumerate(states):
            query = w["self_attn.q_proj"] @ self.rms(x, prefix + "input_layernorm")
            mixed = []
            for head in range(self.heads):
                kv_head = head // (self.heads // self.kv_heads)
                q = self.rope(self.head(query, head), i)
                scores, values = [], []
                for j in range(i + 1):
                    normed = self.rms(states[j], prefix + "input_layernorm")
                    key = self.rope(self.head(w["self_attn.k_proj"] @ normed, kv_head), j)
                    scores.append(float(q @ key) / math.sqrt(self.head_dim))
                    values.append(self.head(w["self_attn.v_proj"] @ normed, kv_head))
                top = max(scores)
                weights = [math.exp(score - top) for score in scores]
                mixed.append(sum(weight / sum(weights) * value for weight, value in zip(weights, values, strict=True)))
            attended = w["self_attn.o_proj"] @ np.concatenate(mixed)
            x = x + self.rms(attended, prefix + "input_layernorm_2")
            normed = self.rms(x, prefix + "post_attention_layernorm")
            gate = w["mlp.gate_proj"] @ normed
            inner = np.array([g / (1 + math.exp(-g)) for g in gate]) * (w["mlp.up_proj"] @ normed)
            out.append(x + self.rms(w["mlp.down_proj"] @ inner, prefix + "post_attention_layernorm_2"))
        return out

    def states(self, tokens: list[int]) -> list[list[Vector]]:
        """h_1 .. h_K, each a list of one vector per token."""
        x = [self.weights["model.embed_tokens.weight"][token] for token in tokens]
        result = []
        for _ in range(self.loops):
            for index in range(self.layers):
                x = self.layer(x, index)
            x = [self.rms(state, "model.norm") for state in x]
            result.append(x)
        return result

    def logits(self, h: Vector) -> Vector:
        return self.weights["lm_head.weight"] @ h

    def exit_distribution(self, per_loop: list[Vector]) -> list[float]:
        """Probability of each exit depth of one token, from its h_1 .. h_K."""
        remaining, result = 1.0, []
        for h in per_loop[:-1]:
            gate = float(self.weights["model.early_exit_gate.weight"][0] @ h)
            stop = 1 / (1 + math.exp(-(gate + float(self.weights["model.early_exit_gate.bias"][0]))))
            result.append(stop * remaining)
            remaining *= 1 - stop
        return [*result, remaining]


def splitmix64(x: int) -> int:
    """The published finaliser on Python integers."""
    modulus = 2**64
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) % modulus
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) % modulus
    return x ^ (x >> 31)


def plain_uniform(seed: int, position: int) -> float:
    golden, modulus = 0x9E3779B97F4A7C15, 2**64
    start = splitmix64((seed + golden) % modulus)
    return (splitmix64((start + position * golden) % modulus) >> 11) / 2**53


def plain_generate(
    model: PlainOuro, prompt: list[int], count: int, temperature: float, seed: int, stops: set[int]
) -> tuple[list[int], list[float]]:
    """Tokens and log-probs; the whole sequence is computed again for every token."""
    tokens, logprobs = list(prompt), []
    while len(tokens) < len(prompt) + count:
        logits = model.logits(model.states(tokens)[-1][-1]) / (temperature or 1.0)
        top = max(logits)
        logs = [float(value - top) for value in logits]
        total = math.log(sum(math.exp(value) for value in logs))
        logs = [value - total for value in logs]
        if temperature == 0:
            token = max(range(len(logs)), key=logs.__getitem__)
        else:
            left = plain_uniform(seed, len(tokens))
            token = 0
            while left >= math.exp(logs[token]):
                left -= math.exp(logs[token])
                token += 1
        tokens.append(token)
        logprobs.append(logs[token])
        if token in stops:
            break
    return tokens[len(prompt) :], logprobs
