"""The packed replay of `deferred_fill`: the dense forward pass, each token read out after its own loop."""

from dataclasses import replace

import pytest
import torch
from learner.plain_learner import ragged_responses
from learner.plain_replay import plain_replay
from learner.prefix_cases import LAYOUTS, gradients, group, largest_difference, make_learner, none_learner
from learner.test_depth_match import RULES, gated_model
from learner.test_replay import with_depths
from models.small import SMALL, small_model
from torch import Tensor

from scalerlt.learner.batching import TrainingResponse, pack
from scalerlt.learner.checkpoint import LayerCheckpoint, LoopCheckpoint, NoCheckpoint
from scalerlt.learner.depth_match import depth_matches
from scalerlt.learner.logprobs import dense_logprobs, logprobs, loop_logprobs, replay_logprobs, response_logprobs
from scalerlt.learner.optimizer import freeze_exit_gate
from scalerlt.learner.sequences import row_depths
from scalerlt.models.ouro import OuroForCausalLM
from scalerlt.rollout.exit_rule import ExitRule

K = SMALL.total_ut_steps


def plain(model: OuroForCausalLM, response: TrainingResponse) -> list[Tensor]:
    weights = dict(model.named_parameters())
    tokens = list(response.prompt_tokens), list(response.response_tokens), list(response.exit_depths or ())
    return plain_replay(weights, model.config, *tokens, 0.7, filled=True)


def test_values_against_one_token_at_a_time() -> None:
    model, responses = small_model(), with_depths(ragged_responses(lengths=(1, 7, 2, 12)))
    with torch.no_grad():
        expected = [value.item() for response in responses for value in plain(model, response)]
    batch = pack(responses)
    found = replay_logprobs(model, batch, temperature=0.7, kv="deferred_fill")[batch.response_mask]
    assert found.tolist() == pytest.approx(expected, rel=0, abs=1e-12)
    for other in (replay_logprobs(model, batch, temperature=0.7), dense_logprobs(model, batch, temperature=0.7)):
        assert float((other[batch.response_mask] - found).detach().abs().max()) > 0.05  # neither schedule is this one
    values = response_logprobs("hybrid", model, responses, temperature=0.7, microbatch_tokens=12, kv="deferred_fill")
    assert [value for row in values for value in row] == pytest.approx(expected, rel=0, abs=1e-12)


def test_gradient_against_one_token_at_a_time() -> None:
    model, responses = small_model(), with_depths(ragged_responses(lengths=(1, 6, 3)), seed=2)
    freeze_exit_gate(model)
    parameters = [p for p in model.parameters() if p.requires_grad]
    batch = pack(responses)
    values = replay_logprobs(model, batch, temperature=0.7, kv="deferred_fill")[batch.response_mask]
    coefficients = torch.randn(len(values), generator=torch.Generator().manual_seed(4), dtype=torch.float64)
    found = torch.autograd.grad((coefficients * values).sum(), parameters)
    own = torch.stack([value for response in responses for value in plain(model, response)])
    expected = torch.autograd.grad((coefficients * own).sum(), parameters)
    for ours, theirs in zip(found, expected, strict=True):
        assert float((ours - theirs).abs().max()) < 1e-12 * max(1.0, float(theirs.abs().max()))


def test_it_is_the_dense_pass_read_out_after_each_tokens_loop() -> None:
    model, responses = small_model(torch.float32), with_depths(ragged_responses())
    batch = pack(responses)
    every_loop = loop_logprobs(model, batch, temperature=0.7).logprobs
    depths = row_depths(batch, K)[batch.predictors]
    expected = every_loop[:, batch.response_mask].gather(0, depths[None] - 1)[0]
    found = replay_logprobs(model, batch, temperature=0.7, kv="deferred_fill")[batch.response_mask]
    assert torch.allclose(found, expected, rtol=0, atol=1e-5)
    assert set(depths.tolist()) == {1, 2, 3}
    hybrid = logprobs("hybrid", model, batch, temperature=0.7, kv="deferred_fill")[batch.response_mask]
    assert torch.equal(hybrid, found)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_a_hybrid_is_one_pass_with_the_value_of_one_and_the_gradient_of_another(dtype: torch.dtype) -> None:
    model, batch = small_model(dtype), pack(with_depths(ragged_responses()))
    options = {"temperature": 0.7, "kv": "deferred_fill"}
    found = logprobs("hybrid", model, batch, **options)
    dense = logprobs("dense", model, batch, **options)
    assert torch.equal(found, logprobs("replay", model, batch, **options))
    assert not torch.equal(found, dense)
    coefficients = torch.randn(found.shape, generator=torch.Generator().manual_seed(0)).to(found)
    parameters = [p for name, p in model.named_parameters() if "early_exit_gate" not in name]
    ours = torch.autograd.grad((found * coefficients).sum(), parameters)
    theirs = torch.autograd.grad((dense * coefficients).sum(), parameters)
    assert all(torch.equal(a, b) for a, b in zip(ours, theirs, strict=True))


@pytest.mark.parametrize("schedule", [LayerCheckpoint(), LoopCheckpoint()])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_checkpoints_change_nothing_bit_for_bit(schedule, dtype: torch.dtype) -> None:
    options = {"dtype": dtype, "logprob": "replay", "kv": "deferred_fill"}
    responses = with_depths(ragged_responses())
    expected = gradients(make_learner(NoCheckpoint(), **options), responses)
    found = gradients(make_learner(schedule, **options), responses)
    assert found[0] == expected[0]
    assert all(torch.equal(found[1][name], gradient) for name, gradient in expected[1].items())


@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_layout_reads_out_where_the_token_stopped(layout) -> None:
    """A mutated depth is another loss, in every layout the same one."""
    responses = group(31, 5, (4, 3))
    options = {"logprob": "replay", "kv": "deferred_fill"}
    expected = gradients(none_learner(**options), responses)
    assert largest_difference(gradients(make_learner(layout(2), **options), responses), expected) < 1e-12
    depths = list(responses[0].exit_depths or ())
    depths[2] = depths[2] % K + 1
    mutant = [replace(responses[0], exit_depths=depths), responses[1]]
    other = gradients(make_learner(layout(2), **options), mutant)
    assert abs(other[0] - expected[0]) > 1e-4
    assert largest_difference(other, gradients(none_learner(**options), mutant)) < 1e-12


@pytest.mark.parametrize("layout", LAYOUTS)
def test_it_runs_all_loops_of_all_rows(layout) -> None:
    responses = group(31, 5, (4, 3, 1))
    filled = make_learner(layout(2), logprob="replay", kv="deferred_fill").backward(responses)
    dense = make_learner(layout(2)).backward(responses)
    stopped = make_learner(layout(2), logprob="replay").backward(responses)
    assert filled.runs == dense.runs
    both = make_learner(layout(2), logprob="hybrid", kv="deferred_fill").backward(responses)
    again = dense.runs.evaluations - 1  # what the layout computes again is read out again, all of it
    assert replace(both.runs, evaluations=0) == replace(dense.runs, evaluations=0)
    assert both.runs.evaluations == 2 + 2 * again
    assert stopped.runs.token_calls < filled.runs.token_calls


def stopped_where_the_gate_says(model: OuroForCausalLM, response: TrainingResponse, rule: ExitRule) -> TrainingResponse:
    """With the depths that the rule gives on the dense model, from a fresh pass over the tokens before each."""
    tokens, depths = [*response.prompt_tokens, *response.response_tokens], [K]
    most = min(rule.max_loops or K, K)
    for position in range(len(response.prompt_tokens) + 1, len(tokens)):
        remaining, depth = 1.0, most
        with torch.no_grad():
            states = model(torch.tensor([tokens[:position]]))
            for loop in range(1, most + 1):
                remaining *= 1 - torch.sigmoid(model.exit_gate(states[loop - 1][0, -1])).item()
                if rule.asks_gate and bool(rule.stops(loop, torch.tensor([remaining]))[0]):
                    depth = min(loop + rule.delay, most)
                    break
        depths.append(depth)
    return replace(response, exit_depths=depths[: len(response.response_tokens)])


@pytest.mark.parametrize("rule", RULES, ids=str)
def test_depths_of_the_dense_states_match_everywhere(rule: ExitRule) -> None:
    model = gated_model()
    responses = [stopped_where_the_gate_says(model, r, rule) for r in ragged_responses(lengths=(3, 9, 12, 1))]
    counted = sum(len(response.response_tokens) - 1 for response in responses)
    assert depth_matches(model, pack(responses), rule, "deferred_fill") == (counted, counted)


def test_another_rollouts_states_or_rule_match_less() -> None:
    model, rule = gated_model(), RULES[0]
    responses = [stopped_where_the_gate_says(model, r, rule) for r in ragged_responses(lengths=(3, 9, 40, 1))]
    depths = {depth for response in responses for depth in response.exit_depths[1:]}
    assert len(depths) > 2, "the gate has to decide something"
    batch = pack(responses)
    matches, counted = depth_matches(model, batch, rule, "deferred_fill")
    assert matches == counted
    assert depth_matches(model, batch, rule, "last_exited")[0] < counted
    assert depth_matches(model, batch, ExitRule(0.9, 1), "deferred_fill")[0] < counted
