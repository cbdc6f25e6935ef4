"""One batch of requests, answered by vLLM step by step."""

import math
from collections import Counter, deque
from collections.abc import Callable, Generator, Sequence
from contextlib import closing, nullcontext
from dataclasses import dataclass, field
from typing import Any

from scalerlt.models.config import OuroConfig
from scalerlt.rollout.engine import OnPhase, Phase
from scalerlt.rollout.request import FinishReason, Request
from scalerlt.rollout.stats import RolloutStats


@dataclass
class Answer:
    """What one request has been given so far.

    Attributes:
        cached: prompt tokens whose K/V another request had left.
    """

    tokens: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    raw_logprobs: list[float] = field(default_factory=list)
    finish_reason: FinishReason = "length"
    cached: int = 0


class Generation:
    """Requests, and what vLLM answers them.

    Args:
        vllm: vLLM's `LLMEngine`, idle, with log-probs of the distribution that is drawn from.
        config: of the model that it runs.
        requests: checked.
        seeds: one for each.

    Attributes:
        answers: in the order of the requests.
    """

    def __init__(self, vllm: Any, config: OuroConfig, requests: Sequence[Request], seeds: Sequence[int]) -> None:
        self.answers = [Answer() for _ in requests]
        self._vllm, self._config, self._requests, self._seeds = vllm, config, requests, seeds
        self._steps: Counter[Phase] = Counter()
        self._mixed = 0
        self._peak = 0

    def run(self, slots: int, on_phase: OnPhase, on_first_token: Callable[[Request], None]) -> None:
        """Answer all requests, at most `slots` of them in flight."""
        from vllm import SamplingParams
        from vllm.sampling_params import RequestOutputKind

        parameters = [
            SamplingParams(
                temperature=request.temperature,
                top_k=request.top_k,
                top_p=request.top_p,
                seed=seed,
                max_tokens=request.max_new_tokens,
                stop_token_ids=sorted(request.stops(self._config)),
                ignore_eos=True,  # the model's eos is among the tokens that stop, where it does
                logprobs=0,  # of the drawn token alone
                detokenize=False,
                output_kind=RequestOutputKind.DELTA,
            )
            for request, seed in zip(self._requests, self._seeds, strict=True)
        ]
        prompts = [request.prompt_tokens for request in self._requests]
        with closing(self._outputs(prompts, parameters, slots, on_phase)) as outputs:
            for index, output in outputs:
                first = not self.answers[index].tokens
                self._take(index, output)
                if first:
                    on_first_token(self._requests[index])

    def evaluate_raw(self, slots: int) -> None:
        """Fill in the log-probs under the unscaled logits.

        vLLM gives log-probs of one kind. Where the two differ, it runs the finished sequences once more as prompts,
        whose log-probs are always unscaled; the last token's come of a step that draws at temperature 1.
        """
        from vllm import SamplingParams

        for answer in self.answers:
            answer.raw_logprobs = answer.logprobs
        scaled = [
            index
            for index, request in enumerate(self._requests)
            if request.temperature not in (0, 1) or request.truncates
        ]
        prompts = [(*self._requests[index].prompt_tokens, *self.answers[index].tokens[:-1]) for index in scaled]
        parameters = [
            SamplingParams(
                temperature=1.0,
                seed=0,
                max_tokens=1,
                ignore_eos=True,
                prompt_logprobs=0,
                logprobs=1,
                logprob_token_ids=[self.answers[index].tokens[-1]],
                detokenize=False,
            )
            for index in scaled
        ]
        with closing(self._outputs(prompts, parameters, slots, lambda phase: nullcontext(), counted=False)) as outputs:
            for place, output in outputs:
                index = scaled[place]
                answer, prompt = self.answers[index], self._requests[index].prompt_tokens
                positions = [*output.prompt_logprobs[len(prompt) :], output.outputs[0].logprobs[0]]
                answer.raw_logprobs = [
                    position[token].logprob for token, position in zip(answer.tokens, positions, strict=True)
                ]

    def _outputs(
        self,
        prompts: Sequence[Sequence[int]],
        parameters: Sequence[Any],
        slots: int,
        on_phase: OnPhase,
        *,
        counted: bool = True,
    ) -> Generator[tuple[int, Any], None, None]:
        """vLLM's outputs as they come, each with the index of its prompt. What is unfinished when it is closed is given
        up."""
        waiting, in_flight, begun = deque(range(len(prompts))), set[int](), set[int]()
        try:
            while waiting or in_flight:
                while waiting and len(in_flight) < slots:
                    index = waiting.popleft()
                    in_flight.add(index)
                    self._vllm.add_request(str(index), {"prompt_token_ids": list(prompts[index])}, parameters[index])
                phase: Phase = "prefill" if in_flight - begun else "decode"
                with on_phase(phase):
                    outputs = self._vllm.step()
                if counted:
                    self._steps[phase] += 1
                    self._peak = max(self._peak, len(in_flight))
                    if phase == "prefill":
                        self._mixed += sum(int(output.request_id) in begun for output in outputs)
                for output in outputs:
                    index = int(output.request_id)
                    begun.add(index)
                    if output.finished:
                        in_flight.discard(index)
                    yield index, output
        finally:
            self._vllm.abort_request([str(index) for index in in_flight])

    def _take(self, index: int, output: Any) -> None:
        request, answer, completion = self._requests[index], self.answers[index], output.outputs[0]
        answer.cached = output.num_cached_tokens or 0
        for token, position in zip(completion.token_ids, completion.logprobs, strict=True):
            logprob = position[token].logprob
            if not math.isfinite(logprob):
                raise FloatingPointError(
                    f"request {request.request_id!r}: the model's logits for position "
                    f"{len(request.prompt_tokens) + len(answer.tokens)} are not finite"
                )
            answer.tokens.append(token)
            answer.logprobs.append(logprob)
        if output.finished:
            if completion.finish_reason not in ("stop", "length"):
                raise RuntimeError(f"request {request.request_id!r}: vLLM ended it with {completion.finish_reason!r}")
            answer.finish_reason = completion.finish_reason

    def stats(self, kv_cache_bytes: int) -> RolloutStats:
        """What was done, counted from the lengths: at full depth they say it all."""
        loops = self._config.total_ut_steps
        pairs = [(len(one.prompt_tokens), answer) for one, answer in zip(self._requests, self.answers, strict=True)]
        generated = sum(len(answer.tokens) for _, answer in pairs)
        run = sum(prompt - answer.cached for prompt, answer in pairs)
        decoded = generated - len(pairs)
        # A prompt's K/V are read once; a token at position p reads p + 1.
        read = sum(prompt + sum(range(prompt + 1, prompt + len(answer.tokens))) for prompt, answer in pairs)
        steps = self._steps.total()
        return RolloutStats(
            generated_tokens=generated,
            prompt_tokens=run,
            shared_prompt_tokens=sum(answer.cached for _, answer in pairs),
            recurrent_rows=loops * (run + decoded),
            executed_depth_sum=loops * generated,
            decode_depths=Counter({loops: decoded} if decoded else {}),
            prefill_calls=self._steps["prefill"],
            decode_steps=self._steps["decode"],
            mixed_tokens=self._mixed,
            readouts=steps,
            peak_active=self._peak,
            kv_cache_bytes=kv_cache_bytes,
            loop_runs=loops * steps,
            kv_rows_read=loops * read,
            kv_rows_written=loops * (run + decoded),
        )
