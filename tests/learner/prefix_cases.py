"""Steps over prompt groups with everything that could go wrong in them, and learners of every layout."""

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from hypothesis import strategies as st
from models.small import SMALL, small_model

from scalerlt.learner.auto import AutoLayout, CostModel
from scalerlt.learner.batching import TrainingResponse
from scalerlt.learner.checkpoint import NoCheckpoint, Segments
from scalerlt.learner.grpo import Grpo
from scalerlt.learner.layout import WholeSequences
from scalerlt.learner.optimizer import ActorOptimizer, OptimizerSettings, freeze_exit_gate
from scalerlt.learner.prefix import JointPrefix, PackedPrefix, SharedPrefix, StreamedPrefix
from scalerlt.learner.rltt import Rltt
from scalerlt.learner.step import ActorUpdate, PolicyGradient
from scalerlt.learner.work import BYTES_FEATURES, SECONDS_FEATURES

SHAPES = st.lists(
    st.tuples(st.integers(1, 6), st.lists(st.integers(0, 6), min_size=1, max_size=5)), min_size=1, max_size=3
)
"""Of each prompt group its prompt's length and those of its responses."""

WAVES = (SharedPrefix, JointPrefix, StreamedPrefix)
"""The layouts that take their responses in waves."""


def packed(wave_responses: int) -> PackedPrefix:
    """The layout without waves."""
    return PackedPrefix()


CANDIDATES = ("none", "packed_shared", "prefix", "streamed", "joint", "layer", "loop")


def forced(name: str, waves: int = 2) -> AutoLayout:
    """The choice of this candidate whatever the step: all others exceed the budget."""
    chooser = AutoLayout(waves, "1GiB", 1.0)
    step = tuple(float(feature == "step") for feature in BYTES_FEATURES)
    chooser.costs = CostModel(
        {candidate: (1.0,) * len(SECONDS_FEATURES) for candidate in CANDIDATES},
        {candidate: tuple(2**31 * (candidate != name) * one for one in step) for candidate in CANDIDATES},
    )
    return chooser


def chosen(wave_responses: int) -> AutoLayout:
    """A choice among layouts, another for each number of responses of a wave up to four."""
    return forced(CANDIDATES[wave_responses % len(CANDIDATES)], wave_responses)


def segmented(wave_responses: int) -> WholeSequences:
    """Whole sequences in segments of every kind, other ones for each number of responses of a wave up to three."""
    return WholeSequences(Segments(*((2, 1, 3), (1, 0, 2), (0, 2, 0), (2, 0, 5))[wave_responses % 4]))


LAYOUTS = (*WAVES, packed, chosen, segmented)
TWO_UPDATES = OptimizerSettings(name="adamw", learning_rate=1e-3, eps=1e-5, weight_decay=0.1)
GRPO = Grpo(clip_low=0.2, clip_high=0.3, kl_coef=0.1)
RLTT = Rltt(alpha=1.5, kl_coef=0.1)
RLTT_BY_EXITS = Rltt(alpha=None, kl_coef=0.1)

ESTIMATORS: dict[str, dict[str, Any]] = {
    "dense": {},
    "replay": {"logprob": "replay"},
    "hybrid": {"logprob": "hybrid"},
    "replay deferred_fill": {"logprob": "replay", "kv": "deferred_fill"},
    "grpo dense": {"objective": GRPO},
    "grpo hybrid": {"objective": GRPO, "logprob": "hybrid"},
    "grpo hybrid deferred_fill": {"objective": GRPO, "logprob": "hybrid", "kv": "deferred_fill"},
    "rltt": {"objective": RLTT},
    "rltt by exits": {"objective": RLTT_BY_EXITS},
}


def make_learner(
    layout: Any,
    dtype: torch.dtype = torch.float64,
    *,
    reduction: str = "token_mean",
    tokens: int = 1000,
    initializer_range: float = SMALL.initializer_range,
    frozen: Sequence[str] = (),
    **options: Any,
) -> ActorUpdate:
    """A learner of the small model, by default a rough one; `frozen` parameters are, beside the exit gate."""
    model = small_model(dtype)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "norm" not in name:
                parameter.mul_(initializer_range / SMALL.initializer_range)
            parameter.requires_grad_(name not in frozen)
    freeze_exit_gate(model)
    return ActorUpdate(
        model,
        ActorOptimizer(model, TWO_UPDATES),
        schedule=layout,
        reduction=reduction,
        temperature=0.7,
        microbatch_tokens=tokens,
        objective=options.pop("objective", PolicyGradient()),
        **options,
    )


def gradients(learner: ActorUpdate, responses: Sequence[TrainingResponse]) -> tuple[float, dict[str, torch.Tensor]]:
    loss = learner.backward(responses).loss
    return loss, {name: value.clone() for name, value in learner.optimizer.gradients().items() if value is not None}


def largest_difference(found: tuple[float, dict], expected: tuple[float, dict]) -> float:
    """Of the loss and of every element of every gradient, in units of the norm of its gradient where that is above 1.

    (This model is rough: with torch's plain attention kernel in place of the fused one, whole sequences alone differ
    by 2e-12 in an element of a gradient of norm 48.)
    """
    assert found[1].keys() == expected[1].keys()
    errors = [abs(found[0] - expected[0])]
    for name, gradient in expected[1].items():
        errors.append(float((found[1][name] - gradient).abs().max()) / max(1.0, float(gradient.norm())))
    return max(errors)


def group(seed: int, prompt: int, lengths: Sequence[int]) -> list[TrainingResponse]:
    """Responses of these lengths to one prompt of so many tokens, with recorded depths of all kinds and log-probs."""
    generator = torch.Generator().manual_seed(seed)

    def draw(count: int, low: int, high: int) -> list[int]:
        return torch.randint(low, high, (count,), generator=generator).tolist()

    tokens, depth = draw(prompt, 0, SMALL.vocab_size), SMALL.total_ut_steps
    responses = []
    for index, length in enumerate(lengths):
        scores = (-4 * torch.rand(2, length, generator=generator)).tolist()
        responses.append(
            TrainingResponse(
                list(tokens),
                draw(length, 0, SMALL.vocab_size),
                math.sin(1 + seed + 2.3 * index),
                exit_depths=[depth, *draw(length, 1, depth + 1)][:length],
                rollout_logprobs=scores[0],
                ref_logprobs=scores[1],
            )
        )
    return responses


def step_responses(seed: int) -> list[TrainingResponse]:
    """Prompts of different lengths, one of them in two groups and one of one token; ragged, one-token and empty
    responses, one fully and one partly masked; a prompt whose responses all have one token, and one with none left."""
    first, second, third = group(seed, 5, (4, 1, 0, 6)), group(seed + 1, 1, (2, 7, 3, 3)), group(seed + 2, 3, (1, 1))
    again = [replace(r, prompt_tokens=list(first[0].prompt_tokens)) for r in group(seed + 3, 2, (3, 5))]
    silent = [replace(r, mask=[False] * len(r.response_tokens)) for r in group(seed + 4, 4, (2, 0))]
    second[1] = replace(second[1], mask=[True, False, True, True, False, False, True])
    second[2] = replace(second[2], mask=[False] * 3)
    return [*first, *second, *silent, *third, *again]


def none_learner(**options: Any) -> ActorUpdate:
    return make_learner(NoCheckpoint(), **options)
