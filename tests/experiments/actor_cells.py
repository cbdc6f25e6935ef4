"""Small cells and synthetic rollouts for `actor_update`."""

import math
import random
from pathlib import Path
from typing import Any

import pytest
import torch
from schema.plain_config import plain_config

from scalerlt.experiments import actor_update
from scalerlt.learner.checkpoint import NoCheckpoint
from scalerlt.records.samples import Sample, SamplesHeader, write_samples
from scalerlt.schema import Cell, load_cell


class _HalvingBackward(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        return gradient * 0.5


class WrongGradient(NoCheckpoint):
    """A schedule whose forward pass is right and whose gradient is not."""

    def layers(self, steps, tables, x, planes):
        x, *planes = super().layers(steps, tables, x, planes)
        return _HalvingBackward.apply(x), *planes


def make_cell(rollouts: Path, *, values: dict[str, Any] | None = None, **options: str) -> Cell:
    """The default `actor_update` cell on a small model; `values` are overrides by dotted key."""
    small = {
        "task.rollouts": str(rollouts),
        "model.vocab_size": 64,
        "model.weights": None,
        "model.hidden_size": 32,
        "model.intermediate_size": 48,
        "batch.prompts_per_step": 2,
        "batch.group_size": 4,
        "batch.minibatch_responses": 4,
        "batch.microbatch_tokens": 48,
        "experiment.repeats": 2,
    }
    return load_cell(plain_config(small | (values or {}), **options))


def leave_out_comparisons(monkeypatch: pytest.MonkeyPatch) -> None:
    """Cells of `actor_update` measure time and memory alone, without the runs that gradients are compared with."""
    monkeypatch.setattr(actor_update, "_compare_schedule", lambda *arguments: (None, None, None))
    monkeypatch.setattr(actor_update, "compare_policy", lambda *arguments: (None, None))
    for name in ("errors", "bias", "spread"):
        monkeypatch.setattr(actor_update, f"_record_{name}", lambda *arguments: None)


def write_rollouts(path: Path, *, groups: int = 3, group_size: int = 4, vocab_size: int = 64, **fields: Any) -> Path:
    """Ragged responses with advantages of both signs; `fields` replace those of every sample."""
    draw = random.Random(0)
    samples = []
    for group in range(groups):
        prompt = [draw.randrange(vocab_size) for _ in range(3 + group)]
        for member in range(group_size):
            length = 1 + (5 * member + 3 * group) % 9
            values = {
                "problem_id": f"problem-{group}",
                "prompt_group": group,
                "prompt_tokens": prompt,
                "response_tokens": [draw.randrange(vocab_size) for _ in range(length)],
                "logprobs": [-4.0] * length,
                "temperature": 1.0,
                "finish_reason": "length",
                "seed": member,
                "weight_version": 0,
                "reward": float(member % 2),
                "advantage": math.cos(1 + member + 2 * group),
            }
            samples.append(Sample(**values | fields))
    write_samples(path, SamplesHeader(model="synthetic", vocab_size=vocab_size, made_by="tests"), samples)
    return path
