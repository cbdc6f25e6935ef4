"""A model that vLLM's attention on a CPU takes, its requests, and its log-probs in one fp64 pass."""

import copy
import math

import torch
from torch import Tensor

from scalerlt.models.checkpoint import build
from scalerlt.models.config import OuroConfig
from scalerlt.models.ouro import OuroForCausalLM
from scalerlt.rollout.request import Request, Response

CONFIG = OuroConfig(
    vocab_size=512,
    hidden_size=128,
    intermediate_size=320,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
    head_dim=32,
    total_ut_steps=4,
    rope_theta=1e4,
    rms_norm_eps=1e-6,
    max_position_embeddings=256,
    initializer_range=0.1,
)
"""Grouped heads, a head_dim that is not hidden / heads only by chance, four loops; logits far from uniform."""

TOLERANCE = 1e-4


def model_of(seed: int, config: OuroConfig = CONFIG) -> OuroForCausalLM:
    return build(config, dtype=torch.float32, device="cpu", seed=seed)


def requests_of(count: int, *, length: int = 3, **options: object) -> list[Request]:
    """Prompts of different lengths, which begin differently."""
    values = {"max_new_tokens": 12, "temperature": 0.0, "ignore_eos": True} | options
    return [
        Request(
            request_id=f"r{index}",
            prompt_tokens=tuple((11 * index + 3 * place * place + 5) % 512 for place in range(length + index)),
            seed=1000 + index,
            **values,  # type: ignore[arg-type]
        )
        for index in range(count)
    ]


def logits_of(model: OuroForCausalLM, request: Request, response: Response) -> Tensor:
    """The logits [tokens, V] that each response token is read out from, of one causal fp64 pass."""
    tokens = torch.tensor([[*request.prompt_tokens, *response.tokens]])
    exact = copy.deepcopy(model).to(torch.float64)
    with torch.no_grad():
        logits = exact.logits(exact(tokens)[-1])[0]
    return logits[len(request.prompt_tokens) - 1 : -1]


def logprobs_of(logits: Tensor, tokens: tuple[int, ...], *, temperature: float = 1.0, top_k: int = 0, top_p: float = 1):
    """Of tokens in the distribution that is left of the logits, written out token by token."""
    found = []
    for row, token in zip((logits / temperature).tolist(), tokens, strict=True):
        order = sorted(range(len(row)), key=lambda place: -row[place])[: top_k or None]
        weights = [math.exp(row[place] - row[order[0]]) for place in order]
        total, kept, sum_kept = sum(weights), [], 0.0
        for place, weight in zip(order, weights, strict=True):
            kept.append(place)
            sum_kept += weight
            if sum_kept >= top_p * total:
                break
        found.append(row[token] - row[order[0]] - math.log(sum_kept) if token in kept else -math.inf)
    return found


def largest_difference(ours: list[float] | tuple[float, ...], theirs: list[float] | tuple[float, ...]) -> float:
    return max(abs(one - other) for one, other in zip(ours, theirs, strict=True))
