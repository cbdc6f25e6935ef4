"""What is asked of a rollout engine and what it answers."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from scalerlt.errors import UserError
from scalerlt.models.config import OuroConfig

FinishReason = Literal["stop", "length"]

MAX_SEED = 2**63 - 1


@dataclass(frozen=True, kw_only=True)
class Request:
    """One prompt to be continued.

    Attributes:
        prompt_tokens: at least one token id.
        max_new_tokens: most tokens to generate, at least 1.
        temperature: divides the logits; 0 is greedy.
        top_k: draw from the most probable tokens only, so many; 0: from all.
        top_p: draw from the fewest most probable tokens whose probabilities sum to at least this; 1: from all.
        seed: with the position of a token it alone decides which token is drawn; None: the engine draws one and reports
            it.
        stop_token_ids: ids that end the response, beside the model's eos_token_id.
        ignore_eos: the model's eos_token_id does not end the response; stop_token_ids still do.
        forced_tokens: the response is exactly these tokens, at most max_new_tokens; nothing is drawn, nothing stops it
            earlier, and their log-probs are evaluated.
        forced_depths: exit depth of each response token, as `Response.exit_depths` gives them: the exit gate is not
            asked. As many as forced_tokens, or without them max_new_tokens; the first is K.
        request_id: unique among the requests that are generated together.
    """

    prompt_tokens: tuple[int, ...]
    max_new_tokens: int
    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    seed: int | None = 0
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    forced_tokens: tuple[int, ...] | None = None
    forced_depths: tuple[int, ...] | None = None
    request_id: str

    @property
    def truncates(self) -> bool:
        """Whether tokens are drawn from a part of the distribution."""
        return self.temperature > 0 and (self.top_k > 0 or self.top_p < 1)

    def stops(self, config: OuroConfig) -> frozenset[int]:
        """The token ids that end this response."""
        eos = config.eos_token_id
        return frozenset(self.stop_token_ids) | (set() if self.ignore_eos or eos is None else {eos})


@dataclass(frozen=True, kw_only=True)
class Response:
    """What was generated for one request.

    Attributes:
        request_id: the request's.
        tokens: at least one id; the token that stopped the response is the last.
        logprobs: one per token: its log-probability in the distribution it was drawn from (logits divided by the
            temperature, truncated by top_k and top_p), or under the unscaled logits when greedy.
        raw_logprobs: one per token: its log-probability under the unscaled logits.
        exit_depths: one per token: the loops behind the hidden state that it was read out from. The first is K. An
            input token ran as many loops as the response token after it names: [K] * prompt + exit_depths[1:].
        weight_versions: one per token: the version of the weights that generated it.
        finish_reason: `stop` if the last token is one that stops, else `length`.
        seed: the request's, or the one that the engine drew for it.
    """

    request_id: str
    tokens: tuple[int, ...]
    logprobs: tuple[float, ...]
    raw_logprobs: tuple[float, ...]
    exit_depths: tuple[int, ...]
    weight_versions: tuple[int, ...]
    finish_reason: FinishReason
    seed: int

    @property
    def weight_version(self) -> int:
        """The oldest of the versions that generated the response."""
        return min(self.weight_versions)


def check_requests(requests: Sequence[Request], config: OuroConfig) -> None:
    """One UserError that names what is wrong with each request for a model of this shape."""
    problems = [f"request {r.request_id!r}: {text}" for r in requests for text in _problems(r, config)]
    seen: set[str] = set()
    for request in requests:
        if request.request_id in seen:
            problems.append(f"request {request.request_id!r}: the id is given more than once")
        seen.add(request.request_id)
    if problems:
        raise UserError("\n".join(problems))


def _problems(request: Request, config: OuroConfig) -> list[str]:
    problems = []
    if not request.prompt_tokens:
        problems.append("the prompt is empty, at least one token is needed")
    for name, tokens in (
        ("prompt", request.prompt_tokens),
        ("stop_token_ids", request.stop_token_ids),
        ("forced_tokens", request.forced_tokens or ()),
    ):
        if outside := sorted({token for token in tokens if not 0 <= token < config.vocab_size}):
            problems.append(f"{name} holds {outside[:5]}, outside the vocabulary of {config.vocab_size} tokens")
    if request.max_new_tokens < 1:
        problems.append(f"max_new_tokens is {request.max_new_tokens}, it has to be at least 1")
    total = len(request.prompt_tokens) + request.max_new_tokens
    if total > config.max_position_embeddings:
        problems.append(
            f"prompt ({len(request.prompt_tokens)}) and max_new_tokens ({request.max_new_tokens}) are {total} "
            f"positions, the model has {config.max_position_embeddings}"
        )
    if not 0 <= request.temperature < math.inf:
        problems.append(f"temperature is {request.temperature}, it has to be 0 (greedy) or a positive number")
    if request.top_k < 0:
        problems.append(f"top_k is {request.top_k}, it has to be at least 1, or 0 for no limit")
    if not 0 < request.top_p <= 1:
        problems.append(f"top_p is {request.top_p}, it has to be above 0 and at most 1")
    if request.truncates and request.forced_tokens is not None:
        problems.append("forced_tokens may lie outside of what top_k and top_p keep; give one or the other")
    if request.seed is not None and not 0 <= request.seed <= MAX_SEED:
        problems.append(f"seed is {request.seed}, it has to be in 0 .. 2^63 - 1")
    return problems + _forced_problems(request, config.total_ut_steps)


def _forced_problems(request: Request, full_depth: int) -> list[str]:
    problems = []
    tokens, depths = request.forced_tokens, request.forced_depths
    if tokens is not None and not 1 <= len(tokens) <= request.max_new_tokens:
        problems.append(f"{len(tokens)} forced_tokens, there have to be 1 .. max_new_tokens={request.max_new_tokens}")
    if depths is not None:
        wanted = request.max_new_tokens if tokens is None else len(tokens)
        if len(depths) != wanted:
            name = "max_new_tokens" if tokens is None else "forced_tokens"
            problems.append(f"{len(depths)} forced_depths, there have to be {wanted}, as many as {name}")
        if outside := sorted({depth for depth in depths if not 1 <= depth <= full_depth}):
            problems.append(f"forced_depths holds {outside[:5]}, outside 1 .. {full_depth}")
        elif depths and depths[0] != full_depth:
            problems.append(f"forced_depths starts with {depths[0]}: the first token is read out at {full_depth}")
    return problems
