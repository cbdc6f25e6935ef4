"""The policy of a reinforcement-learning run: the learner's weights, the engine's own copy, and their publication."""

import copy
from collections.abc import Sequence
from typing import Any

from torch import Tensor

from scalerlt.experiments.answers import Answer, answer
from scalerlt.experiments.building import (
    build_engine,
    build_learner,
    build_model,
    checkpoint_schedule,
    exit_rule,
    logprob_kind,
    optimizer_settings,
    readout_of,
)
from scalerlt.experiments.learning import needs_reference
from scalerlt.experiments.requests import tokenizer_of
from scalerlt.learner.batching import TrainingResponse, microbatches, pack
from scalerlt.learner.depth_match import depth_matches
from scalerlt.learner.logprobs import response_logprobs
from scalerlt.learner.training_state import SavedPolicy
from scalerlt.numerics.precision import number_format
from scalerlt.publication.full import FullPublication
from scalerlt.schema import Cell
from scalerlt.tasks.problem import Problem


class Policy:
    """Learner and rollout engine of one cell.

    Attributes:
        model: the learner's, whose exit gate is frozen.
        reference: the initial policy, frozen, where the algorithm wants one.
        schedule: the learner's.
    """

    def __init__(self, cell: Cell) -> None:
        self.cell = cell
        self.model = build_model(cell, number_format(cell.precision.name).dtype)
        self.tokenizer = tokenizer_of(cell)
        self.reference = copy.deepcopy(self.model).requires_grad_(False) if needs_reference(cell) else None
        served = copy.deepcopy(self.model).requires_grad_(False)
        self.engine = build_engine(cell, served)
        self._full_depth = build_engine(cell, served, full_depth=True)
        self._publication = FullPublication(self.engine)
        self.schedule = checkpoint_schedule(cell)
        self.learner = build_learner(cell, self.model, schedule=self.schedule, settings=optimizer_settings(cell))

    def restore(self, saved: SavedPolicy, optimizer: dict[str, Any]) -> None:
        """Take over a saved policy, its optimizer's state and its weight version; publishes it."""
        self.learner.optimizer.restore(optimizer)
        self.publish(saved.facts["weight_version"])

    def publish(self, version: int) -> None:
        """Send the learner's weights to the engine as a new version."""
        self._publication.start(version)
        self._publication.update(self.weights())
        self._publication.finish()

    @property
    def publication_bytes(self) -> int:
        """What the newest publication moved."""
        return self._publication.bytes_moved

    def weights(self) -> list[tuple[str, Tensor]]:
        """The learner's parameters by their checkpoint names."""
        return [(name, parameter.detach()) for name, parameter in self.model.named_parameters()]

    def greedy(self, questions: Sequence[Problem], *, full_depth: bool = False) -> list[Answer]:
        """One greedy answer to each problem by the published policy."""
        engine = self._full_depth if full_depth else self.engine
        return answer(self.cell, engine, self.tokenizer, questions, group_size=1, temperature=0.0)[0]

    def learner_logprobs(self, responses: Sequence[TrainingResponse]) -> list[list[float]]:
        """The learner's log-probs of the responses as it stands."""
        return response_logprobs(
            logprob_kind(self.cell),
            self.model,
            responses,
            temperature=self.cell.rollout.temperature,
            microbatch_tokens=self.cell.batch.microbatch_tokens,
            readout=readout_of(self.cell),
        )

    def depth_match_fraction(self, responses: Sequence[TrainingResponse]) -> float | None:
        """Share of decode tokens that the learner, as it stands, would stop where the rollout did; None when dense."""
        rule = exit_rule(self.cell)
        if rule is None:
            return None
        matches, tokens = 0, 0
        rows = [response.rows for response in responses]
        for picked in microbatches(rows, self.cell.batch.microbatch_tokens):
            found = depth_matches(self.model, pack([responses[index] for index in picked], self.model.device), rule)
            matches, tokens = matches + found[0], tokens + found[1]
        return matches / tokens if tokens else None
