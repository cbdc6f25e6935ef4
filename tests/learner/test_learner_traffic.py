"""Bytes that a learner step moved, against what torch's operations really had as operands and against closed forms."""

import math
from typing import Any

import pytest
import torch
from learner.plain_learner import ragged_responses
from learner.prefix_cases import group
from learner.test_replay import with_depths
from measure.operand_counter import OperandCounter
from models.small import SMALL, small_model
from torch.utils.checkpoint import set_checkpoint_early_stop

from scalerlt.learner.batching import TrainingResponse
from scalerlt.learner.checkpoint import LayerCheckpoint, LoopCheckpoint, NoCheckpoint
from scalerlt.learner.optimizer import ActorOptimizer, OptimizerSettings, freeze_exit_gate
from scalerlt.learner.prefix import JointPrefix, PackedPrefix, SharedPrefix, StreamedPrefix
from scalerlt.learner.rltt import Rltt
from scalerlt.learner.step import ActorUpdate, StepResult

K, L, V = SMALL.total_ut_steps, SMALL.num_hidden_layers, SMALL.vocab_size
HIDDEN = 20
LAYER = HIDDEN * (2 * 24 + 2 * 12 + 3 * 28 + 4)
TABLE = V * HIDDEN
WEIGHTS = L * LAYER + HIDDEN + 2 * TABLE
ADAMW = OptimizerSettings(name="adamw", learning_rate=0.01)


def make_learner(
    dtype: torch.dtype = torch.float32, schedule: Any = None, settings: OptimizerSettings = ADAMW, **options: Any
) -> ActorUpdate:
    model = small_model(dtype)
    freeze_exit_gate(model)
    return ActorUpdate(
        model,
        ActorOptimizer(model, settings),
        schedule=schedule or NoCheckpoint(),
        reduction="token_mean",
        temperature=1.0,
        microbatch_tokens=20,
        **options,
    )


def responses() -> list[TrainingResponse]:
    return with_depths(ragged_responses(lengths=(1, 7, 2, 12)))


CASES: dict[str, dict[str, Any]] = {
    "dense": {},
    "layer": {"schedule": LayerCheckpoint()},
    "loop": {"schedule": LoopCheckpoint()},
    "replay": {"logprob": "replay"},
    "hybrid, loop": {"logprob": "hybrid", "schedule": LoopCheckpoint()},
    "all loops, layer": {"objective": Rltt(alpha=1.0, kl_coef=0.0), "schedule": LayerCheckpoint()},
    "bf16": {"dtype": torch.bfloat16},
    "prefix": {"schedule": SharedPrefix(2)},
    "prefix, bf16": {"schedule": SharedPrefix(2), "dtype": torch.bfloat16},
    "prefix, packed, hybrid": {"schedule": PackedPrefix(), "logprob": "hybrid"},
    "prefix, replay": {"schedule": SharedPrefix(2), "logprob": "replay"},
    "prefix, all loops, joint": {"schedule": JointPrefix(2), "objective": Rltt(alpha=1.0, kl_coef=0.0)},
    "prefix, hybrid, joint": {"schedule": JointPrefix(2), "logprob": "hybrid"},
    "prefix, hybrid, joint, filled": {"schedule": JointPrefix(2), "logprob": "hybrid", "kv": "deferred_fill"},
    "hybrid, loop, filled": {"schedule": LoopCheckpoint(), "logprob": "hybrid", "kv": "deferred_fill"},
    "prefix, hybrid, streamed, bf16": {"schedule": StreamedPrefix(2), "logprob": "hybrid", "dtype": torch.bfloat16},
}


@pytest.mark.parametrize("case", CASES)
def test_against_the_operands_of_every_operation(case: str) -> None:
    """Without the early stop of torch's checkpoint, which leaves out a region's last product with a norm's weight."""
    learner = make_learner(**CASES[case])
    asked = [*group(0, 5, (4, 1, 6)), *group(1, 3, (1, 1))] if "prefix" in case else responses()
    with OperandCounter(learner.model) as operands, set_checkpoint_early_stop(False):
        result = learner.backward(asked)
    assert result.microbatches == 3
    traffic = learner.traffic(StepResult(**vars(result), grad_norm=learner.optimizer.step(), updated=True))
    size = learner.model.dtype.itemsize
    evaluations = 2 if "hybrid" in case else 1
    again = (2 if "filled" in case else 1) * ("joint" in case)
    readouts = K if "all loops" in case else 1
    head = operands.read.pop("lm_head.weight")
    assert traffic.weights == operands.read.total()
    assert traffic.gradients == operands.products.total() + operands.added + operands.cast
    targets = sum(len(response.response_tokens) for response in asked)
    assert traffic.readout == head + 2 * (evaluations + 1 + again) * readouts * targets * V * size
    assert set(operands.products) == {"mm", "sum", "embedding_dense_backward"}


@pytest.mark.parametrize(
    ("case", "again"), [("dense", 0), ("layer", K * L * LAYER), ("loop", K * (L * LAYER + HIDDEN))]
)
def test_weights_and_gradients_in_closed_form(case: str, again: int) -> None:
    asked = responses()
    learner = make_learner(**CASES[case])
    result = learner.step(asked)
    traffic, batches = learner.traffic(result), result.microbatches
    once = K * (L * LAYER + HIDDEN)
    assert traffic.weights == 4 * (batches * (2 * once + again) + sum(r.rows for r in asked) * HIDDEN)
    written = batches * (once + 2 * TABLE)
    assert traffic.gradients == 4 * (2 * written - WEIGHTS), "each sum is written first and read before every other"
    assert traffic.readout == 4 * (2 * batches * TABLE + 4 * 22 * V)
    assert traffic.total == traffic.weights + traffic.gradients + traffic.readout + traffic.optimizer


@pytest.mark.parametrize(
    ("dtype", "options", "bytes_per_weight"),
    [
        # Norm 1, update 1 + 2 x (1 + moments), clipping 2, in units of the masters' 4 bytes; 4 + 2 to round back.
        (torch.float32, {"name": "adamw"}, 4 * (1 + 1 + 2 * 3)),
        (torch.float32, {"name": "adamw", "max_grad_norm": 1.0}, 4 * (1 + 1 + 2 * 3 + 2)),
        (torch.bfloat16, {"name": "adamw"}, 4 * (1 + 1 + 2 * 3) + 4 + 2),
        (torch.float32, {"name": "sgd"}, 4 * (1 + 1 + 2)),
        (torch.float64, {"name": "sgd", "momentum": 0.9}, 8 * (1 + 1 + 2 * 2)),
    ],
)
def test_the_optimizers_bytes(dtype: torch.dtype, options: dict[str, Any], bytes_per_weight: int) -> None:
    learner = make_learner(dtype, settings=OptimizerSettings(learning_rate=0.01, **options))
    assert learner.traffic(learner.step(responses())).optimizer == bytes_per_weight * WEIGHTS


def test_a_step_that_updates_nothing() -> None:
    learner = make_learner()
    untrained = learner.step([TrainingResponse([1, 2], [3, 4], 1.0, mask=[False, False])])
    assert learner.traffic(untrained).total == 0
    infinite = learner.step([TrainingResponse([1, 2], [3, 4], math.inf)])
    assert not infinite.updated
    assert learner.traffic(infinite).optimizer == 4 * WEIGHTS, "the norm alone"
