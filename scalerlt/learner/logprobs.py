"""Log-probabilities of sampled tokens under the learner's policy."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from scalerlt.learner.batching import PackedBatch, TrainingResponse, microbatches, pack
from scalerlt.learner.checkpoint.schedule import Schedule
from scalerlt.learner.readout import FULL, Readout
from scalerlt.learner.sequences import row_depths, sequence_states
from scalerlt.models.ouro import OuroForCausalLM, exit_distribution

LogprobKind = Literal["dense", "replay", "hybrid"]
PassKind = LogprobKind
"""What one forward pass evaluates; hybrid where the replay is the dense pass, `one_pass`."""
ReplayKV = Literal["last_exited", "deferred_fill"]
"""What stood for the K/V of loops that a token of the rollout left out: copies of those of its last loop; or its own,
computed later, so that its replay is the dense forward pass, read out after its last loop."""


class Evaluated(NamedTuple):
    """What a forward pass says of sampled tokens; zero at padding.

    Attributes:
        logprobs: [B, T], or [K, B, T] after every loop, in the internal dtype.
        exit_distribution: [K, B, T], the probability that the exit gate gives to each depth of the position that
            predicts the token, in the internal dtype, without gradient; None unless wanted.
    """

    logprobs: Tensor
    exit_distribution: Tensor | None = None


def logprobs(
    kind: LogprobKind,
    model: OuroForCausalLM,
    batch: PackedBatch,
    *,
    temperature: float,
    schedule: Schedule | None = None,
    readout: Readout = FULL,
    kv: ReplayKV = "last_exited",
) -> Tensor:
    """Log-probs of the sampled tokens in one of the three ways.

    dense: value and gradient of full depth. replay: value and gradient of the rollout's own schedule, from the tokens
    and depths of the batch. hybrid: the value of replay, which keeps no graph, with the gradient of dense. Where the
    batch holds replay's log-probs, their value is that of replay and hybrid; hybrid then evaluates none.

    Args:
        kind: which of them.
        model: the policy.
        batch: what it sampled; padding has no influence.
        temperature: of the sampling, above 0.
        schedule: how layers and loops are executed; what is not differentiated has nothing to checkpoint. None:
            directly.
        readout: how hidden states become log-probs.
        kv: of the rollout.

    Returns:
        [B, T] in the internal dtype, zero where there is no response token.
    """

    def evaluate(kind: PassKind) -> Evaluated:
        if kind == "dense":
            values = dense_logprobs(model, batch, temperature=temperature, schedule=schedule, readout=readout)
        elif kind == "replay":
            values = replay_logprobs(model, batch, temperature=temperature, schedule=schedule, readout=readout, kv=kv)
        else:
            _check(temperature)
            states = [state[batch.predictors] for state in sequence_states(model, batch, None, schedule)]
            depths = row_depths(batch, model.config.total_ut_steps)[batch.predictors]
            with torch.no_grad():
                replay = _read_out(model, read_at(states, depths), batch, temperature, readout)
            values = hybrid(replay, _read_out(model, states[-1], batch, temperature, readout))
        return Evaluated(values)

    return composed(kind, kv, batch.replay_logprobs, evaluate).logprobs


def composed(
    kind: LogprobKind, kv: ReplayKV, given: Tensor | None, evaluate: Callable[[PassKind], Evaluated]
) -> Evaluated:
    """What `logprobs` says of the kinds, from passes through the model.

    Args:
        kind: which of them.
        kv: of the rollout.
        given: [B, T], replay's log-probs, evaluated elsewhere; None: `evaluate` has to.
        evaluate: a forward pass.
    """
    match kind:
        case "dense":
            return evaluate("dense")
        case "replay":
            replay = evaluate("replay")
            return replay if given is None else Evaluated(hybrid(given, replay.logprobs))
        case "hybrid":
            if given is None and one_pass(kv):
                return evaluate("hybrid")
            if given is None:
                with torch.no_grad():
                    given = evaluate("replay").logprobs
            return Evaluated(hybrid(given, evaluate("dense").logprobs))
    raise ValueError(f"log-probs {kind!r} are none of dense, replay and hybrid")


def one_pass(kv: ReplayKV) -> bool:
    """Whether the replay is the dense pass, read out elsewhere, so that hybrid takes one pass for both."""
    return kv == "deferred_fill"


def run_and_read_depths(kv: ReplayKV, depths: Tensor | None) -> tuple[Tensor | None, Tensor | None]:
    """For a replay at these depths the loops that rows run, and those after which they are read out; None: all K."""
    return (depths, None) if kv == "last_exited" else (None, depths)


def read_at(states: Sequence[Tensor], depths: Tensor) -> Tensor:
    """Rows as they stood after loops of their own.

    Args:
        states: after each loop, [N, H] each.
        depths: [N] int64, those loops, from 1.
    """
    read = states[-1]
    for loop, state in enumerate(states[:-1], start=1):
        read = torch.where((depths == loop)[:, None], state, read)
    return read


def dense_logprobs(
    model: OuroForCausalLM,
    batch: PackedBatch,
    *,
    temperature: float,
    schedule: Schedule | None = None,
    readout: Readout = FULL,
) -> Tensor:
    """`logprob=dense`: every token at full depth, in one teacher-forced causal pass.

    Read out after the last loop, at the positions that predict response tokens only.

    Args:
        model: the policy.
        batch: what it sampled; padding has no influence.
        temperature: of the sampling, above 0: the distribution is softmax(logits / temperature) over the whole
            vocabulary. (Dividing log-probs instead would leave it unnormalised.)
        schedule: activation checkpointing; None: none.
        readout: how hidden states become log-probs.

    Returns:
        [B, T] in the internal dtype, zero where there is no response token.
    """
    _check(temperature)
    last = sequence_states(model, batch, None, schedule)[-1]
    return _read_out(model, last[batch.predictors], batch, temperature, readout)


def replay_logprobs(
    model: OuroForCausalLM,
    batch: PackedBatch,
    *,
    temperature: float,
    schedule: Schedule | None = None,
    readout: Readout = FULL,
    kv: ReplayKV = "last_exited",
) -> Tensor:
    """`logprob=replay`: every token at its recorded exit depth, under the rollout's own schedule; see
    `learner/rows.py`.

    Arguments and result are those of `dense_logprobs`; kv: of the rollout.
    """
    _check(temperature)
    run, read = run_and_read_depths(kv, row_depths(batch, model.config.total_ut_steps))
    states = sequence_states(model, batch, run, schedule)
    if read is None:
        predicting = states[-1][batch.predictors]
    else:
        predicting = read_at([state[batch.predictors] for state in states], read[batch.predictors])
    return _read_out(model, predicting, batch, temperature, readout)


def loop_logprobs(
    model: OuroForCausalLM,
    batch: PackedBatch,
    *,
    temperature: float,
    schedule: Schedule | None = None,
    readout: Readout = FULL,
    exits: bool = False,
) -> Evaluated:
    """Dense log-probs read out after every loop, the last loop's being `dense_logprobs`, whose arguments these are;
    with `exits` the exit distribution too."""
    _check(temperature)
    states = [state[batch.predictors] for state in sequence_states(model, batch, None, schedule)]
    return Evaluated(
        torch.stack([_read_out(model, state, batch, temperature, readout) for state in states]),
        exit_probabilities(model, states, batch.response_mask) if exits else None,
    )


@torch.no_grad()
def exit_probabilities(model: OuroForCausalLM, states: Sequence[Tensor], mask: Tensor) -> Tensor:
    """Of the exit gate, laid out as [K, B, T], zero where `mask` [B, T] is false.

    Args:
        model: the policy.
        states: after each loop, [N, H] each, N true places of the mask.
        mask: where they belong.
    """
    probabilities = exit_distribution(torch.stack([model.exit_gate(state) for state in states], -1)).T
    laid_out = mask.expand(len(states), *mask.shape)
    return probabilities.new_zeros(laid_out.shape).masked_scatter(laid_out, probabilities)


def hybrid(replay: Tensor, dense: Tensor) -> Tensor:
    """`logprob=hybrid`: the value of `replay`, bit for bit, with the gradient of `dense`.

    replay + (dense - dense), the latter a zero that has a gradient, in dense's dtype. In this association alone is the
    value exact: (replay + dense) - dense and dense + (replay - dense) both round. Where dense is minus infinity the
    difference would be NaN: there the value stays replay's and no gradient flows.
    """
    reachable = torch.where(torch.isneginf(dense), torch.zeros_like(dense), dense)
    return replay.detach().to(dense) + (reachable - reachable.detach())


@torch.no_grad()
def response_logprobs(
    kind: LogprobKind,
    model: OuroForCausalLM,
    responses: Sequence[TrainingResponse],
    *,
    temperature: float,
    microbatch_tokens: int,
    readout: Readout = FULL,
    kv: ReplayKV = "last_exited",
) -> list[list[float]]:
    """Log-probs of each response's tokens, without gradient: what old and reference log-probs are made of.

    Args:
        kind: as for `logprobs`; hybrid values are those of replay, which are always evaluated here.
        model: the policy.
        responses: any number, empty ones too.
        temperature: of the sampling, above 0.
        microbatch_tokens: padded tokens per forward pass.
        readout: how hidden states become log-probs.
        kv: of the rollout.
    """
    values: list[list[float]] = [[] for _ in responses]
    filled = [index for index, response in enumerate(responses) if response.response_tokens]
    for picked in microbatches([responses[index].rows for index in filled], microbatch_tokens):
        chosen = [filled[index] for index in picked]
        batch = pack([replace(responses[index], replay_logprobs=None) for index in chosen], model.device)
        without_gradient: LogprobKind = "replay" if kind == "hybrid" else kind
        evaluated = logprobs(without_gradient, model, batch, temperature=temperature, readout=readout, kv=kv)
        for index, row in zip(chosen, evaluated.tolist(), strict=True):
            values[index] = row[: len(responses[index].response_tokens)]
    return values


def _check(temperature: float) -> None:
    if temperature <= 0:
        raise ValueError(f"temperature {temperature}: greedy sampling has no distribution to learn from")


def _read_out(
    model: OuroForCausalLM, predicting: Tensor, batch: PackedBatch, temperature: float, readout: Readout
) -> Tensor:
    """The states of the predictors [N, H] to the log-probs of the targets, laid out as [B, T]."""
    sampled = readout(model, predicting, batch.targets, temperature)
    return sampled.new_zeros(batch.response_mask.shape).masked_scatter(batch.response_mask, sampled)
