"""What shared prefixes run and keep: the published counts, and closed forms for any shapes."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from learner.prefix_cases import TWO_UPDATES
from learner.test_replay import with_depths
from measure.storage_counter import StorageCounter

from scalerlt.learner.batching import TrainingResponse
from scalerlt.learner.checkpoint import NoCheckpoint
from scalerlt.learner.checkpoint.schedule import DIRECT
from scalerlt.learner.layout import Estimator, StepRun, no_phase
from scalerlt.learner.optimizer import ActorOptimizer, freeze_exit_gate
from scalerlt.learner.prefix import JointPrefix, PackedPrefix, SharedPrefix, StreamedPrefix
from scalerlt.learner.prefix.boundary import produce
from scalerlt.learner.prefix.wave import wave_of
from scalerlt.learner.rltt import Rltt
from scalerlt.learner.step import ActorUpdate
from scalerlt.measure.saved_tensors import SavedTensors
from scalerlt.models.checkpoint import build
from scalerlt.models.config import OuroConfig
from scalerlt.models.ouro import OuroForCausalLM

K, L, WIDTH = 4, 2, 8
BYTES = 4


def tiny(kv_heads: int = 2) -> OuroForCausalLM:
    """The published fixture's shape: width 8, 2 layers, 4 loops, fp32."""
    config = OuroConfig(
        vocab_size=19,
        hidden_size=WIDTH,
        intermediate_size=12,
        num_hidden_layers=L,
        num_attention_heads=2,
        num_key_value_heads=kv_heads,
        head_dim=WIDTH // 2,
        total_ut_steps=K,
        rope_theta=50.0,
        rms_norm_eps=1e-5,
        max_position_embeddings=64,
        initializer_range=0.3,
    )
    model = build(config, dtype=torch.float32, device="cpu", seed=0)
    freeze_exit_gate(model)
    return model


def responses_of(prompt: int, lengths: list[int]) -> list[TrainingResponse]:
    return [
        TrainingResponse([t % 19 for t in range(prompt)], [(3 * i + t) % 19 for t in range(n)], 0.5 + i)
        for i, n in enumerate(lengths)
    ]


def learner_of(layout, tokens: int = 1000, **options) -> ActorUpdate:
    model = tiny()
    return ActorUpdate(
        model,
        ActorOptimizer(model, TWO_UPDATES),
        schedule=layout,
        reduction="token_mean",
        temperature=1.0,
        microbatch_tokens=tokens,
        **options,
    )


def token_calls(layout, prompt: int, lengths: list[int], **options) -> int:
    return learner_of(layout, **options).backward(responses_of(prompt, lengths)).runs.token_calls


FIXTURE = (4, [1, 3, 5])


def test_decoder_token_calls_of_the_published_fixture() -> None:
    assert token_calls(SharedPrefix(3), *FIXTURE) == 80
    assert token_calls(JointPrefix(3), *FIXTURE) == 160
    assert token_calls(StreamedPrefix(3), *FIXTURE) == 112
    assert token_calls(PackedPrefix(), *FIXTURE) == 80
    assert token_calls(NoCheckpoint(), *FIXTURE, tokens=1) == K * L * (4 + 6 + 8)


def region_bytes(model: OuroForCausalLM, layout, prompt: int, lengths: list[int], all_loops: bool = True):
    """Saved for the backward pass: of the boundary's leaves, of the prompt's region, of the wave's region."""
    estimator = Estimator(model=model, kind="dense", all_loops=all_loops, temperature=1.0)
    run = StepRun(estimator, ActorOptimizer(model, TWO_UPDATES), DIRECT, no_phase)
    with SavedTensors(exclude=model.parameters()) as producer:
        boundary = layout.region(lambda tokens: produce(model, run.schedule, tokens), torch.arange(prompt))
    leaves = [tensor.detach().requires_grad_() for tensor in boundary]
    with SavedTensors() as held:
        kept = [leaf.exp() * leaf for leaf in leaves]  # keeps each leaf, and a result of its own size
    results = sum(leaf.nbytes for leaf in leaves)
    wave = wave_of(responses_of(prompt, lengths), K, torch.device("cpu"))
    with SavedTensors(exclude=model.parameters()) as saved:
        values = layout.logprobs(wave, leaves, run)
    del kept, values
    return held.peak_bytes - results, producer.peak_bytes, saved.peak_bytes


def test_bytes_of_the_published_fixture() -> None:
    boundary, producer, wave = region_bytes(tiny(), JointPrefix(3), *FIXTURE)
    assert (boundary, producer, wave) == (2560, 32, 2680)
    assert [region_bytes(tiny(), JointPrefix(1), 4, [n])[2] for n in (1, 3, 5)] == [2568, 2600, 2632]
    _, producer, wave = region_bytes(tiny(), SharedPrefix(3), *FIXTURE)
    assert producer > 100 * 32
    assert wave > 2680


SHAPES = {
    "prompt": st.integers(1, 9),
    "lengths": st.lists(st.integers(1, 7), min_size=1, max_size=5),
    "waves": st.integers(1, 5),
}


@settings(max_examples=10, deadline=None)
@given(**SHAPES, all_loops=st.booleans())
def test_decoder_token_calls_in_closed_form(prompt: int, lengths: list[int], waves: int, all_loops: bool) -> None:
    options = {"objective": Rltt(alpha=1.0, kl_coef=0.0)} if all_loops else {}
    suffixes = sum(length - 1 for length in lengths)
    assert token_calls(SharedPrefix(waves), prompt, lengths, **options) == K * L * (prompt + suffixes)
    assert token_calls(PackedPrefix(), prompt, lengths, **options) == K * L * (prompt + suffixes)
    assert token_calls(JointPrefix(waves), prompt, lengths, **options) == 2 * K * L * (prompt + suffixes)
    assert token_calls(StreamedPrefix(waves), prompt, lengths, **options) == K * L * (2 * prompt + suffixes)


@settings(max_examples=25, deadline=None)
@given(prompt=SHAPES["prompt"], lengths=SHAPES["lengths"], kv_heads=st.sampled_from([1, 2]), all_loops=st.booleans())
def test_saved_bytes_of_joint_in_closed_form(prompt: int, lengths: list[int], kv_heads: int, all_loops: bool) -> None:
    boundary, producer, wave = region_bytes(tiny(kv_heads), JointPrefix(5), prompt, lengths, all_loops)
    kv_dim = kv_heads * WIDTH // 2
    assert boundary == K * (2 * L * prompt * kv_dim + prompt * WIDTH) * BYTES
    assert producer == 8 * prompt
    assert wave == boundary + 8 * (sum(lengths) + sum(length - 1 for length in lengths))


def test_early_exits_leave_their_loops_out() -> None:
    asked = with_depths(responses_of(5, [4, 7, 1]), seed=3)
    asked = [TrainingResponse(**(vars(r) | {"exit_depths": [4, *r.exit_depths[1:]]})) for r in asked]
    rows = sum(sum(r.exit_depths[1:]) for r in asked)
    result = learner_of(SharedPrefix(2), logprob="replay").backward(asked)
    assert result.runs.token_calls == L * (K * 5 + rows)
    packed = learner_of(PackedPrefix(), logprob="replay").backward(asked)
    assert packed.runs.token_calls == L * (K * 5 + rows)
    both = learner_of(JointPrefix(2), logprob="hybrid").backward(asked)
    assert both.runs.token_calls == L * (2 * K * (5 + 9) + rows)
    for layout in (SharedPrefix(2), PackedPrefix()):
        one_prompt = learner_of(layout, logprob="hybrid").backward(asked).runs
        assert one_prompt.token_calls == L * (K * (5 + 9) + rows)
        assert one_prompt.rows == 5 + 2 * 9


def test_counts_of_a_step() -> None:
    asked = [*responses_of(4, [1, 3, 5]), *responses_of(2, [2, 2])]
    result = learner_of(SharedPrefix(2)).backward(asked)
    assert (result.microbatches, result.trained_tokens, result.prompt_tokens) == (3, 13, 3 * 4 + 2 * 2)
    assert result.padded_tokens == 4 - 2  # rows of 4 and 2 in one wave
    assert result.runs.rows == 4 + 6 + 2 + 2


@pytest.mark.parametrize("prompt", [4, 40])
def test_streamed_has_no_higher_live_peak_than_joint(prompt: int) -> None:
    peaks = {}
    for layout in (NoCheckpoint(), SharedPrefix(3), JointPrefix(3), StreamedPrefix(3)):
        learner, asked = learner_of(layout), responses_of(prompt, FIXTURE[1] * 3)
        learner.step(asked)  # makes the optimizer's state
        with StorageCounter() as counter:
            learner.backward(asked)
        peaks[type(layout).__name__] = counter.peak
    assert peaks["StreamedPrefix"] <= peaks["JointPrefix"] <= peaks["SharedPrefix"] < peaks["NoCheckpoint"], peaks


def test_streamed_holds_no_boundary_while_the_prompt_runs_again() -> None:
    prompt, peaks = 60, {}
    for layout in (JointPrefix(3), StreamedPrefix(3)):
        learner, asked = learner_of(layout), responses_of(prompt, [2])
        learner.step(asked)
        with StorageCounter() as counter:
            learner.backward(asked)
        peaks[type(layout).__name__] = counter.peak
    boundary = K * (2 * L * prompt * WIDTH + prompt * WIDTH) * BYTES
    assert peaks["StreamedPrefix"] < peaks["JointPrefix"] - boundary // 2
