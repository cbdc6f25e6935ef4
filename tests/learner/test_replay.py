from dataclasses import replace

import pytest
import torch
from learner.plain_learner import ragged_responses
from learner.plain_replay import plain_replay
from models.small import SMALL, small_model

import scalerlt.learner.rows as rows_module
from scalerlt.learner.batching import PackedBatch, TrainingResponse, pack
from scalerlt.learner.checkpoint import LayerCheckpoint, LoopCheckpoint, NoCheckpoint
from scalerlt.learner.logprobs import dense_logprobs, logprobs, replay_logprobs
from scalerlt.learner.optimizer import ActorOptimizer, OptimizerSettings, freeze_exit_gate
from scalerlt.learner.sequences import row_depths
from scalerlt.learner.step import ActorUpdate
from scalerlt.models.checkpoint import build
from scalerlt.models.ouro import OuroForCausalLM
from scalerlt.rollout.exit_rule import ExitRule
from scalerlt.rollout.native import NativeEngine
from scalerlt.rollout.request import Request, Response

K = SMALL.total_ut_steps


def with_depths(responses: list[TrainingResponse], seed: int = 0) -> list[TrainingResponse]:
    """The responses with depths of all kinds, the first of each K."""
    generator = torch.Generator().manual_seed(seed)
    return [
        replace(
            r, exit_depths=[K, *torch.randint(1, K + 1, (len(r.response_tokens),), generator=generator).tolist()][:n]
        )
        for r, n in ((r, len(r.response_tokens)) for r in responses)
    ]


def plain(model: OuroForCausalLM, response: TrainingResponse, temperature: float) -> list[torch.Tensor]:
    assert response.exit_depths is not None
    return plain_replay(
        dict(model.named_parameters()),
        model.config,
        list(response.prompt_tokens),
        list(response.response_tokens),
        list(response.exit_depths),
        temperature,
    )


def largest_error(values: torch.Tensor, model: OuroForCausalLM, responses: list[TrainingResponse]) -> float:
    errors = [0.0]
    for row, response in zip(values, responses, strict=True):
        expected = [value.item() for value in plain(model, response, 0.7)]
        errors += [abs(ours - theirs) for ours, theirs in zip(row.tolist(), expected, strict=False)]
        assert not row[len(expected) :].any()
    return max(errors)


def test_values_against_one_token_at_a_time():
    model, responses = small_model(), with_depths(ragged_responses(lengths=(1, 7, 2, 12)))
    with torch.no_grad():
        values = replay_logprobs(model, pack(responses), temperature=0.7)
        assert largest_error(values, model, responses) < 1e-12
        dense = dense_logprobs(model, pack(responses), temperature=0.7)
        assert largest_error(dense, model, responses) > 0.1  # the schedule matters


def test_gradient_against_one_token_at_a_time():
    model, responses = small_model(), with_depths(ragged_responses(lengths=(1, 6, 3)), seed=2)
    freeze_exit_gate(model)
    parameters = [p for p in model.parameters() if p.requires_grad]
    values = replay_logprobs(model, pack(responses), temperature=0.7)
    coefficients = torch.randn(values.shape, generator=torch.Generator().manual_seed(4), dtype=torch.float64)
    found = torch.autograd.grad((coefficients * values).sum(), parameters)
    loss = sum(
        (coefficients[row, t] * value).sum()
        for row, response in enumerate(responses)
        for t, value in enumerate(plain(model, response, 0.7))
    )
    expected = torch.autograd.grad(loss, parameters)
    for ours, theirs in zip(found, expected, strict=True):
        assert float((ours - theirs).abs().max()) < 1e-12 * max(1.0, float(theirs.abs().max()))


def no_version_kept(layer, schedule, attend, positions, rows, plane, cos, sin, x, *planes):
    """Skipped loops have no K and V at all."""
    planes = tuple(torch.zeros_like(plane) for plane in planes)
    return real_layer(layer, schedule, attend, positions, rows, plane, cos, sin, x, *planes)


def no_gradient_through_old_versions(layer, schedule, attend, positions, rows, plane, cos, sin, x, *planes):
    planes = tuple(plane.detach() for plane in planes)
    return real_layer(layer, schedule, attend, positions, rows, plane, cos, sin, x, *planes)


real_layer = rows_module._layer


def test_mutants_of_the_copied_versions_are_found_out(monkeypatch: pytest.MonkeyPatch):
    model, responses = small_model(), with_depths(ragged_responses(lengths=(1, 7, 5)))
    parameters = [model.model.layers[0].self_attn.k_proj.weight]
    honest = replay_logprobs(model, pack(responses), temperature=0.7)
    gradient = torch.autograd.grad(honest.sum(), parameters)[0]
    monkeypatch.setattr(rows_module, "_layer", no_version_kept)
    with torch.no_grad():
        assert largest_error(replay_logprobs(model, pack(responses), temperature=0.7), model, responses) > 1e-3
    monkeypatch.setattr(rows_module, "_layer", no_gradient_through_old_versions)
    detached = replay_logprobs(model, pack(responses), temperature=0.7)
    assert torch.equal(detached, honest)
    assert float((torch.autograd.grad(detached.sum(), parameters)[0] - gradient).abs().max()) > 1e-4


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_full_depth_is_dense(dtype: torch.dtype):
    model, responses = small_model(dtype), ragged_responses(lengths=(1, 7, 2, 12))
    full = [replace(r, exit_depths=[K] * len(r.response_tokens)) for r in responses]
    dense = dense_logprobs(model, pack(responses), temperature=0.7)
    for batch in (pack(responses), pack(full)):
        values = replay_logprobs(model, batch, temperature=0.7)
        assert torch.allclose(values, dense, rtol=0, atol=1e-12 if dtype == torch.float64 else 1e-4)


def test_depth_of_each_input_is_that_of_the_token_after_it():
    batch = pack([TrainingResponse([7, 8], [1, 2, 4], 1.0, exit_depths=[3, 1, 2]), TrainingResponse([9, 9], [], 1.0)])
    assert row_depths(batch, 3).tolist() == [3, 3, 1, 2, 3]
    assert row_depths(pack([TrainingResponse([7], [1, 2], 1.0)]), 3).tolist() == [3, 3]


@pytest.mark.parametrize(
    ("depths", "message"), [([3, 4], "outside 1 .. 3"), ([3, 0], "outside 1 .. 3"), ([2, 3], "start with 3")]
)
def test_depths_that_no_rollout_leaves(depths: list[int], message: str):
    with pytest.raises(ValueError, match=message):
        row_depths(pack([TrainingResponse([1], [1, 2], 1.0, exit_depths=depths)]), 3)


def test_depths_of_some_responses_alone_are_refused():
    with pytest.raises(ValueError, match="some have none"):
        pack([TrainingResponse([1], [1], 1.0, exit_depths=[3]), TrainingResponse([1], [1], 1.0)])


NAMES = ["mask", "exit_depths", "rollout_logprobs", "old_logprobs", "ref_logprobs", "replay_logprobs"]


@pytest.mark.parametrize("name", NAMES)
def test_values_are_as_many_as_tokens(name: str):
    with pytest.raises(ValueError, match=f"1 values of {name} for 2"):
        TrainingResponse([1], [2, 3], 1.0, **{name: [1]})


def test_a_batch_holds_no_recorded_log_prob():
    assert set(PackedBatch.__dataclass_fields__) == {
        "inputs", "positions", "places", "response_mask", "predictors", "targets", "exit_depths", "replay_logprobs",
    }  # fmt: skip
    recorded = [replace(r, rollout_logprobs=[-1.0] * len(r.response_tokens)) for r in ragged_responses()]
    assert pack(recorded).replay_logprobs is None


def test_only_rows_that_are_still_running_are_run():
    seen: list[int] = []

    class Counting(NoCheckpoint):
        def layers(self, steps, tables, x, planes):
            seen.append(len(x))
            return super().layers(steps, tables, x, planes)

    responses = [TrainingResponse([1, 2], [3, 4, 5, 6], 1.0, exit_depths=[3, 1, 2, 2])]
    short = TrainingResponse([1], [2], 1.0, exit_depths=[3])
    for asked, running in ((responses, [5, 4, 2]), ([*responses, short], [6, 5, 3])):
        seen.clear()
        replay_logprobs(small_model(), pack(asked), temperature=1.0, schedule=Counting())
        assert seen == running


def gradients(schedule, kind: str, dtype: torch.dtype):
    model = small_model(dtype)
    freeze_exit_gate(model)
    learner = ActorUpdate(
        model,
        ActorOptimizer(model, OptimizerSettings(name="sgd", learning_rate=1.0)),
        schedule=schedule,
        reduction="token_mean",
        temperature=0.8,
        microbatch_tokens=64,
        logprob=kind,
    )
    loss = learner.backward(with_depths(ragged_responses())).loss
    return loss, learner.optimizer.gradients()


@pytest.mark.parametrize("schedule", [LayerCheckpoint, LoopCheckpoint])
@pytest.mark.parametrize("kind", ["replay", "hybrid"])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_checkpoints_change_nothing_bit_for_bit(schedule, kind: str, dtype: torch.dtype):
    loss, found = gradients(schedule(), kind, dtype)
    expected_loss, expected = gradients(NoCheckpoint(), kind, dtype)
    assert loss == expected_loss
    for name, gradient in expected.items():
        assert gradient is not None and torch.equal(found[name], gradient), name


# The engine: K/V caches, one token at a time, batches of its own.

DEEP = replace(SMALL, total_ut_steps=4, initializer_range=0.1)


def deep_model(dtype: torch.dtype = torch.float32) -> OuroForCausalLM:
    model = build(DEEP, dtype=dtype, device="cpu", seed=5)
    with torch.no_grad():
        model.model.early_exit_gate.weight.mul_(6.0)
    return model


def requests(model: OuroForCausalLM) -> list[Request]:
    generator = torch.Generator().manual_seed(1)
    return [
        Request(
            request_id=str(index),
            prompt_tokens=tuple(torch.randint(DEEP.vocab_size, (1 + 2 * index,), generator=generator).tolist()),
            max_new_tokens=3 + 5 * index,
            temperature=0.8,
            seed=index,
            ignore_eos=True,
        )
        for index in range(5)
    ]


def generate(model: OuroForCausalLM, asked: list[Request]) -> list[Response]:
    return NativeEngine(model, concurrency=3, exit_rule=ExitRule(threshold=0.6, min_loops=1)).generate(asked).responses


def learnable(asked: list[Request], answers: list[Response]) -> list[TrainingResponse]:
    """Tokens and depths, and no log-prob."""
    return [
        TrainingResponse(request.prompt_tokens, answer.tokens, 1.0 - 0.5 * index, exit_depths=answer.exit_depths)
        for index, (request, answer) in enumerate(zip(asked, answers, strict=True))
    ]


def difference(model: OuroForCausalLM, responses: list[TrainingResponse], answers: list[Response]) -> float:
    """Largest |replay - log-prob of the engine|."""
    with torch.no_grad():
        values = logprobs("replay", model, pack(responses), temperature=0.8)
    return max(
        abs(ours - theirs)
        for row, answer in zip(values.tolist(), answers, strict=True)
        for ours, theirs in zip(row, answer.logprobs, strict=False)
    )


@pytest.mark.parametrize(("dtype", "limit"), [(torch.float32, 2e-6), (torch.float64, 1e-12)])
def test_replay_is_what_the_engine_recorded(dtype: torch.dtype, limit: float):
    model = deep_model(dtype)
    asked = requests(model)
    answers = generate(model, asked)
    assert {depth for answer in answers for depth in answer.exit_depths[1:]} == {1, 2, 3, 4}
    assert difference(model, learnable(asked, answers), answers) < limit


def test_after_an_update_replay_is_the_new_policy_and_not_the_record():
    model = deep_model()
    asked = requests(model)
    answers = generate(model, asked)
    responses = learnable(asked, answers)
    freeze_exit_gate(model)
    learner = ActorUpdate(
        model,
        ActorOptimizer(model, OptimizerSettings(name="sgd", learning_rate=0.5)),
        schedule=NoCheckpoint(),
        reduction="token_mean",
        temperature=0.8,
        microbatch_tokens=64,
        logprob="replay",
    )
    assert learner.step(responses).updated
    assert difference(model, responses, answers) > 1e-2
    forced = [
        replace(request, forced_tokens=answer.tokens, forced_depths=answer.exit_depths)
        for request, answer in zip(asked, answers, strict=True)
    ]
    fresh = NativeEngine(model, concurrency=3).generate(forced).responses
    assert [answer.tokens for answer in fresh] == [answer.tokens for answer in answers]
    assert difference(model, responses, fresh) < 2e-6


def test_a_mutated_token_depth_or_weight_is_found_out():
    model = deep_model()
    asked = requests(model)
    answers = generate(model, asked)
    responses = learnable(asked, answers)
    for index, response in enumerate(responses):
        for t in range(1, len(response.response_tokens)):
            tokens, depths = list(response.response_tokens), list(response.exit_depths)
            tokens[t] = (tokens[t] + 1) % DEEP.vocab_size
            depths[t] = depths[t] % 4 + 1
            for mutant in (replace(response, response_tokens=tokens), replace(response, exit_depths=depths)):
                mutated = [*responses[:index], mutant, *responses[index + 1 :]]
                assert difference(model, mutated, answers) > 1e-4
    for name, parameter in model.named_parameters():
        if "early_exit_gate" in name:
            continue
        with torch.no_grad():
            original = parameter.clone()
            parameter[..., ::2] *= 1.02  # not all of it: the norms make most matrices scale-free
            assert difference(model, responses, answers) > 1e-5, name
            parameter.copy_(original)
    assert difference(model, responses, answers) < 2e-6
