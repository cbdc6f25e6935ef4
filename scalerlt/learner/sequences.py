"""Whole sequences through the loops, at full depth or under the schedule that the rollout recorded."""

from functools import partial

import torch
from torch import Tensor

from scalerlt.learner.batching import PackedBatch
from scalerlt.learner.checkpoint.schedule import DIRECT, Schedule
from scalerlt.learner.rows import attend_within, run_loops
from scalerlt.models.ouro import OuroForCausalLM


def sequence_states(
    model: OuroForCausalLM, batch: PackedBatch, depths: Tensor | None, schedule: Schedule | None = None
) -> list[Tensor]:
    """The rows of a batch after each loop, [R, H] each; see `run_loops`.

    Args:
        model: the policy.
        batch: the sequences.
        depths: [R] int64, loops of each row, as `row_depths` gives them; None: all K.
        schedule: activation checkpointing; None: none.
    """
    attend = partial(attend_within, batch.places)
    return run_loops(model, schedule or DIRECT, batch.inputs, batch.positions, depths, attend)


def row_depths(batch: PackedBatch, full_depth: int) -> Tensor:
    """Loops that each row ran when the batch was generated, [R] int64; K = `full_depth` where none are recorded.

    Raises:
        ValueError: an exit depth outside 1 .. K, or a response whose first token was not produced at depth K, as the
            prompt always runs all loops.
    """
    depths = torch.full_like(batch.inputs, full_depth)
    if batch.exit_depths is None:
        return depths
    if bool(((batch.exit_depths < 1) | (batch.exit_depths > full_depth)).any()):
        raise ValueError(f"exit_depths holds a depth outside 1 .. {full_depth}")
    if bool((batch.exit_depths[first_tokens(batch)] != full_depth).any()):
        raise ValueError(f"exit_depths of a response does not start with {full_depth}: prompts run all loops")
    return depths.index_copy(0, batch.predictors, batch.exit_depths)


def first_tokens(batch: PackedBatch) -> Tensor:
    """Which of the N targets are first of their responses, int64."""
    lengths = batch.response_mask.sum(1)
    return (lengths.cumsum(0) - lengths)[lengths > 0]
