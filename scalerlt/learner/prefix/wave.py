"""Some responses to one prompt, run together after its boundary."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from scalerlt.learner.batching import TrainingResponse, packed_replay, values_of
from scalerlt.learner.checkpoint.schedule import Schedule
from scalerlt.learner.layout import Estimator
from scalerlt.learner.logprobs import Evaluated, PassKind, exit_probabilities, hybrid, read_at, run_and_read_depths
from scalerlt.learner.prefix.attention import prefix_attention
from scalerlt.learner.prefix.boundary import Boundary
from scalerlt.learner.rows import places_of, run_loops
from scalerlt.models.ouro import OuroForCausalLM


@dataclass(frozen=True, kw_only=True)
class Wave:
    """Responses of T_i >= 1 tokens, packed without padding.

    Attributes:
        prompt: tokens of the prompt, P; the first row of a response stands at position P.
        lengths: T_i.
        inputs: [R] int64, the responses without their last tokens, R = sum of T_i - 1.
        labels: [N] int64, all response tokens, N = sum of T_i.
        depths: recorded exit depth of each of the R rows; None: all K.
        replay_logprobs: [B, T] fp64, zero at padding; None: not given.
    """

    prompt: int
    lengths: tuple[int, ...]
    inputs: Tensor
    labels: Tensor
    depths: tuple[int, ...] | None
    replay_logprobs: Tensor | None

    @property
    def padding(self) -> int:
        """Places that hold no row where the rows are padded for attention."""
        lengths = following(self)
        return len(lengths) * max(lengths, default=0) - len(self.inputs)


def wave_of(responses: Sequence[TrainingResponse], full_depth: int, device: torch.device) -> Wave:
    """The responses, all to the same prompt and none empty, as a wave.

    Raises:
        ValueError: exit depths that no rollout with K = `full_depth` leaves; or only some responses have them, or
            log-probs of the replay.
    """

    def packed(rows: Sequence[Sequence[int]]) -> Tensor:
        return torch.tensor([token for row in rows for token in row], dtype=torch.int64, device=device)

    tokens = [response.response_tokens for response in responses]
    return Wave(
        prompt=len(responses[0].prompt_tokens),
        lengths=tuple(len(row) for row in tokens),
        inputs=packed([row[:-1] for row in tokens]),
        labels=packed(tokens),
        depths=_depths(responses, full_depth),
        replay_logprobs=packed_replay(responses, device),
    )


def wave_logprobs(
    estimator: Estimator,
    kind: PassKind,
    wave: Wave,
    schedule: Schedule,
    inputs: Tensor,
    labels: Tensor,
    *boundary: Tensor,
) -> Evaluated:
    """Log-probs of the wave's tokens in one pass, from the tensors that are given and no other."""
    model, shared = estimator.model, Boundary(estimator.model, boundary)
    run, read = run_and_read_depths(estimator.kv, row_depths(wave, kind, inputs.device))
    states = suffix_states(model, wave, schedule, run, inputs, shared)
    wanted = slice(None) if estimator.all_loops or read is not None else slice(-1, None)
    predicting = [torch.cat(pair) for pair in zip(shared.last[wanted], states[wanted], strict=True)]
    return read_out(estimator, kind, wave, predicting, labels, read)


def read_out(
    estimator: Estimator,
    kind: PassKind,
    wave: Wave,
    states: Sequence[Tensor],
    labels: Tensor,
    depths: Tensor | None,
) -> Evaluated:
    """As `wave_logprobs`, from the states after each loop, or at least the last, each [1 + R, H], the prompt's last
    position before the rows; rows are read out after so many loops as `depths` [R] says, None: after the last."""
    device = labels.device
    predictors = torch.tensor(_predictors(wave.lengths), device=device)
    lengths = torch.tensor(wave.lengths, device=device)
    mask = torch.arange(max(wave.lengths), device=device) < lengths[:, None]
    every_loop = estimator.all_loops or depths is not None
    predicting = [state[predictors] for state in (states if every_loop else states[-1:])]

    def logprobs(state: Tensor) -> Tensor:
        sampled = estimator.readout(estimator.model, state, labels, estimator.temperature)
        return sampled.new_zeros(mask.shape).masked_scatter(mask, sampled)

    at_exit = predicting[-1]
    if depths is not None:
        at_exit = read_at(predicting, torch.cat((depths.new_full((1,), len(states)), depths))[predictors])
    if kind == "hybrid":
        with torch.no_grad():
            replay = logprobs(at_exit)
        return Evaluated(hybrid(replay, logprobs(predicting[-1])))
    if kind == "replay":
        return Evaluated(logprobs(at_exit))
    evaluated = [logprobs(state) for state in predicting]
    exits = exit_probabilities(estimator.model, predicting, mask) if estimator.exits else None
    return Evaluated(torch.stack(evaluated) if estimator.all_loops else evaluated[0], exits)


def row_depths(wave: Wave, kind: PassKind, device: torch.device) -> Tensor | None:
    """The exit depth of each of the R rows, int64; None: all K."""
    return torch.tensor(wave.depths, device=device) if kind != "dense" and wave.depths else None


def suffix_states(
    model: OuroForCausalLM, wave: Wave, schedule: Schedule, depths: Tensor | None, inputs: Tensor, boundary: Boundary
) -> list[Tensor]:
    """The packed rows after each loop, [R, H] each, run after a prompt that has left its boundary.

    Args:
        model: the policy.
        wave: the rows' responses.
        schedule: how layers and loops are executed.
        depths: as `run_loops` takes them; the prompt always runs all loops.
        inputs: [R] int64, the tokens.
        boundary: of the prompt.
    """
    if not len(inputs):
        return [boundary.last[0].new_empty(0, model.config.hidden_size)] * model.config.total_ut_steps
    places = places_of(following(wave), inputs.device)

    def attend(loop: int, layer: int, rows: Tensor | None, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return prefix_attention(q, k, v, *boundary.keys_and_values(loop, layer), places, rows)

    return run_loops(model, schedule, inputs, positions_of(wave, inputs.device), depths, attend)


def positions_of(wave: Wave, device: torch.device) -> Tensor:
    """[R] int64, where the rows stand in their sequences."""
    return wave.prompt + torch.cat([torch.arange(length - 1, device=device) for length in wave.lengths])


def following(wave: Wave) -> list[int]:
    """The lengths of the responses that have rows, without their last tokens."""
    return [length - 1 for length in wave.lengths if length > 1]


def _depths(responses: Sequence[TrainingResponse], full_depth: int) -> tuple[int, ...] | None:
    """Loops of each row: an input token runs as many as produced the token after it."""
    recorded = values_of(responses, "exit_depths")
    if recorded is None:
        return None
    if any(not 1 <= depth <= full_depth for depths in recorded for depth in depths):
        raise ValueError(f"exit_depths holds a depth outside 1 .. {full_depth}")
    if any(depths[0] != full_depth for depths in recorded):
        raise ValueError(f"exit_depths of a response does not start with {full_depth}: prompts run all loops")
    return tuple(depth for depths in recorded for depth in depths[1:])


def _predictors(lengths: Sequence[int]) -> list[int]:
    """Of each label the row that predicts it, row 0 being the prompt's last position and the wave's rows following."""
    predictors, start = [], 1
    for length in lengths:
        predictors += [0, *range(start, start + length - 1)]
        start += length - 1
    return predictors
