"""The native engine: dense and deferred rollout of a looped model, batched at the granularity of tokens."""

import math
import secrets
from collections import Counter, deque
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Literal

import torch
from torch import Tensor

from scalerlt.errors import UserError
from scalerlt.models.ouro import OuroForCausalLM
from scalerlt.numerics.precision import internal_dtype
from scalerlt.rollout.exit_rule import ExitRule
from scalerlt.rollout.kv_cache import KVCache
from scalerlt.rollout.recurrence import run_loops
from scalerlt.rollout.request import Request, Response, check_requests
from scalerlt.rollout.sampling import greedy, raw_logprobs, sample, uniforms
from scalerlt.rollout.sequence import ActiveSequence

Phase = Literal["prefill", "decode"]
OnPhase = Callable[[Phase], AbstractContextManager[object]]


@dataclass(kw_only=True)
class RolloutStats:
    """What one `generate` did; it holds no time.

    Attributes:
        generated_tokens: response tokens returned, stop tokens included.
        prompt_tokens: prompt tokens processed.
        shared_prompt_tokens: those that were not, since another request admitted with theirs has the same prompt.
        padded_tokens: rows of prefill batches that held no token; counted nowhere else.
        recurrent_rows: tokens run through one loop, summed over loops: of the prompts, and of every generated token
            that was fed back.
        executed_depth_sum: over generated tokens, the loops that ran before each was read out.
        decode_depths: how many tokens were read out at which depth; without the first token of each response, which is
            always read out at full depth.
        prefill_calls: prefill batches.
        decode_steps: decode batches.
        peak_active: most sequences in flight at once.
        kv_cache_bytes: size of the preallocated K/V pool.
        loop_runs: batched runs of a loop; each reads the weights of the layers once.
        gate_runs: loops after which the exit gate was asked.
        kv_rows_read: K/V of one token in one loop, all layers, that attention or a copy read; see `RolloutTraffic`.
        kv_rows_written: those that were written.
    """

    generated_tokens: int = 0
    prompt_tokens: int = 0
    shared_prompt_tokens: int = 0
    padded_tokens: int = 0
    recurrent_rows: int = 0
    executed_depth_sum: int = 0
    decode_depths: Counter[int] = field(default_factory=Counter)
    prefill_calls: int = 0
    decode_steps: int = 0
    peak_active: int = 0
    kv_cache_bytes: int = 0
    loop_runs: int = 0
    gate_runs: int = 0
    kv_rows_read: int = 0
    kv_rows_written: int = 0

    @property
    def mean_executed_depth(self) -> float:
        """Mean number of loops behind a generated token; NaN if none was generated."""
        return self.executed_depth_sum / self.generated_tokens if self.generated_tokens else math.nan


@dataclass(frozen=True)
class RolloutResult:
    """The responses, in the order of the requests, and what was done for them."""

    responses: list[Response]
    stats: RolloutStats


def random_seed() -> int:
    """A seed that nobody can know beforehand, in 0 .. 2^63 - 1."""
    return secrets.randbits(63)


class NativeEngine:
    """Generates with the model as it is at the time; nothing is kept between two calls of `generate`.

    Prompts run all K loops; decode tokens too, unless an exit rule or the request's `forced_depths` stops them earlier
    (schedule `last_exited`, see `run_loops`). Log-probs, depths and tokens of a request do not depend on the other
    requests, on their order or on `concurrency`, up to rounding.

    Args:
        model: whose parameters are read, never changed.
        concurrency: most sequences in flight, the slots of the K/V pool.
        on_phase: called with `prefill` or `decode` around each model call with its sampling, so that a caller may
            measure; returns a context manager.
        exit_rule: when decode tokens stop; None: never early.
        shared_prefill: whether a prompt of several requests that are admitted together is run once for all of them.
        draw_seed: gives a seed in 0 .. 2^63 - 1 to each request without one.

    Attributes:
        weight_version: version of the model's weights, reported with every token.
        blocked: why the weights may not be used, or None. Like the version it is set by whoever changes the weights.
        generating: whether `generate` is running, so that the weights may not change.
    """

    def __init__(
        self,
        model: OuroForCausalLM,
        *,
        concurrency: int,
        on_phase: OnPhase | None = None,
        exit_rule: ExitRule | None = None,
        shared_prefill: bool = False,
        draw_seed: Callable[[], int] = random_seed,
    ) -> None:
        if concurrency < 1:
            raise UserError(f"rollout concurrency is {concurrency}, it has to be at least 1")
        if exit_rule is not None:
            exit_rule.check(model.config)
        self.model = model
        self.concurrency = concurrency
        self.on_phase: OnPhase = on_phase or (lambda phase: nullcontext())
        self.exit_rule = exit_rule
        self.shared_prefill = shared_prefill
        self.draw_seed = draw_seed
        self.weight_version = 0
        self.blocked: str | None = None
        self.generating = False

    def generate(self, requests: Sequence[Request]) -> RolloutResult:
        """Answers all requests.

        Raises:
            UserError: naming all that is wrong with the requests, before anything runs; or the engine is blocked.
            FloatingPointError: the model's logits are not finite, with the request and the position.
        """
        if self.blocked is not None:
            raise UserError(self.blocked)
        check_requests(requests, self.model.config)
        self.generating = True
        try:
            with torch.inference_mode():
                return _Generation(self, requests).run()
        finally:
            self.generating = False


class _Generation:
    """The state of one `generate`: a queue, and slots of which 0 .. n-1 are always the active ones."""

    def __init__(self, engine: NativeEngine, requests: Sequence[Request]) -> None:
        model = engine.model
        self.model = model
        self.on_phase = engine.on_phase
        self.concurrency = engine.concurrency
        self.exit_rule = engine.exit_rule
        self.shared_prefill = engine.shared_prefill
        self.weight_version = engine.weight_version
        self.queue = deque(
            ActiveSequence(
                index,
                request,
                engine.draw_seed() if request.seed is None else request.seed,
                request.stops(model.config),
            )
            for index, request in enumerate(requests)
        )
        self.responses: dict[int, Response] = {}
        # The last token is never fed back, so it needs no K/V.
        capacity = max((len(r.prompt_tokens) + r.max_new_tokens - 1 for r in requests), default=0)
        self.cache = KVCache(
            model.config, slots=self.concurrency, capacity=capacity, dtype=model.dtype, device=model.device
        )
        self.stats = RolloutStats(kv_cache_bytes=self.cache.nbytes)
        self.active: list[ActiveSequence] = []
        self.tokens = torch.zeros(self.concurrency, dtype=torch.int64, device=model.device)
        self.positions = torch.zeros_like(self.tokens)
        self.seeds = torch.zeros_like(self.tokens)
        self.temperatures = torch.zeros_like(self.tokens, dtype=internal_dtype(model.dtype))
        self.top_k = torch.zeros_like(self.tokens)
        self.top_p = torch.ones_like(self.tokens, dtype=torch.float64)
        self.slot_state = (self.tokens, self.positions, self.seeds, self.temperatures, self.top_k, self.top_p)

    def run(self) -> RolloutResult:
        while self.queue or self.active:
            if self.queue and len(self.active) < self.concurrency:
                with self.on_phase("prefill"):
                    self.prefill()
            else:
                with self.on_phase("decode"):
                    self.decode()
            self.retire()
        return RolloutResult([self.responses[index] for index in sorted(self.responses)], self.stats)

    def prefill(self) -> None:
        """Admits as many requests as there are free slots, runs their prompts and draws their first tokens."""
        first = len(self.active)
        count = min(len(self.queue), self.concurrency - first)
        admitted = [self.queue.popleft() for _ in range(count)]
        self.active += admitted
        slots = slice(first, first + count)
        device = self.model.device
        lengths = [len(s.request.prompt_tokens) for s in admitted]
        self.positions[slots] = torch.tensor(lengths, device=device) - 1
        self.seeds[slots] = torch.tensor([s.seed for s in admitted], device=device)
        # Without the dtype, torch.tensor would round a temperature such as 0.6 to fp32 on its way to fp64.
        self.temperatures[slots] = torch.tensor(
            [s.request.temperature for s in admitted], dtype=self.temperatures.dtype, device=device
        )
        self.top_k[slots] = torch.tensor([s.request.top_k for s in admitted], device=device)
        self.top_p[slots] = torch.tensor([s.request.top_p for s in admitted], dtype=torch.float64, device=device)
        rows = self._rows_of(admitted)
        leaders = [rows.index(row) for row in range(1 + max(rows))]
        hidden = self._run_prompts([admitted[place] for place in leaders], [first + place for place in leaders])
        for row, leader in enumerate(leaders):
            followers = [first + place for place in range(count) if rows[place] == row and place != leader]
            self._copy_prompt(first + leader, followers, lengths[leader])
        full_depth = self.model.config.total_ut_steps
        self._draw(slots, hidden[torch.tensor(rows, device=device)], [full_depth] * count)

    def _rows_of(self, admitted: Sequence[ActiveSequence]) -> list[int]:
        """For each sequence the row of the prefill batch in which its prompt runs."""
        if not self.shared_prefill:
            return list(range(len(admitted)))
        rows: dict[tuple[int, ...], int] = {}
        return [rows.setdefault(s.request.prompt_tokens, len(rows)) for s in admitted]

    def _run_prompts(self, sequences: Sequence[ActiveSequence], slots: list[int]) -> Tensor:
        """The last hidden states of prompts [n, H]; their K/V go into the slots."""
        prompts = [s.request.prompt_tokens for s in sequences]
        lengths = [len(prompt) for prompt in prompts]
        width, device = max(lengths), self.model.device
        input_ids = torch.tensor([[*prompt, *(0,) * (width - len(prompt))] for prompt in prompts], device=device)
        hidden = self.model(input_ids, attend=self.cache.prefill(slots, lengths))[-1]
        full_depth = self.model.config.total_ut_steps
        self.stats.prefill_calls += 1
        self.stats.prompt_tokens += sum(lengths)
        self.stats.padded_tokens += len(lengths) * width - sum(lengths)
        self.stats.recurrent_rows += full_depth * sum(lengths)
        self.stats.loop_runs += full_depth
        self.stats.kv_rows_read += full_depth * sum(lengths)
        self.stats.kv_rows_written += full_depth * sum(lengths)
        return hidden[torch.arange(len(lengths), device=device), torch.tensor(lengths, device=device) - 1]

    def _copy_prompt(self, source: int, targets: list[int], length: int) -> None:
        """Gives other slots the K/V of the first `length` positions of a slot."""
        if not targets:
            return
        self.cache.copy(source, targets, length)
        copied = self.model.config.total_ut_steps * length
        self.stats.shared_prompt_tokens += len(targets) * length
        self.stats.kv_rows_read += copied
        self.stats.kv_rows_written += len(targets) * copied

    def decode(self) -> None:
        """Feeds the newest token of every active sequence and draws the next."""
        slots = slice(0, len(self.active))
        positions = [s.length for s in self.active]
        forced_depths = [s.forced_depth for s in self.active]
        hidden, depths = run_loops(
            self.model,
            self.cache,
            self.tokens[slots],
            self.positions[slots],
            used=1 + max(positions),
            rule=self.exit_rule,
            forced_depths=forced_depths,
        )
        self.stats.decode_steps += 1
        self.stats.decode_depths.update(depths)
        self.stats.recurrent_rows += sum(depths)
        self.stats.loop_runs += max(depths)
        if self.exit_rule is not None and self.exit_rule.asks_gate and None in forced_depths:
            self.stats.gate_runs += max(depths)
        full_depth = self.model.config.total_ut_steps
        for position, depth in zip(positions, depths, strict=True):
            # A token that stopped early is read once more, for the copies in the deeper loops.
            self.stats.kv_rows_read += depth * (position + 1) + (depth < full_depth)
            self.stats.kv_rows_written += full_depth
        self._draw(slots, hidden, depths)

    def _draw(self, slots: slice, hidden: Tensor, depths: list[int]) -> None:
        """Gives each sequence in `slots` its next token, from the hidden state that it is read out from."""
        logits = self.model.logits(hidden)
        self.positions[slots] += 1
        sequences = self.active[slots]
        temperatures = {s.request.temperature for s in sequences}
        forced = [s.forced_token for s in sequences]
        truncates = any(s.request.truncates for s in sequences)
        if temperatures == {0} and all(token is None for token in forced):
            tokens, logprobs = greedy(logits)
        else:
            uniform = uniforms(self.seeds[slots], self.positions[slots])
            given = torch.tensor([-1 if token is None else token for token in forced], device=logits.device)
            truncation = (self.top_k[slots], self.top_p[slots]) if truncates else None
            tokens, logprobs = sample(logits, self.temperatures[slots], uniform, given, truncation)
        raw = logprobs if temperatures <= {0, 1} and not truncates else raw_logprobs(logits, tokens)
        self.tokens[slots] = tokens
        for sequence, *drawn in zip(sequences, tokens.tolist(), logprobs.tolist(), raw.tolist(), depths, strict=True):
            sequence.append(*drawn)
        self.stats.peak_active = max(self.stats.peak_active, len(self.active))
        self.stats.generated_tokens += len(sequences)
        self.stats.executed_depth_sum += sum(depths)

    def retire(self) -> None:
        """Takes finished sequences out; the last active one moves into each slot that becomes free."""
        for slot in reversed(range(len(self.active))):
            sequence = self.active[slot]
            reason = sequence.finish_reason
            if reason is None:
                continue
            self.responses[sequence.index] = Response(
                request_id=sequence.request.request_id,
                tokens=tuple(sequence.tokens),
                logprobs=tuple(sequence.logprobs),
                raw_logprobs=tuple(sequence.raw_logprobs),
                exit_depths=tuple(sequence.depths),
                weight_versions=(self.weight_version,) * len(sequence.tokens),
                finish_reason=reason,
                seed=sequence.seed,
            )
            moved = self.active.pop()
            if moved is not sequence:
                source = len(self.active)
                self.active[slot] = moved
                self.cache.copy(source, [slot], moved.length)
                self.stats.kv_rows_read += self.model.config.total_ut_steps * moved.length
                self.stats.kv_rows_written += self.model.config.total_ut_steps * moved.length
                for state in self.slot_state:
                    state[slot] = state[source]
