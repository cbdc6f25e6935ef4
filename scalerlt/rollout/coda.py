"""One loop and one readout of a batch by themselves, to be timed: what part of a token's cost is not recurrent.

A pass of the engine runs one loop of all rows and reads out those that stop: its *coda*. How the two compare says how
much of the loops that a deferred rollout leaves out can turn into speed.
"""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from scalerlt.models.ouro import OuroForCausalLM
from scalerlt.numerics.precision import internal_dtype
from scalerlt.rollout.request import Request
from scalerlt.rollout.sampling import greedy, raw_logprobs, sample, uniforms


def one_loop(model: OuroForCausalLM, rows: int, length: int) -> Callable[[], object]:
    """A loop of one new token in each of `rows` sequences, which attends to `length` positions of stored K/V."""
    config, device = model.config, model.device
    shape = (config.num_hidden_layers, rows, length, config.num_key_value_heads, config.head_dim)
    keys, values = (torch.zeros(shape, dtype=model.dtype, device=device).transpose(2, 3) for _ in range(2))
    x = torch.zeros(rows, 1, config.hidden_size, dtype=model.dtype, device=device)
    cos, sin = model.rotary(torch.full((rows, 1), length - 1, device=device))

    def attend(loop: int, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        queries = q.view(rows, config.num_key_value_heads, -1, config.head_dim)
        return scaled_dot_product_attention(queries, keys[layer], values[layer]).reshape(q.shape)

    @torch.inference_mode()
    def run() -> object:
        return model.loop(0, x, cos, sin, attend=attend)

    return run


def one_readout(model: OuroForCausalLM, requests: Sequence[Request]) -> Callable[[], object]:
    """Logits and the next token of one hidden state for each of the requests, as the engine draws it."""
    device = model.device
    hidden = torch.zeros(len(requests), model.config.hidden_size, dtype=model.dtype, device=device)
    seeds = torch.tensor([request.seed or 0 for request in requests], device=device)
    # The engine has the random numbers of all positions before it begins.
    drawn_with = uniforms(seeds, torch.tensor([len(request.prompt_tokens) for request in requests], device=device))
    temperatures = torch.tensor(
        [request.temperature for request in requests], dtype=internal_dtype(model.dtype), device=device
    )
    top_k = torch.tensor([request.top_k for request in requests], device=device)
    top_p = torch.tensor([request.top_p for request in requests], dtype=torch.float64, device=device)
    truncation = (top_k, top_p) if any(request.truncates for request in requests) else None
    different = {request.temperature for request in requests}

    @torch.inference_mode()
    def run() -> object:
        logits = model.logits(hidden)
        if different == {0}:
            tokens, logprobs = greedy(logits)
        else:
            some_greedy = 0 in different
            tokens, logprobs = sample(logits, temperatures, drawn_with, None, truncation, some_greedy=some_greedy)
        scaled = not different <= {0, 1} or truncation is not None
        raw = raw_logprobs(logits, tokens) if scaled else logprobs
        return tokens.tolist(), logprobs.tolist(), raw.tolist()

    return run
