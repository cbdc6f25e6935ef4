"""How the responses of an optimizer step are laid out in passes through the model: whole, or after shared prefixes."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial

from scalerlt.learner.batching import TrainingResponse, microbatches, pack, values_of
from scalerlt.learner.checkpoint.schedule import DIRECT, Schedule
from scalerlt.learner.logprobs import Evaluated, LogprobKind, ReplayKV, logprobs, loop_logprobs, one_pass
from scalerlt.learner.optimizer import ActorOptimizer
from scalerlt.learner.readout import FULL, Readout
from scalerlt.learner.traffic import CountedSchedule
from scalerlt.learner.unchanged import Unchanged
from scalerlt.models.ouro import OuroForCausalLM

OnPhase = Callable[[str], AbstractContextManager[None]]
"""Makes the context in which the phase of this name runs: forward, backward, optimizer."""


def no_phase(name: str) -> AbstractContextManager[None]:
    """Phases are of no interest."""
    return nullcontext()


@dataclass(frozen=True, kw_only=True)
class Estimator:
    """How sampled tokens are evaluated.

    Attributes:
        model: the policy.
        kind: of the log-probs.
        all_loops: whether they are read out after every loop; dense ones only.
        temperature: of the sampling.
        readout: how hidden states become log-probs.
        exits: whether the exit distribution is wanted beside the log-probs after every loop.
        kv: of the rollout, for its replay.
    """

    model: OuroForCausalLM
    kind: LogprobKind
    all_loops: bool
    temperature: float
    readout: Readout = FULL
    exits: bool = False
    kv: ReplayKV = "last_exited"

    def evaluations(self, responses: Sequence[TrainingResponse]) -> int:
        """How often each of these responses is read out before a backward pass.

        Raises:
            ValueError: some of them have log-probs of the replay and some have none.
        """
        given = values_of(responses, "replay_logprobs") is not None
        return 2 if self.kind == "hybrid" and not given else 1

    def runs(self, responses: Sequence[TrainingResponse]) -> int:
        """How often each of them is run through the loops for that."""
        return 1 if one_pass(self.kv) else self.evaluations(responses)


@dataclass(frozen=True, kw_only=True)
class Pass:
    """A forward pass over some responses, whose loss is to be differentiated before the next pass is asked for.

    Attributes:
        picked: which responses.
        padded_tokens: places that hold no token.
        evaluate: runs it; sequences are in the order of `picked`.
    """

    picked: list[int]
    padded_tokens: int
    evaluate: Callable[[], Evaluated]


class StepRun:
    """The forward and backward passes of an optimizer step under way.

    Weights may not change before the last of them: a backward pass that would see other weights raises instead.

    Attributes:
        estimator: of the log-probs.
        schedule: how layers and loops are executed; counts them.
        rows: tokens that have been embedded, without padding, those embedded again too.
        embeddings: backward passes that have gone through loops and embedding.
    """

    def __init__(self, estimator: Estimator, optimizer: ActorOptimizer, schedule: Schedule, on_phase: OnPhase) -> None:
        self.estimator = estimator
        self.schedule = CountedSchedule(schedule)
        self.rows = self.embeddings = 0
        self._optimizer = optimizer
        self._on_phase = on_phase
        self._weights = Unchanged(dict(estimator.model.named_parameters()))

    def forward(self) -> AbstractContextManager[None]:
        """The context of a forward pass."""
        return self._on_phase("forward")

    @contextmanager
    def backward(self) -> Iterator[None]:
        """The context of a backward pass, whose gradients the optimizer then takes over.

        Raises:
            RuntimeError: weights have changed since the step began; no gradient has been made of them.
        """
        with self._on_phase("backward"), self.schedule.recomputing():
            self._weights.check()
            yield
            self._optimizer.accumulate()


class LayoutChoice(ABC):
    """Says which layout an optimizer step has."""

    @abstractmethod
    def chosen(self, responses: Sequence[TrainingResponse], tokens: int) -> "Layout":
        """The layout for these responses.

        Args:
            responses: none of them empty.
            tokens: at most so many padded tokens per pass, if a single response allows it.
        """


class Layout(LayoutChoice):
    """Splits an optimizer step into passes, none of which knows of the loss.

    Attributes:
        schedule: how layers and loops are executed.
        recomputed_runs: how often a backward pass runs the responses of a pass again, with all that is read out of that
            run.
    """

    schedule: Schedule = DIRECT
    recomputed_runs = 0

    def chosen(self, responses: Sequence[TrainingResponse], tokens: int) -> "Layout":
        """Itself."""
        return self

    @abstractmethod
    def passes(self, responses: Sequence[TrainingResponse], tokens: int, run: StepRun) -> Iterator[Pass]:
        """The passes, each response in one of them; what the sum of their gradients lacks is added between and after.

        Args:
            responses: none of them empty.
            tokens: at most so many padded tokens per pass, if a single response allows it.
            run: of the optimizer step.
        """


class WholeSequences(Layout):
    """Every response with its own copy of the prompt.

    Args:
        schedule: activation checkpointing.
    """

    def __init__(self, schedule: Schedule) -> None:
        self.schedule = schedule

    def passes(self, responses: Sequence[TrainingResponse], tokens: int, run: StepRun) -> Iterator[Pass]:
        """Sequences of similar length together."""
        for picked in microbatches([response.rows for response in responses], tokens):
            chosen = [responses[index] for index in picked]
            rows = [response.rows for response in chosen]
            run.rows += run.estimator.runs(chosen) * sum(rows)
            run.embeddings += 1
            yield Pass(
                picked=picked,
                padded_tokens=len(rows) * max(rows) - sum(rows),
                evaluate=partial(_evaluate, chosen, run),
            )


def _evaluate(responses: list[TrainingResponse], run: StepRun) -> Evaluated:
    chosen, batch = run.estimator, pack(responses, run.estimator.model.device)
    if chosen.all_loops:
        return loop_logprobs(
            chosen.model,
            batch,
            temperature=chosen.temperature,
            schedule=run.schedule,
            readout=chosen.readout,
            exits=chosen.exits,
        )
    return Evaluated(
        logprobs(
            chosen.kind,
            chosen.model,
            batch,
            temperature=chosen.temperature,
            schedule=run.schedule,
            readout=chosen.readout,
            kv=chosen.kv,
        )
    )
