import os

import pytest
import torch
from learner.plain_learner import ragged_responses
from measure.storage_counter import StorageCounter
from models.small import SMALL, small_model

from scalerlt.learner.checkpoint import LayerCheckpoint, LoopCheckpoint, NoCheckpoint
from scalerlt.learner.optimizer import ActorOptimizer, OptimizerSettings, freeze_exit_gate
from scalerlt.learner.step import ActorUpdate, no_phase
from scalerlt.measure.memory import MemoryReport, measure_memory

ADAMW = OptimizerSettings(name="adamw", learning_rate=1e-3)
RESPONSES = ragged_responses(lengths=(30, 29, 28, 30))


def make_learner(schedule, dtype: torch.dtype, tokens: int = 1000) -> ActorUpdate:
    model = small_model(dtype)
    freeze_exit_gate(model)
    learner = ActorUpdate(
        model,
        ActorOptimizer(model, ADAMW),
        schedule=schedule,
        reduction="token_mean",
        temperature=1.0,
        microbatch_tokens=tokens,
    )
    learner.step(RESPONSES)  # makes the optimizer's state
    return learner


def memory(schedule, dtype: torch.dtype = torch.float32, tokens: int = 1000) -> MemoryReport:
    learner = make_learner(schedule, dtype, tokens)
    return measure_memory(
        lambda on_phase: learner.step(RESPONSES, on_phase),
        device=torch.device("cpu"),
        parameters=learner.model.parameters(),
    )


@pytest.mark.parametrize("schedule", [NoCheckpoint, LayerCheckpoint, LoopCheckpoint])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_live_peak_of_a_learner_step_agrees_with_an_independent_count(schedule, dtype: torch.dtype):
    report = memory(schedule(), dtype)
    learner = make_learner(schedule(), dtype)
    with StorageCounter() as counter:
        learner.step(RESPONSES, no_phase)
    assert counter.peak > 4 * counter.largest
    assert abs(report.step.live - counter.peak) <= counter.largest


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
