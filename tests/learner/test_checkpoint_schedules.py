from functools import cache

import pytest
import torch
from learner import prefix_cases
from learner.plain_learner import ragged_responses
from learner.prefix_cases import largest_difference, make_learner, none_learner, step_responses
from models.small import SMALL, small_model

from scalerlt.learner.batching import TrainingResponse, pack
from scalerlt.learner.checkpoint import LayerCheckpoint, LoopCheckpoint, NoCheckpoint, Segments
from scalerlt.learner.optimizer import ActorOptimizer, OptimizerSettings
from scalerlt.learner.sequences import sequence_states
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


def batch_of(count: int, length: int):
    """Sequences of `length` rows each."""
    tokens = torch.randint(SMALL.vocab_size, (count, length + 1), generator=torch.Generator().manual_seed(0)).tolist()
    return pack([TrainingResponse(row[:-1], row[-1:], 1.0) for row in tokens])


def saved_bytes(schedule, count: int, length: int, dtype: torch.dtype = torch.float32) -> int:
    """Of the K loops alone, from the embedded tokens on, parameters excluded."""
    model, batch = small_model(dtype), batch_of(count, length)
    with SavedTensors(exclude=model.parameters()) as saved:
        states = sequence_states(model, batch, None, schedule)
    del states
    return saved.peak_bytes


@pytest.mark.parametrize(("batch", "length"), [(1, 5), (3, 16)])
@pytest.mark.parametrize(("dtype", "width"), [(torch.float32, 4), (torch.float64, 8), (torch.bfloat16, 2)])
def test_saved_bytes_of_checkpoints_in_closed_form(batch: int, length: int, dtype: torch.dtype, width: int):
    K, L = SMALL.total_ut_steps, SMALL.num_hidden_layers
    state = batch * length * SMALL.hidden_size * width
    tables = 2 * batch * length * SMALL.head_dim * width  # cos and sin, shared by all loops
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
    model, batch = small_model(), batch_of(1, 3)
    with torch.no_grad():
        assert torch.equal(sequence_states(model, batch, None, schedule())[-1], sequence_states(model, batch, None)[-1])


GRID = [
    (loops, layers, chunk)
    for loops in (0, 1, 2)
    for layers in (0, 1, 2)
    for chunk in (0, 1, 5)
    if loops or layers or chunk
]


@cache
def of_whole_sequences(logprob: str):
    """Loss and gradients of the step that the segments below learn from."""
    return prefix_cases.gradients(none_learner(logprob=logprob), step_responses(31))


@pytest.mark.parametrize("logprob", ["dense", "replay", "hybrid"])
@pytest.mark.parametrize(("loops", "layers", "chunk"), GRID)
def test_segments_of_any_size_learn_what_whole_sequences_learn(loops: int, layers: int, chunk: int, logprob: str):
    expected = of_whole_sequences(logprob)
    found = prefix_cases.gradients(make_learner(Segments(loops, layers, chunk), logprob=logprob), step_responses(31))
    if chunk:
        assert largest_difference(found, expected) < 1e-12
    else:
        assert found[0] == expected[0]
        assert all(torch.equal(found[1][name], gradient) for name, gradient in expected[1].items())


def test_what_segments_compute_again():
    asked = step_responses(31)

    def calls(schedule) -> dict[str, tuple[int, int]]:
        runs = make_learner(schedule).backward(asked).runs
        return {part: (runs.forward[part], runs.recomputed[part]) for part in ("loop", "layer")}

    K, L = SMALL.total_ut_steps, SMALL.num_hidden_layers
    assert calls(NoCheckpoint()) == {"loop": (K, 0), "layer": (K * L, 0)}
    assert calls(Segments(2, 0, 0)) == {"loop": (K, K), "layer": (K * L, K * L)}
    assert calls(Segments(0, 2, 0)) == {"loop": (K, 0), "layer": (K * L, K * L)}
    # Layers within loops: once more to reach the segment's inside, and once more in the inside.
    assert calls(Segments(2, 1, 0)) == {"loop": (K, K), "layer": (K * L, 2 * K * L)}
    assert calls(Segments(0, 0, 3)) == {"loop": (K, 0), "layer": (K * L, 0)}


@pytest.mark.parametrize("chunk", [1, 5, 8])
def test_saved_bytes_of_query_chunks_in_closed_form(chunk: int):
    """Of a layer are kept what its projections keep, and each chunk's input: x and q, the rotated k and v once."""
    K, L, width, count, length = SMALL.total_ut_steps, SMALL.num_hidden_layers, 8, 3, 16
    rows, kv = count * length, SMALL.num_key_value_heads * SMALL.head_dim
    norm = rows * (2 * SMALL.hidden_size + 1) * width
    projected = norm + rows * SMALL.hidden_size * width  # the weighted norm feeds three products
    chunks = rows * (SMALL.hidden_size + SMALL.num_attention_heads * SMALL.head_dim + 2 * kv) * width
    tables, tokens = 2 * rows * SMALL.head_dim * width, 8 * rows
    indices = 2 * 8 * rows  # the rows of each chunk, and where all of them stood
    found = saved_bytes(Segments(0, 0, chunk), count, length, torch.float64)
    assert found == K * (L * (projected + chunks + indices) + norm) + tables + tokens
