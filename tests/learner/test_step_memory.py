import os
from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch
from learner.plain_learner import ragged_responses
from learner.prefix_cases import group
from measure.storage_counter import StorageCounter
from models.small import SMALL, small_model

from scalerlt.learner.batching import TrainingResponse
from scalerlt.learner.checkpoint import LayerCheckpoint, LoopCheckpoint, NoCheckpoint, Segments
from scalerlt.learner.optimizer import ActorOptimizer, OptimizerSettings, freeze_exit_gate
from scalerlt.learner.prefix import JointPrefix, PackedPrefix, SharedPrefix, StreamedPrefix
from scalerlt.learner.readout import TiledReadout
from scalerlt.learner.rltt import Rltt
from scalerlt.learner.step import ActorUpdate, no_phase
from scalerlt.measure.breakdown import ByPart, Standing, break_down
from scalerlt.measure.memory import MemoryReport, measure_memory
from scalerlt.models.checkpoint import build
from scalerlt.models.config import OuroConfig

ADAMW = OptimizerSettings(name="adamw", learning_rate=1e-3)
RESPONSES = ragged_responses(lengths=(30, 29, 28, 30))
SHARED = [
    replace(response, exit_depths=[min(depth, 2) if place else 2 for place, depth in enumerate(response.exit_depths)])
    for response in group(seed=1, prompt=9, lengths=(24, 23, 22, 24))
]
SCHEDULES = {
    "none": NoCheckpoint,
    "layer": LayerCheckpoint,
    "loop": LoopCheckpoint,
    "segments": lambda: Segments(loop_interval=2, layer_interval=1, query_chunk=16),
    "prefix": lambda: SharedPrefix(wave_responses=2),
    "joint": lambda: JointPrefix(wave_responses=2),
    "streamed": lambda: StreamedPrefix(wave_responses=2),
    "packed_shared": PackedPrefix,
}
ESTIMATORS = {
    "full": {},
    "tiled": {"readout": TiledReadout(tile=100)},
    "replay": {"logprob": "replay"},
    "rltt": {"objective": Rltt(alpha=1.5, kl_coef=0.0)},
    "rltt tiled": {"objective": Rltt(alpha=1.5, kl_coef=0.0), "readout": TiledReadout(tile=100)},
}
FLAT = replace(SMALL, vocab_size=256, hidden_size=64, total_ut_steps=2, num_hidden_layers=1)
"""Few operations, and tensors that are large beside what a bf16 kernel allocates for itself, which nobody counts."""


def make_learner(
    schedule,
    dtype: torch.dtype,
    tokens: int = 1000,
    responses: Sequence[TrainingResponse] = RESPONSES,
    config: OuroConfig = SMALL,
    **options,
) -> ActorUpdate:
    model = small_model(dtype) if config is SMALL else build(config, dtype=dtype, device="cpu", seed=3)
    freeze_exit_gate(model)
    learner = ActorUpdate(
        model,
        ActorOptimizer(model, ADAMW),
        schedule=schedule,
        reduction="token_mean",
        temperature=1.0,
        microbatch_tokens=tokens,
        **options,
    )
    learner.step(responses)  # makes the optimizer's state
    return learner


def memory(schedule, dtype: torch.dtype = torch.float32, tokens: int = 1000) -> MemoryReport:
    learner = make_learner(schedule, dtype, tokens)
    return measure_memory(
        lambda on_phase: learner.step(RESPONSES, on_phase),
        device=torch.device("cpu"),
        parameters=learner.model.parameters(),
    )


def reports(
    learner: ActorUpdate, responses: Sequence[TrainingResponse] = SHARED
) -> tuple[MemoryReport, ByPart, StorageCounter]:
    """The memory of a step over a shared prompt: as it is reported, by part, and by an independent count."""
    model, optimizer = learner.model, learner.optimizer
    moments = [moment for by_name in optimizer.moments().values() for moment in by_name.values()]
    standing = Standing(
        weights=tuple(model.parameters()),
        optimizer=(*moments, *optimizer.masters.values()),
        heads=(model.lm_head.weight,),
    )
    cpu = torch.device("cpu")

    def step(on_phase=no_phase) -> None:
        learner.step(responses, on_phase)

    report = measure_memory(step, device=cpu, parameters=model.parameters())
    parts = break_down(step, device=cpu, standing=standing)
    with StorageCounter() as counter:
        step()
    return report, parts, counter


@pytest.mark.parametrize(
    ("schedule", "estimator", "dtype"),
    [
        *((schedule, "full", torch.float32) for schedule in SCHEDULES),
        *((schedule, "tiled", torch.bfloat16) for schedule in ("none", "loop", "joint", "streamed", "packed_shared")),
        *((schedule, "replay", torch.float32) for schedule in ("none", "segments", "prefix", "packed_shared")),
    ],
)
def test_peaks_agree_with_an_independent_count_and_the_parts_add_up_to_them(
    schedule: str, estimator: str, dtype: torch.dtype
):
    learner = make_learner(SCHEDULES[schedule](), dtype, responses=SHARED, config=FLAT, **ESTIMATORS[estimator])
    report, parts, counter = reports(learner)
    assert counter.peak > 4 * counter.largest
    assert abs(report.step.live - counter.peak) <= counter.largest

    weights = sum(parameter.nbytes for parameter in learner.model.parameters())
    optimizer = learner.optimizer.state_bytes()
    live = {"step": report.step.live} | {name: peaks.live for name, peaks in report.phases.items()}
    for phase, found in {"step": parts.step, **parts.phases}.items():
        peak = weights + optimizer + live[phase]
        assert abs(peak - sum(found.values())) <= 0.02 * peak
        assert (found["weights"], found["optimizer"]) == (weights, optimizer)
    trained = sum(p.numel() for p in learner.model.parameters() if p.requires_grad)
    assert parts.phases["optimizer"]["gradients"] == 4 * trained  # in fp32, the precision of the masters
    assert parts.phases["backward"]["kv"] > 0
    assert parts.phases["backward"]["activations"] > 0


@pytest.mark.parametrize(("schedule", "estimator"), [("none", "rltt"), ("none", "rltt tiled"), ("prefix", "full")])
def test_where_weights_are_most_of_it_and_the_sums_of_their_gradients_the_peak(schedule: str, estimator: str):
    """Autograd adds some of them in place and some not."""
    few = [TrainingResponse(one.prompt_tokens, one.response_tokens[:2], one.advantage) for one in SHARED]
    config = replace(FLAT, vocab_size=2048)
    learner = make_learner(SCHEDULES[schedule](), torch.float32, responses=few, config=config, **ESTIMATORS[estimator])
    report, parts, counter = reports(learner, few)
    assert abs(report.step.live - counter.peak) <= counter.largest
    assert parts.phases["backward"]["gradients"] > parts.phases["backward"]["activations"]
    peak = parts.step["weights"] + parts.step["optimizer"] + report.step.live
    assert abs(peak - sum(parts.step.values())) <= 0.001 * peak


def test_logits_of_every_loop():
    """Each keeps its log-softmax; the scaled and the unscaled logits of the last one are still there."""
    found = {}
    for estimator in ("full", "rltt"):
        learner = make_learner(NoCheckpoint(), torch.float32, responses=SHARED, config=FLAT, **ESTIMATORS[estimator])
        found[estimator] = reports(learner)[1].phases["forward"]["logits"]
    matrix = 4 * FLAT.vocab_size * sum(len(response.response_tokens) for response in SHARED)
    assert found["rltt"] - found["full"] == (FLAT.total_ut_steps - 1) * matrix


def test_the_parts_of_a_dense_step_by_their_formulas():
    """Of R rows and N targets in fp32, all at once: K and V of every row, loop and layer; logits, scaled and not, and
    their log-softmax."""
    _, parts, _ = reports(make_learner(PackedPrefix(), torch.float32, responses=SHARED, config=FLAT))
    targets = sum(len(response.response_tokens) for response in SHARED)
    rows = 9 + targets - len(SHARED)
    heads = FLAT.num_key_value_heads * FLAT.head_dim
    forward = parts.phases["forward"]
    places = FLAT.total_ut_steps * FLAT.num_hidden_layers
    assert forward["kv"] == 2 * 4 * heads * rows * places
    assert forward["logits"] in [4 * count * targets * FLAT.vocab_size for count in (2, 3)]
    assert forward["gradients"] == 0


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_tile_stands_in_place_of_the_logits(dtype: torch.dtype):
    """In fp32 one matrix, in bf16 the product and its fp32 copy; backward its gradient, in bf16 rounded, beside it."""
    learner = make_learner(PackedPrefix(), dtype, responses=SHARED, config=FLAT, readout=TiledReadout(tile=100))
    _, parts, _ = reports(learner)
    tile = 100 * sum(len(response.response_tokens) for response in SHARED)
    internal, product = 4 * tile, (2 * tile if dtype == torch.bfloat16 else 0)
    for phase in ("forward", "backward"):
        assert parts.phases[phase]["logits"] in (0, internal + product, internal + 2 * product)
    assert max(parts.phases[phase]["logits"] for phase in ("forward", "backward")) > 0


def test_checkpoints_lower_the_live_peak_of_forward_and_backward():
    none, layer, loop = (memory(schedule()) for schedule in (NoCheckpoint, LayerCheckpoint, LoopCheckpoint))
    for report in (layer, loop):
        for phase in ("forward", "backward"):
            assert report.phases[phase].live < none.phases[phase].live
    assert none.phases["forward"].live >= none.saved_bytes


def test_micro_batches_lower_what_is_saved_and_the_peak():
    whole, split = memory(NoCheckpoint()), memory(NoCheckpoint(), tokens=40)
    assert split.saved_bytes < 0.3 * whole.saved_bytes
    assert split.step.live < whole.step.live


def test_gradients_are_live_and_parameters_and_state_are_not():
    report = memory(LoopCheckpoint(), tokens=40)
    gradients = 4 * sum(p.numel() for name, p in small_model().named_parameters() if "early_exit_gate" not in name)
    live = report.phases["optimizer"].live
    assert gradients <= live < gradients + 8 * SMALL.vocab_size * SMALL.hidden_size * 4


def test_a_forked_child_measures_as_its_parent_would():
    read_end, write_end = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            torch.set_num_threads(1)
            report = memory(LoopCheckpoint())
            os.write(write_end, f"{report.saved_bytes} {report.step.live} {report.phases['forward'].live}".encode())
        finally:
            os._exit(0)
    os.close(write_end)
    with os.fdopen(read_end) as pipe:
        found = [int(text) for text in pipe.read().split()]
    assert os.waitpid(child, 0)[1] == 0
    here = memory(LoopCheckpoint())
    assert found == [here.saved_bytes, here.step.live, here.phases["forward"].live]
