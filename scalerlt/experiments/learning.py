"""From samples to what the learner learns from: advantages, old and reference log-probs, as the algorithm asks."""

from collections.abc import Sequence
from dataclasses import replace

from scalerlt.experiments.building import logprob_kind, readout_of, replay_kv
from scalerlt.experiments.replaying import EngineReplay
from scalerlt.learner.advantages import Advantages, group_advantages
from scalerlt.learner.batching import TrainingResponse
from scalerlt.learner.logprobs import LogprobKind, response_logprobs
from scalerlt.models.ouro import OuroForCausalLM
from scalerlt.records.samples import Sample
from scalerlt.schema import Cell
from scalerlt.schema.algorithm.grpo import Grpo
from scalerlt.schema.algorithm.rltt import Rltt


def advantages_of(cell: Cell, rewards: Sequence[float], prompt_groups: Sequence[int]) -> Advantages | None:
    """The advantages that the cell's algorithm computes from rewards; None where it takes recorded ones."""
    match cell.algorithm:
        case Grpo() | Rltt() as algorithm:
            return group_advantages(rewards, prompt_groups, estimator=algorithm.advantage, ddof=algorithm.ddof)
    return None


def training_responses(samples: Sequence[Sample], advantages: Advantages | None) -> list[TrainingResponse]:
    """The samples as the learner takes them, with these advantages or their own."""
    values = [sample.advantage for sample in samples] if advantages is None else advantages.values
    responses = []
    for sample, advantage in zip(samples, values, strict=True):
        assert advantage is not None  # `recorded_samples` gives no other
        responses.append(
            TrainingResponse(
                sample.prompt_tokens,
                sample.response_tokens,
                advantage,
                exit_depths=sample.exit_depths,
                rollout_logprobs=sample.logprobs,
            )
        )
    return responses


def with_old_logprobs(
    cell: Cell, policy: OuroForCausalLM, responses: Sequence[TrainingResponse], engine: EngineReplay | None = None
) -> list[TrainingResponse]:
    """The responses with old log-probs of `policy` as it stands, where `logprob.old` wants them evaluated again: those
    of a replay by `engine`, which runs `policy`, where there is one."""
    if cell.logprob.old == "rollout":
        return list(responses)
    if engine is not None and cell.logprob.old == "replay":
        values = engine.logprobs(responses)
    else:
        values = _evaluated(cell, cell.logprob.old, policy, responses)
    return [replace(response, old_logprobs=old) for response, old in zip(responses, values, strict=True)]


def with_reference_logprobs(
    cell: Cell, reference: OuroForCausalLM, responses: Sequence[TrainingResponse]
) -> list[TrainingResponse]:
    """The responses with the frozen reference policy's log-probs, where the algorithm has a kl_coef.

    They are evaluated in packed passes under the schedule of the learner's values, for replay and hybrid the rollout's.
    """
    if not needs_reference(cell):
        return list(responses)
    values = _evaluated(cell, logprob_kind(cell), reference, responses)
    return [replace(response, ref_logprobs=ref) for response, ref in zip(responses, values, strict=True)]


def needs_reference(cell: Cell) -> bool:
    """Whether the algorithm takes log-probs of a frozen reference policy."""
    return isinstance(cell.algorithm, Grpo | Rltt) and cell.algorithm.kl_coef > 0


def _evaluated(
    cell: Cell, kind: LogprobKind, policy: OuroForCausalLM, responses: Sequence[TrainingResponse]
) -> list[list[float]]:
    return response_logprobs(
        kind,
        policy,
        responses,
        temperature=cell.rollout.temperature,
        microbatch_tokens=cell.batch.microbatch_tokens,
        readout=readout_of(cell),
        kv=replay_kv(cell),
    )
