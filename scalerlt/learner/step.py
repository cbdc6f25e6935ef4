"""One learner step: forward, loss and backward of each micro-batch, then the optimizer."""

import copy
import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from scalerlt.learner.batching import TrainingResponse
from scalerlt.learner.checkpoint.schedule import Schedule
from scalerlt.learner.correction import Correction, correction_factors, correction_statistics
from scalerlt.learner.layout import Estimator, Layout, LayoutChoice, OnPhase, Pass, StepRun, WholeSequences, no_phase
from scalerlt.learner.logprobs import Evaluated, LogprobKind, ReplayKV
from scalerlt.learner.mismatch import mismatch
from scalerlt.learner.objective import Objective, Reduction, SampledTokens, logical_weights, policy_gradient_loss
from scalerlt.learner.optimizer import ActorOptimizer
from scalerlt.learner.readout import FULL, Readout
from scalerlt.learner.traffic import LearnerRuns, LearnerTraffic, learner_traffic
from scalerlt.models.ouro import OuroForCausalLM

__all__ = ["ActorUpdate", "BackwardResult", "OnPhase", "PolicyGradient", "StepResult", "no_phase"]


@dataclass(frozen=True)
class PolicyGradient:
    """`algorithm=policy_gradient`: REINFORCE with fixed advantages."""

    all_loops: bool = False
    exits: bool = False

    def loss(self, tokens: SampledTokens) -> Tensor:
        """The micro-batch's part of the step's loss, a scalar."""
        return policy_gradient_loss(tokens.logprobs, tokens.weights, tokens.advantages.squeeze(-1))

    def statistics(self, tokens: SampledTokens) -> dict[str, float]:
        """pg_loss, which is the loss."""
        return {"pg_loss": float(-(tokens.weights * tokens.advantages * tokens.logprobs).sum())}


@dataclass(frozen=True, kw_only=True)
class BackwardResult:
    """What the backward passes of one optimizer step saw.

    Attributes:
        loss: of the whole step.
        trained_tokens: response tokens with a weight, never padding.
        prompt_tokens: tokens of the prompts, once for each response that was run, though prompts may be shared.
        padded_tokens: places of the micro-batches that held no token; counted nowhere else.
        microbatches: forward passes with a loss, and their backward passes.
        runs: of the model's parts in these passes.
        statistics: the objective's, and those of `mismatch` where every trained response has its rollout's log-probs;
            none when nothing was trained.
    """

    loss: float
    trained_tokens: int
    prompt_tokens: int
    padded_tokens: int
    microbatches: int
    runs: LearnerRuns
    statistics: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class StepResult(BackwardResult):
    """What one optimizer step did.

    Attributes:
        grad_norm: global gradient norm before clipping.
        updated: false when the weights stayed as they were: nothing was trained, or the gradient was not finite.
    """

    grad_norm: float
    updated: bool


class ActorUpdate:
    """The learner of one policy.

    Args:
        model: the policy.
        optimizer: of this model's parameters.
        schedule: activation checkpointing over whole sequences, or a layout of its own, such as shared prefixes, or the
            choice of one for each optimizer step.
        reduction: of the loss over the tokens of an optimizer step.
        temperature: of the sampling.
        microbatch_tokens: padded tokens per forward and backward pass, of which a prompt that a layout runs by itself
            is none; decides about memory alone.
        objective: what is minimised.
        logprob: how the sampled tokens are evaluated; an objective over all loops takes dense ones only.
        kv: of the rollout, for its replay.
        readout: how hidden states become log-probs.
        correction: for rollouts of another policy; an objective without ratios takes none. None: none.

    Raises:
        ValueError: an objective over all loops with other than dense log-probs.
    """

    def __init__(
        self,
        model: OuroForCausalLM,
        optimizer: ActorOptimizer,
        *,
        schedule: Schedule | LayoutChoice,
        reduction: Reduction,
        temperature: float,
        microbatch_tokens: int,
        objective: Objective = PolicyGradient(),
        logprob: LogprobKind = "dense",
        kv: ReplayKV = "last_exited",
        readout: Readout = FULL,
        correction: Correction | None = None,
    ) -> None:
        if objective.all_loops and logprob != "dense":
            raise ValueError(f"an objective over all loops takes dense log-probs, not {logprob}")
        self.model = model
        self.optimizer = optimizer
        self.reduction = reduction
        self._layouts: LayoutChoice = schedule if isinstance(schedule, LayoutChoice) else WholeSequences(schedule)
        self._microbatch_tokens = microbatch_tokens
        self._objective = objective
        self._correction = correction
        self._estimator = Estimator(
            model=model,
            kind=logprob,
            all_loops=objective.all_loops,
            temperature=temperature,
            readout=readout,
            exits=objective.exits,
            kv=kv,
        )

    def laid_out(self, layout: Layout, microbatch_tokens: int) -> "ActorUpdate":
        """This learner, with its model and its optimizer, whose steps are laid out so."""
        other = copy.copy(self)
        other._layouts, other._microbatch_tokens = layout, microbatch_tokens
        return other

    def step(self, responses: Sequence[TrainingResponse], on_phase: OnPhase = no_phase) -> StepResult:
        """One optimizer step over all of `responses`."""
        result = self.backward(responses, on_phase)
        with on_phase("optimizer"):
            grad_norm = self.optimizer.step()
        updated = result.trained_tokens > 0 and math.isfinite(grad_norm)
        return StepResult(**vars(result), grad_norm=grad_norm, updated=updated)

    def backward(self, responses: Sequence[TrainingResponse], on_phase: OnPhase = no_phase) -> BackwardResult:
        """Forward and backward passes over all of `responses`; the gradients stay in the optimizer.

        Responses without a trained token have no part in the loss and are not run.
        """
        weights = logical_weights([response.trained for response in responses], self.reduction)
        kept = [index for index, weight in enumerate(weights) if bool(weight.any())]
        learnt = [responses[index] for index in kept]
        evaluations, runs = self._estimator.evaluations(learnt), self._estimator.runs(learnt)
        layout = self._layouts.chosen(learnt, self._microbatch_tokens)
        run = StepRun(self._estimator, self.optimizer, layout.schedule, on_phase)
        losses: list[Tensor] = []
        parts: list[SampledTokens] = []
        padded_tokens = 0
        for part in layout.passes(learnt, self._microbatch_tokens, run):
            chosen = [kept[index] for index in part.picked]
            loss, tokens = self._pass(
                part, [responses[index] for index in chosen], [weights[index] for index in chosen], run
            )
            losses.append(loss)
            parts.append(tokens)
            padded_tokens += part.padded_tokens
            del part  # what it holds is not needed while the layout goes on
        return BackwardResult(
            loss=sum(float(loss) for loss in losses),
            trained_tokens=sum(int((weight != 0).sum()) for weight in weights),
            prompt_tokens=sum(len(responses[index].prompt_tokens) for index in kept),
            padded_tokens=padded_tokens,
            microbatches=len(losses),
            runs=LearnerRuns(
                forward=run.schedule.forward,
                recomputed=run.schedule.recomputed,
                differentiated=run.schedule.differentiated,
                token_calls=run.schedule.token_calls,
                rows=run.rows,
                embeddings=run.embeddings,
                targets=sum(len(responses[index].response_tokens) for index in kept),
                evaluations=evaluations + layout.recomputed_runs * (evaluations // runs),
            ),
            statistics=self._statistics(parts),
        )

    def traffic(self, result: StepResult) -> LearnerTraffic:
        """Bytes that a step of this learner moved."""
        return learner_traffic(
            self.model,
            result.runs,
            microbatches=result.microbatches,
            readout=self._estimator.readout,
            readouts=self.model.config.total_ut_steps if self._objective.all_loops else 1,
            master_bytes=self.optimizer.master_bytes,
            optimizer=self.optimizer.step_traffic(updated=result.updated) if result.microbatches else 0,
        )

    def _pass(
        self, part: Pass, responses: list[TrainingResponse], weights: list[Tensor], run: StepRun
    ) -> tuple[Tensor, SampledTokens]:
        with run.forward():
            tokens = self._corrected(_sampled_tokens(part.evaluate(), responses, weights))
            loss = self._objective.loss(tokens)
        with run.backward():
            loss.backward()
        return loss.detach(), tokens.trained()

    def _corrected(self, tokens: SampledTokens) -> SampledTokens:
        if self._correction is None:
            return tokens
        if tokens.old_logprobs is None or tokens.rollout_logprobs is None:
            raise ValueError("a correction needs old and rollout log-probs of every response")
        mask = tokens.weights != 0
        factors = correction_factors(self._correction, tokens.old_logprobs, tokens.rollout_logprobs, mask)
        return replace(tokens, factors=factors)

    def _statistics(self, parts: list[SampledTokens]) -> dict[str, float]:
        if not parts:
            return {}
        tokens = SampledTokens.joined(parts)
        statistics = self._objective.statistics(tokens)
        if tokens.rollout_logprobs is not None:
            last = tokens.logprobs[-1] if self._objective.all_loops else tokens.logprobs
            statistics |= mismatch(last, tokens.rollout_logprobs, tokens.weights != 0)
            statistics["rollout_corr/kept_share"] = 1.0
        if tokens.factors is not None and tokens.old_logprobs is not None and tokens.rollout_logprobs is not None:
            statistics |= correction_statistics(tokens.factors, tokens.old_logprobs - tokens.rollout_logprobs)
        return statistics


def _sampled_tokens(evaluated: Evaluated, responses: list[TrainingResponse], weights: list[Tensor]) -> SampledTokens:
    logprobs = evaluated.logprobs
    advantages = torch.tensor([[response.advantage] for response in responses], dtype=torch.float64)
    return SampledTokens(
        logprobs=logprobs,
        exit_distribution=evaluated.exit_distribution,
        weights=pad_sequence(weights, batch_first=True).to(logprobs),
        advantages=advantages.to(logprobs),
        rollout_logprobs=_padded([response.rollout_logprobs for response in responses], logprobs),
        old_logprobs=_padded([response.old_logprobs or response.rollout_logprobs for response in responses], logprobs),
        ref_logprobs=_padded([response.ref_logprobs for response in responses], logprobs),
    )


def _padded(rows: list[Sequence[float] | None], like: Tensor) -> Tensor | None:
    """Values per response as [B, T], zero at padding; None where a response has none."""
    present = [torch.tensor(row, dtype=torch.float64) for row in rows if row is not None]
    return pad_sequence(present, batch_first=True).to(like) if len(present) == len(rows) else None
