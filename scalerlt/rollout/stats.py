"""What a rollout did, counted."""

import math
from collections import Counter
from dataclasses import dataclass, field

from scalerlt.rollout.request import Response


@dataclass(kw_only=True)
class RolloutStats:
    """What one `generate` did; it holds no time.

    Attributes:
        generated_tokens: response tokens returned, stop tokens included.
        prompt_tokens: prompt tokens processed.
        shared_prompt_tokens: those that were not, since another request admitted with theirs has the same prompt.
        padded_tokens: rows of prefill batches that held no token; counted nowhere else.
        padded_rows: rows of decode batches that held no token, one for each loop; counted nowhere else.
        recurrent_rows: tokens run through one loop, summed over loops: of the prompts, and of every generated token
            that was fed back.
        filled_rows: those of them that ran after their token had been read out (`deferred_fill`).
        executed_depth_sum: over generated tokens, the loops that ran before each was read out.
        decode_depths: how many tokens were read out at which depth; without the first token of each response, which is
            always read out at full depth.
        prefill_calls: prefill batches.
        decode_steps: batches of tokens that were read out in decoding.
        mixed_tokens: tokens decoded in batches that held prompts as well (vLLM's steps), part of the time of prefill.
        readouts: runs of the output head, of prefill and decoding.
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
    padded_rows: int = 0
    recurrent_rows: int = 0
    filled_rows: int = 0
    executed_depth_sum: int = 0
    decode_depths: Counter[int] = field(default_factory=Counter)
    prefill_calls: int = 0
    decode_steps: int = 0
    mixed_tokens: int = 0
    readouts: int = 0
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
