"""The rollout engine `hf`: `generate` of Hugging Face's transformers, what a plain transformer is usually run with."""

import importlib.util
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import ExitStack, nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from scalerlt.errors import Unsupported, UserError
from scalerlt.models.ouro import OuroForCausalLM
from scalerlt.numerics.precision import internal_dtype
from scalerlt.rollout.engine import OnPhase, random_seed
from scalerlt.rollout.request import FinishReason, Request, Response, check_requests
from scalerlt.rollout.stats import RolloutResult, RolloutStats


class HfEngine:
    """Generates batch after batch: as many requests as there are slots, padded on the left to their longest prompt.

    A batch runs until the last of its responses has its end; none takes the place of one that stopped earlier.

    transformers reads the model's own tensors, so that new weights need no publication. One generator serves a batch:
    which tokens are drawn depends on the seed of its first request and on its company.

    Args:
        model: a plain transformer, whose parameters are read, never changed.
        concurrency: requests of a batch.
        on_phase: as `NativeEngine` takes it.
        on_first_token: called with each request of a batch when their first tokens have been drawn.
        draw_seed: gives a seed in 0 .. 2^63 - 1 to each request without one.

    Attributes:
        weight_version, blocked, generating: as `NativeEngine` has them.

    Raises:
        Unsupported: transformers is not installed, or has no such model.
    """

    def __init__(
        self,
        model: OuroForCausalLM,
        *,
        concurrency: int,
        on_phase: OnPhase | None = None,
        on_first_token: Callable[[Request], None] | None = None,
        draw_seed: Callable[[], int] = random_seed,
    ) -> None:
        if concurrency < 1:
            raise UserError(f"rollout concurrency is {concurrency}, it has to be at least 1")
        if model.config.sandwich_norms:
            raise Unsupported("transformers has no looped models: rollout/engine=hf runs a plain transformer, model=hf")
        self.model = model
        self.concurrency = concurrency
        self.on_phase: OnPhase = on_phase or (lambda phase: nullcontext())
        self.on_first_token = on_first_token or (lambda request: None)
        self.draw_seed = draw_seed
        self.weight_version = 0
        self.blocked: str | None = None
        self.generating = False
        self._llama = _llama(model)

    def take_weights(self) -> int:
        """Nothing: the model's tensors are read where they are."""
        return 0

    def generate(self, requests: Sequence[Request]) -> RolloutResult:
        """Answers all requests.

        Raises:
            UserError: naming all that is wrong with the requests, before anything runs; or the engine is blocked.
            FloatingPointError: the model's logits are not finite.
        """
        if self.blocked is not None:
            raise UserError(self.blocked)
        check_requests(requests, self.model.config)
        _check(requests)
        responses: list[Response] = []
        stats = RolloutStats(peak_active=min(self.concurrency, len(requests)))
        self.generating = True
        try:
            for start in range(0, len(requests), self.concurrency):
                responses += self._batch(requests[start : start + self.concurrency], stats)
        finally:
            self.generating = False
        return RolloutResult(responses, stats)

    def _batch(self, requests: Sequence[Request], stats: RolloutStats) -> list[Response]:
        seeds = [self.draw_seed() if request.seed is None else request.seed for request in requests]
        prompts = [request.prompt_tokens for request in requests]
        stops = sorted(requests[0].stops(self.model.config))
        padded, mask = _left_padded(prompts, self.model.device)
        sampled = requests[0].temperature > 0
        options = {"temperature": requests[0].temperature, "top_k": requests[0].top_k, "top_p": requests[0].top_p}
        with torch.random.fork_rng(), _Phases(self.on_phase) as phases, torch.inference_mode():
            torch.manual_seed(seeds[0])
            phases.on_first = lambda: [self.on_first_token(request) for request in requests]
            found = self._llama.generate(
                input_ids=padded,
                attention_mask=mask,
                max_new_tokens=max(request.max_new_tokens for request in requests),
                do_sample=sampled,
                **(options if sampled else {"temperature": None, "top_k": None, "top_p": None}),
                eos_token_id=stops or None,
                pad_token_id=0,
                output_logits=True,
                output_scores=True,
                return_dict_in_generate=True,
                stopping_criteria=[phases],
            )
        drawn = found.sequences[:, padded.shape[1] :]
        logits, scores = torch.stack(found.logits, 1), torch.stack(found.scores, 1)
        raw = _logprobs(logits, drawn)
        logprobs = _logprobs(scores, drawn) if sampled else raw
        answers = [_cut(row, frozenset(stops)) for row in drawn.tolist()]
        _count(stats, self.model.config.total_ut_steps, prompts, [len(tokens) for tokens, _ in answers], drawn.shape[1])
        return [
            Response(
                request_id=request.request_id,
                tokens=tokens,
                logprobs=_finite(logprobs[row, : len(tokens)], request),
                raw_logprobs=_finite(raw[row, : len(tokens)], request),
                exit_depths=(self.model.config.total_ut_steps,) * len(tokens),
                weight_versions=(self.weight_version,) * len(tokens),
                finish_reason=reason,
                seed=seed,
            )
            for row, (request, seed, (tokens, reason)) in enumerate(zip(requests, seeds, answers, strict=True))
        ]


@dataclass
class _Phases:
    """Tells prefill from decoding: transformers asks it after each token whether to stop, which it never wants."""

    on_phase: OnPhase
    on_first: Callable[[], object] = lambda: None
    _open: ExitStack = field(default_factory=ExitStack)
    _decodes: bool = False

    def __enter__(self) -> "_Phases":
        self._open.enter_context(self.on_phase("prefill"))
        return self

    def __exit__(self, *error: Any) -> None:
        self._open.__exit__(*error)

    def __call__(self, input_ids: Tensor, scores: Any, **_: Any) -> Tensor:
        if not self._decodes:
            self._decodes = True
            self._open.close()
            self.on_first()
            self._open.enter_context(self.on_phase("decode"))
        return torch.zeros(len(input_ids), dtype=torch.bool, device=input_ids.device)


def _llama(model: OuroForCausalLM) -> Any:
    """transformers' model over the parameters of ours."""
    if importlib.util.find_spec("transformers") is None:
        raise Unsupported("transformers is not installed here: pip install 'scalerlt[hf]'")
    from transformers import LlamaConfig, LlamaForCausalLM

    llama = LlamaForCausalLM(LlamaConfig.from_dict(model.config.to_hf())).to(model.device, model.dtype).eval()
    llama.load_state_dict(dict(model.named_parameters()), assign=True)
    return llama


def _check(requests: Sequence[Request]) -> None:
    """What `generate` cannot do that other engines can."""
    problems = [
        f"request {request.request_id!r}: rollout/engine=hf takes no forced_tokens and no forced_depths"
        for request in requests
        if request.forced_tokens is not None or request.forced_depths is not None
    ]
    common = ("max_new_tokens", "temperature", "top_k", "top_p", "stop_token_ids", "ignore_eos")
    found = {name: {getattr(request, name) for request in requests} for name in common}
    problems += [
        f"{name} is {sorted(values)}: rollout/engine=hf has one for all requests"
        for name, values in found.items()
        if len(values) > 1
    ]
    if problems:
        raise UserError("\n".join(problems))


def _left_padded(prompts: Sequence[Sequence[int]], device: torch.device) -> tuple[Tensor, Tensor]:
    """Token ids and what of them is no padding, both [B, T]."""
    longest = max(map(len, prompts))
    rows = [[0] * (longest - len(prompt)) + list(prompt) for prompt in prompts]
    masks = [[0] * (longest - len(prompt)) + [1] * len(prompt) for prompt in prompts]
    return torch.tensor(rows, device=device), torch.tensor(masks, device=device)


def _logprobs(logits: Tensor, tokens: Tensor) -> Tensor:
    """Of tokens [B, T] under logits [B, T, V], in the internal dtype."""
    normed = logits.to(internal_dtype(logits.dtype)).log_softmax(-1)
    return normed.gather(-1, tokens[..., None]).squeeze(-1)


def _cut(tokens: list[int], stops: frozenset[int]) -> tuple[tuple[int, ...], FinishReason]:
    """A row up to the token that stops it; behind that stands padding."""
    end = next((place for place, token in enumerate(tokens) if token in stops), None)
    return (tuple(tokens), "length") if end is None else (tuple(tokens[: end + 1]), "stop")


def _finite(logprobs: Tensor, request: Request) -> tuple[float, ...]:
    if not bool(torch.isfinite(logprobs).all()):
        raise FloatingPointError(f"request {request.request_id!r}: the model's logits are not finite")
    return tuple(logprobs.tolist())


def _count(
    stats: RolloutStats, loops: int, prompts: Sequence[Sequence[int]], generated: Sequence[int], steps: int
) -> None:
    """Adds the work of a batch, counted from the lengths."""
    lengths, longest = [len(prompt) for prompt in prompts], max(map(len, prompts))
    decoded = sum(generated) - len(prompts)
    stats.generated_tokens += sum(generated)
    stats.prompt_tokens += sum(lengths)
    stats.padded_tokens += sum(longest - length for length in lengths)
    stats.padded_rows += loops * (len(prompts) * (steps - 1) - decoded)
    stats.recurrent_rows += loops * (sum(lengths) + decoded)
    stats.executed_depth_sum += loops * sum(generated)
    stats.decode_depths += Counter({loops: decoded})
    stats.prefill_calls += 1
    stats.decode_steps += steps - 1
    stats.readouts += steps
    stats.loop_runs += loops * steps
    pairs = zip(lengths, generated, strict=True)
    stats.kv_rows_read += loops * sum(length + sum(range(length + 1, length + count)) for length, count in pairs)
    stats.kv_rows_written += loops * (sum(lengths) + decoded)
