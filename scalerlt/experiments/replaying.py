"""`logprob.replay=engine`: the rollout engine takes its own steps once more, on the learner's weights as they are.

It is forced to the tokens, depths and order of the responses, and is given no recorded log-prob. Of the whole rollout
batch under the rollout's weights it takes the same steps as the rollout, so the log-probs are the same bit for bit. Of
a mini-batch the steps hold other rows: unless `rollout.deterministic` makes a row's result the same in every batch, its
log-probs differ from those in the whole batch by rounding.
"""

from collections.abc import Sequence
from dataclasses import replace

from scalerlt.experiments.building import build_engine
from scalerlt.learner.batching import TrainingResponse
from scalerlt.models.ouro import OuroForCausalLM
from scalerlt.rollout.request import Request
from scalerlt.rollout.traffic import rollout_traffic
from scalerlt.schema import Cell


class EngineReplay:
    """The cell's rollout engine over the learner's own model."""

    def __init__(self, cell: Cell, model: OuroForCausalLM) -> None:
        self._bytes_moved = 0
        self._cell = cell
        self._engine = build_engine(cell, model)

    def logprobs(self, responses: Sequence[TrainingResponse]) -> list[list[float]]:
        """Log-probs of each response's tokens under the model as it is now; empty responses are not run."""
        values: list[list[float]] = [[] for _ in responses]
        filled = [index for index, response in enumerate(responses) if response.response_tokens]
        result = self._engine.generate([self._request(index, responses[index]) for index in filled])
        self._bytes_moved += rollout_traffic(self._engine.model, result.stats).total
        for index, found in zip(filled, result.responses, strict=True):
            values[index] = list(found.logprobs)
        return values

    def take_bytes(self) -> int:
        """Bytes moved by the replays since the last call."""
        moved, self._bytes_moved = self._bytes_moved, 0
        return moved

    def _request(self, index: int, response: TrainingResponse) -> Request:
        prompt, tokens, config = response.prompt_tokens, response.response_tokens, self._engine.model.config
        depths = response.exit_depths or [config.total_ut_steps] * len(tokens)
        # As long as the rollout's request could become, which is what requests are admitted by.
        longest = min(self._cell.rollout.max_new_tokens, config.max_position_embeddings - len(prompt))
        return Request(
            request_id=str(index),
            prompt_tokens=tuple(prompt),
            max_new_tokens=max(len(tokens), longest),
            temperature=self._cell.rollout.temperature,
            forced_tokens=tuple(tokens),
            forced_depths=tuple(depths),
        )


def engine_replay(cell: Cell, model: OuroForCausalLM) -> EngineReplay | None:
    """What replays on the learner's model; None where the cell asks for no engine replay."""
    return EngineReplay(cell, model) if cell.logprob.replay == "engine" else None


def replays_before_updates(cell: Cell) -> bool:
    """Whether an engine replays before every optimizer step."""
    return cell.logprob.replay == "engine" and cell.logprob.name != "dense"


def with_replay_logprobs(
    cell: Cell, responses: Sequence[TrainingResponse], engine: EngineReplay | None
) -> list[TrainingResponse]:
    """The responses with the values of `logprob=replay` and `hybrid`, where the learner does not evaluate them itself.

    Those of an engine are of the weights as they are now: they are asked for before every optimizer step.
    """
    if engine is not None and replays_before_updates(cell):
        values = engine.logprobs(responses)
        return [replace(one, replay_logprobs=own) for one, own in zip(responses, values, strict=True)]
    if cell.logprob.name == "hybrid" and cell.logprob.replay == "recorded":
        return [replace(one, replay_logprobs=one.rollout_logprobs) for one in responses]
    return list(responses)
