"""Depth matching: the gate asked along the recorded depths, against the engine that recorded them."""

from typing import Any

import pytest
import torch
from models.small import small_model

from scalerlt.learner.batching import TrainingResponse, pack
from scalerlt.learner.depth_match import depth_matches
from scalerlt.rollout.exit_rule import ExitRule
from scalerlt.rollout.native import NativeEngine
from scalerlt.rollout.request import Request

RULES = [
    ExitRule(0.5, 1),
    ExitRule(0.6, 2),
    ExitRule(0.4, 1, 3),
    ExitRule(1.0, 2, 2),
    ExitRule(0.5, 1, delay=1),
    ExitRule(0.4, 1, 3, delay=1),
]


def rollout(model: Any, rule: ExitRule) -> list[TrainingResponse]:
    requests = [
        Request(request_id=str(index), prompt_tokens=tuple(range(1, 3 + index)), max_new_tokens=6 + index, seed=index)
        for index in range(5)
    ]
    responses = NativeEngine(model, concurrency=3, exit_rule=rule).generate(requests).responses
    return [
        TrainingResponse(request.prompt_tokens, response.tokens, 1.0, exit_depths=response.exit_depths)
        for request, response in zip(requests, responses, strict=True)
    ]


def gated_model() -> Any:
    model = small_model(dtype=torch.float64)
    with torch.no_grad():
        model.model.early_exit_gate.weight.mul_(20)
        model.model.early_exit_gate.bias.fill_(-0.5)
    return model


@pytest.mark.parametrize("rule", RULES, ids=str)
def test_the_policy_that_generated_matches_everywhere(rule: ExitRule) -> None:
    model = gated_model()
    responses = rollout(model, rule)
    counted = sum(len(response.response_tokens) - 1 for response in responses)
    assert depth_matches(model, pack(responses), rule) == (counted, counted)


def test_another_rule_or_gate_matches_less() -> None:
    model = gated_model()
    responses = rollout(model, RULES[0])
    depths = {depth for response in responses for depth in response.exit_depths or ()}
    assert len(depths) > 2, "the gate has to decide something"
    batch = pack(responses)
    matches, counted = depth_matches(model, batch, ExitRule(0.9, 1))
    assert matches < counted
    for bias, depth in ((1e3, 1), (-1e3, model.config.total_ut_steps)):  # always stops at once, never stops
        with torch.no_grad():
            model.model.early_exit_gate.bias.fill_(bias)
        recorded_there = sum(found == depth for response in responses for found in (response.exit_depths or ())[1:])
        assert depth_matches(model, batch, RULES[0])[0] == recorded_there
