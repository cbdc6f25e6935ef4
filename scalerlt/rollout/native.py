"""The native engine: every rollout schedule of a looped model, batched at the granularity of loops."""

from collections import deque
from collections.abc import Callable, Sequence
from contextlib import nullcontext

import torch
from torch import Tensor
from torch.nn import functional

from scalerlt.errors import UserError
from scalerlt.models.ouro import OuroForCausalLM
from scalerlt.numerics.precision import internal_dtype
from scalerlt.rollout.captured import captured_loop
from scalerlt.rollout.engine import OnPhase, random_seed
from scalerlt.rollout.exit_rule import ExitRule
from scalerlt.rollout.kv_cache import KVCache
from scalerlt.rollout.recurrence import FIXED_ROWS, Recurrence, SkippedKV
from scalerlt.rollout.request import Request, Response, check_requests
from scalerlt.rollout.sampling import greedy, raw_logprobs, sample
from scalerlt.rollout.sequence import ActiveSequence
from scalerlt.rollout.stats import RolloutResult, RolloutStats

SLOW_ROWS = range(10, 16)
"""On a CPU in fp32, a large output head takes longer for so many rows than for 16: 2.2 against 1.4 ms for 14 rows, a
hidden size of 512 and a vocabulary of 4,096 that is not in the caches (MKL 2024.2, AVX-512)."""
LARGE_HEAD = 2**21
"""Parameters from which on that pays."""


class NativeEngine:
    """Generates with the model as it is at the time; nothing is kept between two calls of `generate`.

    Prompts run all K loops; decode tokens too, unless an exit rule or the request's `forced_depths` stops them earlier.
    Which token is drawn depends on its request's seed and its position. Log-probs, depths and tokens of a request do
    not depend on the other requests, on their order or on `concurrency`: up to rounding, or with `deterministic` to the
    bit (on one device, with one build of torch and one number of threads).

    Args:
        model: whose parameters are read, never changed.
        concurrency: most sequences in flight, the slots of the K/V pool.
        on_phase: called with `prefill` or `decode` around each model call with its sampling, so that a caller may
            measure; returns a context manager.
        on_first_token: called with a request when its first token has been drawn.
        exit_rule: when decode tokens stop; None: never early.
        kv: what later tokens read in place of the K/V of loops that a token left out.
        refill: a token that stops is read out at once, and the next token, of its sequence or of a new request, takes
            its place beside tokens at other loops; otherwise tokens start together, and those that stop early wait for
            the others.
        shared_prefill: whether a prompt of several requests that are admitted together is run once for all of them.
        deterministic: run batches of a fixed number of rows, attention over fixed blocks of keys, and each prompt by
            itself.
        kv_cache_tokens: positions for which the pool may hold K/V; None: as many as `concurrency` sequences need. A
            request is admitted when all the positions that it may need are free, so that none fails halfway.
        captured_graphs: run the loops of decode tokens as captured CUDA graphs (`rollout.captured`).
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
        on_first_token: Callable[[Request], None] | None = None,
        exit_rule: ExitRule | None = None,
        kv: SkippedKV = "last_exited",
        refill: bool = True,
        shared_prefill: bool = False,
        deterministic: bool = False,
        kv_cache_tokens: int | None = None,
        captured_graphs: bool = False,
        draw_seed: Callable[[], int] = random_seed,
    ) -> None:
        if concurrency < 1:
            raise UserError(f"rollout concurrency is {concurrency}, it has to be at least 1")
        if exit_rule is not None:
            exit_rule.check(model.config)
        self.model = model
        self.concurrency = concurrency
        self.on_phase: OnPhase = on_phase or (lambda phase: nullcontext())
        self.on_first_token = on_first_token or (lambda request: None)
        self.exit_rule = exit_rule
        self.kv: SkippedKV = kv
        self.refill = refill
        self.shared_prefill = shared_prefill
        self.deterministic = deterministic
        self.kv_cache_tokens = kv_cache_tokens
        self.captured_graphs = captured_graphs
        self.draw_seed = draw_seed
        self.weight_version = 0
        self.blocked: str | None = None
        self.generating = False

    def generate(self, requests: Sequence[Request]) -> RolloutResult:
        """Answers all requests.

        Raises:
            UserError: naming all that is wrong with the requests, before anything runs; the longest needs more
                positions than `kv_cache_tokens`; or the engine is blocked.
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

    def take_weights(self) -> int:
        """Nothing: the model's tensors are read where they are."""
        return 0


class _Generation:
    """The state of one `generate`: a queue, and slots of which some hold active sequences."""

    def __init__(self, engine: NativeEngine, requests: Sequence[Request]) -> None:
        self.engine = engine
        self.model = model = engine.model
        self.full_depth = model.config.total_ut_steps
        self.queue = deque(
            ActiveSequence(
                index,
                request,
                engine.draw_seed() if request.seed is None else request.seed,
                request.stops(model.config),
            )
            for index, request in enumerate(requests)
        )
        # The last token is never fed back, so it needs no K/V.
        capacity = max((len(r.prompt_tokens) + r.max_new_tokens - 1 for r in requests), default=0)
        self.slots = _slots(engine, capacity)
        self.cache = KVCache(
            model.config,
            slots=self.slots,
            capacity=capacity,
            dtype=model.dtype,
            device=model.device,
            shared=engine.kv == "shared_kv",
            key_blocks=engine.deterministic,
        )
        self.stats = RolloutStats(kv_cache_bytes=self.cache.nbytes)
        self.recurrence = Recurrence(
            model,
            self.cache,
            slots=self.slots,
            capacity=capacity,
            rule=engine.exit_rule,
            kv=engine.kv,
            fixed_rows=FIXED_ROWS if engine.deterministic else None,
            stats=self.stats,
            loop=captured_loop(model) if engine.captured_graphs else None,
        )
        large = model.lm_head.weight.numel() >= LARGE_HEAD
        self.fills_readouts = large and model.device.type == "cpu" and model.dtype == torch.float32
        self.active: dict[int, ActiveSequence] = {}  # by slot
        self.stopped: dict[int, int] = {}  # tokens that wait for their readout: slot and depth
        self.responses: dict[int, Response] = {}

    def run(self) -> RolloutResult:
        while self.queue or self.active:
            admits = self.queue and len(self.active) < self.slots
            if admits and (self.engine.refill or not self.recurrence.in_flight):
                with self.engine.on_phase("prefill"):
                    self.prefill()
            else:
                with self.engine.on_phase("decode"):
                    self.decode()
        return RolloutResult([self.responses[index] for index in sorted(self.responses)], self.stats)

    def prefill(self) -> None:
        """Admits as many requests as there are free slots, runs their prompts and draws their first tokens."""
        free = [slot for slot in range(self.slots) if slot not in self.active]
        slots = free[: len(self.queue)]
        admitted = [self.queue.popleft() for _ in slots]
        self.active |= zip(slots, admitted, strict=True)
        rows = self._rows_of(admitted)
        leaders = [rows.index(row) for row in range(1 + max(rows))]
        batches = [[place] for place in leaders] if self.engine.deterministic else [leaders]
        states = [self._run_prompts([admitted[p] for p in batch], [slots[p] for p in batch]) for batch in batches]
        for row, leader in enumerate(leaders):
            followers = [slot for place, slot in enumerate(slots) if rows[place] == row and place != leader]
            self._copy_prompt(slots[leader], followers, len(admitted[leader].request.prompt_tokens))
        hidden = torch.cat(states)[torch.tensor(rows, device=self.model.device)]
        self._draw(slots, hidden, [self.full_depth] * len(slots))
        for sequence in admitted:
            self.engine.on_first_token(sequence.request)
        self._retire()

    def _rows_of(self, admitted: Sequence[ActiveSequence]) -> list[int]:
        """For each sequence the row of the prefill batch in which its prompt runs."""
        if not self.engine.shared_prefill:
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
        self.stats.prefill_calls += 1
        self.stats.prompt_tokens += sum(lengths)
        self.stats.padded_tokens += len(lengths) * width - sum(lengths)
        self.stats.recurrent_rows += self.full_depth * sum(lengths)
        self.stats.loop_runs += self.full_depth
        self.stats.kv_rows_read += self.full_depth * sum(lengths)
        self.stats.kv_rows_written += self.cache.planes * sum(lengths)
        return hidden[torch.arange(len(lengths), device=device), torch.tensor(lengths, device=device) - 1]

    def _copy_prompt(self, source: int, targets: list[int], length: int) -> None:
        """Gives other slots the K/V of the first `length` positions of a slot."""
        if not targets:
            return
        self.cache.copy(source, targets, length)
        self.stats.shared_prompt_tokens += len(targets) * length
        self.stats.kv_rows_read += self.cache.planes * length
        self.stats.kv_rows_written += len(targets) * self.cache.planes * length

    def decode(self) -> None:
        """Runs one loop of every token in flight; draws the next token of sequences whose token has stopped."""
        slots = sorted(self.active)
        if fresh := [slot for slot in slots if not self.recurrence.has(slot)]:
            sequences = [self.active[slot] for slot in fresh]
            self.recurrence.begin(
                fresh,
                [s.tokens[-1] for s in sequences],
                [s.length for s in sequences],
                [s.forced_depth for s in sequences],
            )
        self.stopped |= self.recurrence.run_loop([slot for slot in slots if slot not in self.stopped])
        if self.stopped and (self.engine.refill or len(self.stopped) == len(self.active)):
            slots = sorted(self.stopped)
            depths = [self.stopped[slot] for slot in slots]
            self.stopped = {}
            self.stats.decode_steps += 1
            self.stats.decode_depths.update(depths)
            self._draw(slots, self.recurrence.take(slots), depths)
            self._retire()

    def _draw(self, slots: list[int], hidden: Tensor, depths: list[int]) -> None:
        """Gives each sequence in `slots` its next token, from the hidden state [n, H] that it is read out from."""
        sequences = [self.active[slot] for slot in slots]
        for batch in self.recurrence.batches(range(len(slots))):
            picked = torch.tensor(list(batch), device=hidden.device)
            drawn = self._drawn([sequences[place] for place in batch], hidden[picked])
            # What fills the batch up stands behind its first rows and repeats one of them.
            for place, (token, logprob, raw) in zip(dict.fromkeys(batch), drawn, strict=False):
                sequences[place].append(token, logprob, raw, depths[place])
            self.stats.readouts += 1
        self.stats.peak_active = max(self.stats.peak_active, len(self.active))
        self.stats.generated_tokens += len(slots)
        self.stats.executed_depth_sum += sum(depths)

    def _drawn(self, sequences: Sequence[ActiveSequence], hidden: Tensor) -> list[tuple[int, float, float]]:
        """The next token of each sequence, its log-prob in the distribution drawn from, and its raw log-prob."""
        logits, device = self._logits(hidden), hidden.device
        requests = [s.request for s in sequences]
        temperatures = {request.temperature for request in requests}
        forced = [s.forced_token for s in sequences]
        truncation = _truncation(requests, device)
        if temperatures == {0} and all(token is None for token in forced):
            tokens, logprobs = greedy(logits)
        else:
            uniform = torch.tensor([s.next_uniform for s in sequences], dtype=torch.float64, device=device)
            # Without the dtype, torch.tensor would round a temperature such as 0.6 to fp32 on its way to fp64.
            by_row = torch.tensor(
                [request.temperature for request in requests], dtype=internal_dtype(logits.dtype), device=device
            )
            given = None
            if any(token is not None for token in forced):
                given = torch.tensor([-1 if token is None else token for token in forced], device=device)
            tokens, logprobs = sample(logits, by_row, uniform, given, truncation, some_greedy=0 in temperatures)
        raw = logprobs if temperatures <= {0, 1} and truncation is None else raw_logprobs(logits, tokens)
        return list(zip(tokens.tolist(), logprobs.tolist(), raw.tolist(), strict=True))

    def _logits(self, hidden: Tensor) -> Tensor:
        rows = len(hidden)
        if self.fills_readouts and rows in SLOW_ROWS:
            return self.model.logits(functional.pad(hidden, (0, 0, 0, SLOW_ROWS.stop - rows)))[:rows]
        return self.model.logits(hidden)

    def _retire(self) -> None:
        """Takes finished sequences out."""
        ended = False
        for slot, sequence in sorted(self.active.items()):
            reason = sequence.finish_reason
            if reason is None:
                continue
            self.responses[sequence.index] = Response(
                request_id=sequence.request.request_id,
                tokens=tuple(sequence.tokens),
                logprobs=tuple(sequence.logprobs),
                raw_logprobs=tuple(sequence.raw_logprobs),
                exit_depths=tuple(sequence.depths),
                weight_versions=(self.engine.weight_version,) * len(sequence.tokens),
                finish_reason=reason,
                seed=sequence.seed,
            )
            self.recurrence.clear(slot)
            del self.active[slot]
            ended = True
        if ended:
            self._close_gaps()

    def _close_gaps(self) -> None:
        """Moves the last sequences to free slots that no request waits for, where neighbours are read more quickly."""
        free = [slot for slot in range(self.slots) if slot not in self.active]
        for slot in free[len(self.queue) :]:
            source = max(self.active, default=0)
            if source <= slot or self.cache.reads_in_place(self.active[source].length):
                break
            moved = self.active[slot] = self.active.pop(source)
            # A token in flight has written at its own position in the loops that it has run.
            positions = moved.length + self.recurrence.has(source)
            self.cache.copy(source, [slot], positions)
            self.recurrence.move(source, slot)
            self.stats.kv_rows_read += self.cache.planes * positions
            self.stats.kv_rows_written += self.cache.planes * positions


def _slots(engine: NativeEngine, capacity: int) -> int:
    """How many sequences of up to `capacity` positions may be in flight."""
    if engine.kv_cache_tokens is None or not capacity:
        return engine.concurrency
    if engine.kv_cache_tokens < capacity:
        raise UserError(
            f"kv_cache_tokens is {engine.kv_cache_tokens}, and a request may need {capacity} positions (prompt and "
            "max_new_tokens, without the last): give at least so many"
        )
    return min(engine.concurrency, engine.kv_cache_tokens // capacity)


def _truncation(requests: Sequence[Request], device: torch.device) -> tuple[Tensor, Tensor] | None:
    """top_k and top_p of each request, or None if none truncates."""
    if not any(request.truncates for request in requests):
        return None
    top_k = torch.tensor([request.top_k for request in requests], device=device)
    return top_k, torch.tensor([request.top_p for request in requests], dtype=torch.float64, device=device)
