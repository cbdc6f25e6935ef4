"""A plain engine: one request after the other, token by token, with a K/V cache. What batching is compared with."""

from collections.abc import Callable, Sequence
from contextlib import nullcontext

import torch
from torch import Tensor
from torch.nn import functional

from scalerlt.errors import UserError
from scalerlt.models.ouro import OuroForCausalLM, causal_attention
from scalerlt.numerics.precision import internal_dtype
from scalerlt.rollout.engine import OnPhase, random_seed
from scalerlt.rollout.request import Request, Response, check_requests
from scalerlt.rollout.sampling import greedy, raw_logprobs, sample, uniforms
from scalerlt.rollout.sequence import ActiveSequence
from scalerlt.rollout.stats import RolloutResult, RolloutStats


class PlainEngine:
    """Generates what `NativeEngine` does with every token at full depth, up to rounding, and batches nothing.

    A prompt runs at once, then every token by itself. K and V lie as attention reads them, without padding and mask.

    Args:
        model: whose parameters are read, never changed.
        on_phase: as `NativeEngine` takes it.
        on_first_token: called with each request when its first token has been drawn.
        draw_seed: gives a seed in 0 .. 2^63 - 1 to each request without one.
    """

    def __init__(
        self,
        model: OuroForCausalLM,
        *,
        on_phase: OnPhase | None = None,
        on_first_token: Callable[[Request], None] | None = None,
        draw_seed: Callable[[], int] = random_seed,
    ) -> None:
        self.model = model
        self.on_phase: OnPhase = on_phase or (lambda phase: nullcontext())
        self.on_first_token = on_first_token or (lambda request: None)
        self.draw_seed = draw_seed

    def generate(self, requests: Sequence[Request]) -> RolloutResult:
        """Answers all requests.

        Raises:
            UserError: naming all that is wrong with the requests, before anything runs; or one has forced_depths.
            FloatingPointError: the model's logits are not finite, with the request and the position.
        """
        check_requests(requests, self.model.config)
        if any(request.forced_depths is not None for request in requests):
            raise UserError("the plain engine runs every token at full depth: it takes no forced_depths")
        capacity = max((len(r.prompt_tokens) + r.max_new_tokens - 1 for r in requests), default=0)
        cache = _Cache(self.model, capacity)
        stats = RolloutStats(kv_cache_bytes=cache.nbytes, peak_active=min(1, len(requests)))
        with torch.inference_mode():
            return RolloutResult([self._answer(*numbered, cache, stats) for numbered in enumerate(requests)], stats)

    def _answer(self, index: int, request: Request, cache: "_Cache", stats: RolloutStats) -> Response:
        model, prompt = self.model, len(request.prompt_tokens)
        seed = self.draw_seed() if request.seed is None else request.seed
        sequence = ActiveSequence(index, request, seed, request.stops(model.config))
        sampler = _Sampler(model, sequence)
        with self.on_phase("prefill"):
            sampler.draw(cache.run(request.prompt_tokens, start=0, stats=stats))
        self.on_first_token(request)
        while sequence.finish_reason is None:
            with self.on_phase("decode"):
                sampler.draw(cache.run(sequence.tokens[-1:], start=sequence.length, stats=stats))
        decoded, full_depth = len(sequence.tokens) - 1, model.config.total_ut_steps
        stats.prompt_tokens += prompt
        stats.prefill_calls += 1
        stats.decode_steps += decoded
        stats.decode_depths[full_depth] += decoded
        stats.generated_tokens += 1 + decoded
        stats.readouts += 1 + decoded
        stats.executed_depth_sum += full_depth * (1 + decoded)
        return Response(
            request_id=request.request_id,
            tokens=tuple(sequence.tokens),
            logprobs=tuple(sequence.logprobs),
            raw_logprobs=tuple(sequence.raw_logprobs),
            exit_depths=tuple(sequence.depths),
            weight_versions=(0,) * len(sequence.tokens),
            finish_reason=sequence.finish_reason,
            seed=seed,
        )


class _Cache:
    """K and V of one sequence, [heads, positions, head_dim] for each loop and layer; used again by the next."""

    def __init__(self, model: OuroForCausalLM, capacity: int) -> None:
        config = model.config
        planes = config.total_ut_steps * config.num_hidden_layers
        shape = (planes, config.num_key_value_heads, capacity, config.head_dim)
        self.model = model
        self.keys = torch.empty(shape, dtype=model.dtype, device=model.device)
        self.values = torch.empty_like(self.keys)
        self.nbytes = self.keys.nbytes + self.values.nbytes

    def run(self, tokens: Sequence[int], *, start: int, stats: RolloutStats) -> Tensor:
        """Runs the tokens from position `start` on through all loops: the last one's hidden state [1, H]."""
        count, device = len(tokens), self.model.device
        end, layers = start + count, self.model.config.num_hidden_layers
        loops = self.model.config.total_ut_steps
        stats.recurrent_rows += loops * count
        stats.loop_runs += loops
        stats.kv_rows_read += loops * end
        stats.kv_rows_written += loops * count

        def attend(loop: int, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            keys, values = self.keys[loop * layers + layer], self.values[loop * layers + layer]
            keys[:, start:end] = k[0].transpose(0, 1)
            values[:, start:end] = v[0].transpose(0, 1)
            if count > 1:
                return causal_attention(loop, layer, q, k, v)
            # The query heads that share a K/V head become the rows of one product.
            queries = q.view(1, k.shape[2], -1, q.shape[-1])
            attended = functional.scaled_dot_product_attention(queries, keys[None, :, :end], values[None, :, :end])
            return attended.reshape(q.shape)

        positions = torch.arange(start, end, device=device)[None]
        return self.model(torch.tensor([tokens], device=device), positions, attend=attend)[-1][:, -1]


class _Sampler:
    """Draws the tokens of one sequence."""

    def __init__(self, model: OuroForCausalLM, sequence: ActiveSequence) -> None:
        request, device = sequence.request, model.device
        self.model = model
        self.sequence = sequence
        self.seed = torch.tensor([sequence.seed], device=device)
        self.temperature = torch.tensor([request.temperature], dtype=internal_dtype(model.dtype), device=device)
        top_k = torch.tensor([request.top_k], device=device)
        top_p = torch.tensor([request.top_p], dtype=torch.float64, device=device)
        self.truncation = (top_k, top_p) if request.truncates else None

    def draw(self, hidden: Tensor) -> None:
        """Gives the sequence its next token, from the hidden state [1, H] that it is read out from."""
        sequence, request = self.sequence, self.sequence.request
        logits, forced = self.model.logits(hidden), sequence.forced_token
        if request.temperature == 0 and forced is None:
            tokens, logprobs = greedy(logits)
        else:
            position = torch.tensor([len(request.prompt_tokens) + len(sequence.tokens)], device=logits.device)
            given = None if forced is None else torch.tensor([forced], device=logits.device)
            uniform = uniforms(self.seed, position)
            tokens, logprobs = sample(logits, self.temperature, uniform, given, self.truncation)
        scaled = request.temperature not in (0, 1) or request.truncates
        raw = raw_logprobs(logits, tokens) if scaled else logprobs
        sequence.append(int(tokens), float(logprobs), float(raw), self.model.config.total_ut_steps)
