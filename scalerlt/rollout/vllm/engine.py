"""The rollout engine `vllm`: full-depth rollouts by vLLM, in this process."""

from collections.abc import Callable, Sequence
from contextlib import nullcontext

from scalerlt.errors import UserError
from scalerlt.models.ouro import OuroForCausalLM
from scalerlt.rollout.engine import OnPhase, random_seed
from scalerlt.rollout.request import Request, Response, check_requests
from scalerlt.rollout.stats import RolloutResult
from scalerlt.rollout.vllm.generation import Generation
from scalerlt.rollout.vllm.offline import OfflineModel, OfflineSettings, offline_model
from scalerlt.schema.rollout.other_engines import LEAST_TEMPERATURE


class VllmEngine:
    """Generates at full depth with the model as it is at the time; nothing is kept between two calls of `generate`.

    Engines over one model share a running vLLM. It starts when the first is made, and takes the weights anew when
    they have changed (`take_weights`), without starting again. Which token is drawn depends on its request's seed and
    on the tokens before, not on the other requests; another engine draws other tokens from the same seed.

    Args:
        model: whose parameters are read, never changed.
        concurrency: most sequences in flight.
        on_phase: called with `prefill` or `decode` around each step of vLLM's, as `NativeEngine` takes it. A step is of
            the phase `prefill` where some request in flight has no token yet, though others decode in it.
        on_first_token: called with a request when its first token has been drawn.
        settings: how vLLM is started.
        draw_seed: gives a seed in 0 .. 2^63 - 1 to each request without one.

    Attributes:
        weight_version, blocked, generating: as `NativeEngine` has them.

    Raises:
        Unsupported: vLLM is not installed, or it is not made for the model's device.
    """

    def __init__(
        self,
        model: OuroForCausalLM,
        *,
        concurrency: int,
        on_phase: OnPhase | None = None,
        on_first_token: Callable[[Request], None] | None = None,
        settings: OfflineSettings | None = None,
        draw_seed: Callable[[], int] = random_seed,
    ) -> None:
        if concurrency < 1:
            raise UserError(f"rollout concurrency is {concurrency}, it has to be at least 1")
        self.model = model
        self.concurrency = concurrency
        self.on_phase: OnPhase = on_phase or (lambda phase: nullcontext())
        self.on_first_token = on_first_token or (lambda request: None)
        self.settings = settings or OfflineSettings()
        self.draw_seed = draw_seed
        self.weight_version = 0
        self.blocked: str | None = None
        self.generating = False
        self.offline: OfflineModel = offline_model(model, concurrency, self.settings)

    def take_weights(self) -> int:
        """Give vLLM the model's weights if they have changed; returns the bytes read and written.

        Raises:
            UserError: the engine is generating.
        """
        return self.offline.take_weights(self.model)

    def generate(self, requests: Sequence[Request]) -> RolloutResult:
        """Answers all requests.

        Raises:
            UserError: naming all that is wrong with the requests, before anything runs; or the engine is blocked.
            FloatingPointError: the model's logits are not finite, with the request and the position.
        """
        if self.blocked is not None:
            raise UserError(self.blocked)
        check_requests(requests, self.model.config)
        self._check(requests)
        self.take_weights()
        self.offline.wake()
        self.generating = True
        try:
            return self._generate(requests)
        finally:
            self.generating = False
            if self.settings.sleep:
                self.offline.sleep()

    def _generate(self, requests: Sequence[Request]) -> RolloutResult:
        self.offline.forget()
        seeds = [self.draw_seed() if request.seed is None else request.seed for request in requests]
        generation = Generation(self.offline.engine, self.model.config, requests, seeds)
        generation.run(self.concurrency, self.on_phase, self.on_first_token)
        generation.evaluate_raw(self.concurrency)
        responses = [
            Response(
                request_id=request.request_id,
                tokens=tuple(answer.tokens),
                logprobs=tuple(answer.logprobs),
                raw_logprobs=tuple(answer.raw_logprobs),
                exit_depths=(self.model.config.total_ut_steps,) * len(answer.tokens),
                weight_versions=(self.weight_version,) * len(answer.tokens),
                finish_reason=answer.finish_reason,
                seed=seed,
            )
            for request, seed, answer in zip(requests, seeds, generation.answers, strict=True)
        ]
        return RolloutResult(responses, generation.stats(self.offline.kv_cache_bytes))

    def _check(self, requests: Sequence[Request]) -> None:
        """What vLLM cannot do that other engines can."""
        problems = []
        most = self.settings.max_model_len or self.model.config.max_position_embeddings
        for request in requests:
            name = f"request {request.request_id!r}"
            if request.forced_tokens is not None:
                problems.append(f"{name}: vLLM takes no forced_tokens")
            if any(depth != self.model.config.total_ut_steps for depth in request.forced_depths or ()):
                problems.append(f"{name}: vLLM runs every token at full depth, it takes no forced_depths")
            if 0 < request.temperature < LEAST_TEMPERATURE:
                problems.append(
                    f"{name}: temperature is {request.temperature}, and vLLM draws at no lower one than "
                    f"{LEAST_TEMPERATURE} above 0"
                )
            if (total := len(request.prompt_tokens) + request.max_new_tokens) > most:
                problems.append(f"{name}: prompt and max_new_tokens are {total} positions, max_model_len is {most}")
        if problems:
            raise UserError("\n".join(problems))
