"""One rollout batch of a cell: generated as often as it is measured, and evaluated again."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pkgutil import resolve_name

from scalerlt.experiments.building import build_engine
from scalerlt.learner.batching import TrainingResponse
from scalerlt.learner.logprobs import LogprobKind, response_logprobs
from scalerlt.measure.memory import OnPhase
from scalerlt.models.ouro import OuroForCausalLM
from scalerlt.rollout.engine import RolloutEngine
from scalerlt.rollout.plain import PlainEngine
from scalerlt.rollout.request import Request, Response
from scalerlt.rollout.stats import RolloutResult
from scalerlt.schema import Cell


@dataclass(frozen=True)
class RolloutBatch:
    """What a cell generates, with which model.

    Attributes:
        slots: most sequences in flight; None: the cell's.
    """

    cell: Cell
    model: OuroForCausalLM
    requests: Sequence[Request]
    slots: int | None = None

    def generate(
        self, on_phase: OnPhase | None = None, on_first_token: Callable[[Request], None] | None = None
    ) -> RolloutResult:
        """All of it, by an engine of the cell's with no more slots than there are requests."""
        return self._engine(on_phase, on_first_token).generate(self.requests)

    def start(self) -> None:
        """Have the engine started, where it takes time to (vLLM): all batches of one model share it."""
        self._engine(None, None)

    def _engine(
        self, on_phase: OnPhase | None, on_first_token: Callable[[Request], None] | None
    ) -> PlainEngine | RolloutEngine:
        if self.cell.rollout.engine.name == "plain":
            plain = resolve_name(self.cell.rollout.engine.target)
            made: PlainEngine = plain(self.model, on_phase=on_phase, on_first_token=on_first_token)
            return made
        concurrency = self.slots or min(self.cell.batch.rollout_concurrency, len(self.requests))
        return build_engine(
            self.cell, self.model, on_phase=on_phase, on_first_token=on_first_token, concurrency=concurrency
        )

    def forced(self, responses: Sequence[Response]) -> "RolloutBatch":
        """The same requests in the same order, to be answered by these tokens at these depths: the engine then takes
        the steps that it took for them. No log-prob is given."""
        plain = self.cell.rollout.engine.name == "plain"
        forced = [
            replace(
                request,
                forced_tokens=response.tokens,
                forced_depths=None if plain else response.exit_depths,
                top_k=0,
                top_p=1.0,
            )
            for request, response in zip(self.requests, responses, strict=True)
        ]
        return replace(self, requests=forced)

    @property
    def compares_raw(self) -> bool:
        """Whether log-probs are compared under the unscaled logits: the learner's are of the whole vocabulary, so where
        the rollout is greedy or draws from a part of it those that it drew with are others."""
        return self.cell.rollout.temperature == 0 or any(request.truncates for request in self.requests)

    def logprobs_of(self, response: Response) -> tuple[float, ...]:
        """Of a response those that are compared."""
        return response.raw_logprobs if self.compares_raw else response.logprobs

    @property
    def packed_kind(self) -> LogprobKind:
        """The learner's log-probs that are of the policy that generates."""
        return "dense" if self.cell.rollout.schedule == "dense" else "replay"

    @property
    def packed_fault(self) -> str | None:
        """Why the learner cannot evaluate this policy in parallel over positions, or None."""
        if self.cell.rollout.skipped_kv == "shared_kv":
            return (
                "under shared_kv a token's loops read what the tokens before it wrote last: no pass over all positions "
                "at once is the same policy, only the engine's own steps are"
            )
        return None

    def packed(self, responses: Sequence[Response]) -> list[list[float]]:
        """The learner's log-probs of responses to the requests, in packed passes; see `packed_fault`."""
        rows = [
            TrainingResponse(request.prompt_tokens, response.tokens, advantage=0.0, exit_depths=response.exit_depths)
            for request, response in zip(self.requests, responses, strict=True)
        ]
        return response_logprobs(
            self.packed_kind,
            self.model,
            rows,
            temperature=1.0 if self.compares_raw else self.cell.rollout.temperature,
            microbatch_tokens=self.cell.batch.microbatch_tokens,
            kv="deferred_fill" if self.cell.rollout.skipped_kv == "deferred_fill" else "last_exited",
        )
