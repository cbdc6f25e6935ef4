"""The policy of a reinforcement-learning run: the learner's weights, the engines' own copies, and their publication."""

import copy
from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor

from scalerlt.experiments.answers import Answer, answer
from scalerlt.experiments.building import (
    build_learner,
    build_model,
    checkpoint_schedule,
    exit_rule,
    logprob_kind,
    optimizer_settings,
    readout_of,
    replay_kv,
)
from scalerlt.experiments.learning import needs_reference
from scalerlt.experiments.replaying import EngineReplay, engine_replay, replays_before_updates
from scalerlt.experiments.requests import tokenizer_of
from scalerlt.experiments.served import ServedPolicies
from scalerlt.learner.batching import TrainingResponse, microbatches, pack
from scalerlt.learner.depth_match import depth_matches
from scalerlt.learner.logprobs import response_logprobs
from scalerlt.learner.training_state import SavedPolicy
from scalerlt.numerics.precision import number_format
from scalerlt.rollout.engine import RolloutEngine
from scalerlt.schema import Cell
from scalerlt.schema.experiment.gsm8k_reward import Gsm8kReward
from scalerlt.tasks.problem import Problem


class Policy:
    """Learner and rollout engine of one cell.

    Attributes:
        model: the learner's, whose exit gate is frozen.
        reference: the initial policy, frozen, where the algorithm wants one.
        served: the policies that generate.
        replay: replays on the learner's weights, where the cell asks for an engine replay.
        schedule: the learner's.
        publication_bytes: what the newest publication moved.
    """

    def __init__(self, cell: Cell) -> None:
        self.cell = cell
        self.model = build_model(cell, number_format(cell.precision.name).dtype)
        self.tokenizer = tokenizer_of(cell)
        self.reference = copy.deepcopy(self.model).requires_grad_(False) if needs_reference(cell) else None
        lag = cell.experiment.lag if isinstance(cell.experiment, Gsm8kReward) else 0
        self.served = ServedPolicies(cell, self.model, lag)
        self.replay = engine_replay(cell, self.model)
        self.publication_bytes = 0
        self.schedule = checkpoint_schedule(cell)
        self.learner = build_learner(cell, self.model, schedule=self.schedule, settings=optimizer_settings(cell))

    def restore(self, saved: SavedPolicy, optimizer: dict[str, Any], older: Mapping[int, Mapping[str, Tensor]]) -> None:
        """Take over a saved policy, its optimizer's state and its weight version, and publish it behind the older
        versions that later steps still generate with."""
        self.learner.optimizer.restore(optimizer)
        for version, weights in sorted(older.items()):
            self.served.publish(version, weights.items())
        self.publish(saved.facts["weight_version"])

    def publish(self, version: int) -> None:
        """Send the learner's weights to an engine as a new version."""
        self.publication_bytes = self.served.publish(version, self.weights())

    def engine(self, step: int) -> RolloutEngine:
        """What generates for a training step."""
        return self.served.of_step(step)

    def weights(self) -> list[tuple[str, Tensor]]:
        """The learner's parameters by their checkpoint names."""
        return [(name, parameter.detach()) for name, parameter in self.model.named_parameters()]

    def greedy(self, questions: Sequence[Problem], *, full_depth: bool = False) -> list[Answer]:
        """One greedy answer to each problem by the newest published policy."""
        engine = self.served.judged(full_depth=full_depth)
        return answer(self.cell, engine, self.tokenizer, questions, group_size=1, temperature=0.0)[0]

    def learner_logprobs(self, responses: Sequence[TrainingResponse]) -> list[list[float]]:
        """The learner's log-probs of the responses as it stands, whatever `logprob.replay=recorded` takes in their
        place."""
        packed = logprob_kind(self.cell) == "dense" or self.cell.rollout.skipped_kv != "shared_kv"
        if replays_before_updates(self.cell) or not packed:
            return EngineReplay(self.cell, self.model).logprobs(responses)
        return response_logprobs(
            logprob_kind(self.cell),
            self.model,
            responses,
            temperature=self.cell.rollout.temperature,
            microbatch_tokens=self.cell.batch.microbatch_tokens,
            readout=readout_of(self.cell),
            kv=replay_kv(self.cell),
        )

    def depth_match_fraction(self, responses: Sequence[TrainingResponse]) -> float | None:
        """Share of decode tokens that the learner, as it stands, would stop where the rollout did; None when dense, and
        where no packed pass has the rollout's states."""
        rule = exit_rule(self.cell)
        if rule is None or self.cell.rollout.skipped_kv == "shared_kv":
            return None
        matches, tokens = 0, 0
        rows = [response.rows for response in responses]
        for picked in microbatches(rows, self.cell.batch.microbatch_tokens):
            batch = pack([responses[index] for index in picked], self.model.device)
            found = depth_matches(self.model, batch, rule, replay_kv(self.cell))
            matches, tokens = matches + found[0], tokens + found[1]
        return matches / tokens if tokens else None
