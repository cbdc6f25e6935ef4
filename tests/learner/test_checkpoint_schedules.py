import pytest
import torch
from learner.plain_learner import ragged_responses
from models.small import SMALL, small_model

from scalerlt.learner.checkpoint import LayerCheckpoint, LoopCheckpoint, NoCheckpoint
from scalerlt.learner.optimizer import ActorOptimizer, OptimizerSettings
from scalerlt.learner.step import ActorUpdate
from scalerlt.measure.saved_tensors import SavedTensors

SCHEDULES = [LayerCheckpoint, LoopCheckpoint]


def gradients(schedule, dtype: torch.dtype):
    model = small_model(dtype)
    learner = ActorUpdate(
        model,
        ActorOptimizer(model, OptimizerSettings(name="sgd", learning_rate=1.0)),
        schedule=schedule,
        reduction="token_mean",
        temperature=0.8,
        microbatch_tokens=64,
    )
    loss = learner.backward(ragged_responses()).loss
    return loss, {name: gradient for name, gradient in learner.optimizer.gradients().items() if gradient is not None}


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_loss_and_gradient_are_those_without_checkpoints_bit_for_bit(schedule, dtype: torch.dtype):
    loss, found = gradients(schedule(), dtype)
    expected_loss, expected = gradients(NoCheckpoint(), dtype)
    assert loss == expected_loss
    assert found.keys() == expected.keys()
    assert len(found) == 2 * 11 + 3  # all but the gate's two
    for name in expected:
        assert torch.equal(found[name], expected[name]), name


def saved_bytes(schedule, batch: int, length: int, dtype: torch.dtype = torch.float32) -> int:
    """Of the K loops alone, from the embedded tokens on, parameters excluded."""
    model = small_model(dtype)
    tokens = torch.randint(SMALL.vocab_size, (batch, length), generator=torch.Generator().manual_seed(0))
    with SavedTensors(exclude=model.parameters()) as saved:
        states = model(tokens, schedule=schedule)
    del states
    return saved.peak_bytes


@pytest.mark.parametrize(("batch", "length"), [(1, 5), (3, 16)])
@pytest.mark.parametrize(("dtype", "width"), [(torch.float32, 4), (torch.float64, 8), (torch.bfloat16, 2)])
def test_saved_bytes_of_checkpoints_in_closed_form(batch: int, length: int, dtype: torch.dtype, width: int):
    K, L = SMALL.total_ut_steps, SMALL.num_hidden_layers
    state = batch * length * SMALL.hidden_size * width
    tables = 2 * length * SMALL.head_dim * width  # cos and sin, shared by all loops
    tokens = batch * length * 8  # kept by the embedding
    # A loop keeps its input. The last result is no region's input.
    assert saved_bytes(LoopCheckpoint(), batch, length, dtype) == K * state + tables + tokens
    # A layer keeps its input. The final norm of each loop is outside them and keeps its input and the inverse deviation
    # of each row in the internal dtype, and the normalised state.
    internal = 8 if dtype == torch.float64 else 4
    norm = batch * length * (SMALL.hidden_size + 1) * internal + state
    assert saved_bytes(LayerCheckpoint(), batch, length, dtype) == K * (L * state + norm) + tables + tokens


def test_more_is_kept_the_less_is_computed_again():
    none, layer, loop = (saved_bytes(schedule(), 2, 12) for schedule in (NoCheckpoint, *SCHEDULES))
    assert none > layer > loop


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_a_forward_pass_without_gradient_works(schedule):
    model = small_model()
    tokens = torch.tensor([[1, 2, 3]])
    with torch.no_grad():
        assert torch.equal(model(tokens, schedule=schedule())[-1], model(tokens)[-1])
