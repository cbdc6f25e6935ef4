"""Corrections against loops over tokens in plain Python, and what a learner step makes of them."""

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from learner.prefix_cases import GRPO, gradients, make_learner, none_learner, step_responses
from schema.plain_config import plain_config

from scalerlt.experiments.building import correction_of
from scalerlt.learner.checkpoint import NoCheckpoint
from scalerlt.learner.correction import (
    Correction,
    IcePop,
    MaskedImportance,
    Rejection,
    TruncatedImportance,
    correction_factors,
    correction_statistics,
)
from scalerlt.learner.prefix import PackedPrefix
from scalerlt.records.cell import FileInput
from scalerlt.schema import load_cell
from scalerlt.schema.identity import scientific_keys
from scalerlt.schema.machine import Machine

TOKEN_TIS = TruncatedImportance(threshold=1.2, level="token")
SEQUENCE_TIS = TruncatedImportance(threshold=1.5, level="sequence")
ICEPOP = IcePop(low=0.8, high=1.2)
MIS = MaskedImportance(low=0.7, high=1.4)
SEQ_RS = Rejection(low=0.7, high=1.4, mean=False)
GEO_RS = Rejection(low=0.9, high=1.1, mean=True)
ALL = [TOKEN_TIS, SEQUENCE_TIS, ICEPOP, MIS, SEQ_RS, GEO_RS]


def plain(correction: Correction, ratios: list[float]) -> list[float]:
    """The factors of one response's trained tokens."""
    product = math.prod(ratios)
    match correction:
        case TruncatedImportance(threshold=most, level="token"):
            return [min(ratio, most) for ratio in ratios]
        case TruncatedImportance(threshold=most):
            return [min(product, most)] * len(ratios)
        case IcePop(low=low, high=high):
            return [ratio if low <= ratio <= high else 0.0 for ratio in ratios]
        case MaskedImportance(low=low, high=high):
            return [product if low <= product <= high else 0.0] * len(ratios)
        case Rejection(low=low, high=high, mean=mean):
            value = product ** (1 / len(ratios)) if mean and ratios else product
            return [1.0 if low <= value <= high else 0.0] * len(ratios)
    raise AssertionError(correction)


RATIO = st.floats(0.5, 2.0).filter(
    lambda ratio: all(abs(ratio - edge) > 1e-3 for edge in (0.7, 0.8, 0.9, 1.1, 1.2, 1.4))
)


@pytest.mark.parametrize("correction", ALL)
@settings(max_examples=60, deadline=None)
@given(rows=st.lists(st.lists(st.tuples(RATIO, st.booleans()), min_size=1, max_size=6), min_size=1, max_size=4))
def test_factors_of_any_ratios(correction: Correction, rows: list[list[tuple[float, bool]]]) -> None:
    width = max(map(len, rows))
    difference, mask = torch.zeros(2, len(rows), width, dtype=torch.float64)
    mask = mask.bool()
    for row, tokens in enumerate(rows):
        for place, (ratio, trained) in enumerate(tokens):
            difference[row, place] = math.log(ratio)
            mask[row, place] = trained
    rollout = -torch.rand(mask.shape, dtype=torch.float64)
    rollout[~mask] = -math.inf  # what stands where nothing is trained has no influence
    found = correction_factors(correction, rollout + difference, rollout, mask)
    assert not found[~mask].any()
    for row, tokens in enumerate(rows):
        expected = plain(correction, [ratio for ratio, trained in tokens if trained])
        near_an_edge = any(abs(math.prod(r for r, t in tokens if t) - edge) < 1e-6 for edge in (0.7, 1.4, 1.5))
        if not near_an_edge:
            assert found[row][mask[row]].tolist() == pytest.approx(expected, rel=1e-9)


def test_statistics_in_closed_form() -> None:
    difference = torch.tensor([0.5, 1.0, 3.0, 1.1], dtype=torch.float64).log()
    factors = TruncatedImportance(threshold=2.0, level="token").factors(difference[None], torch.ones(1, 4).bool())[0]
    assert correction_statistics(factors, difference) == pytest.approx(
        {
            "rollout_corr/kept_share": 1.0,
            "rollout_corr/rollout_rs_masked_fraction": 0.0,
            "rollout_corr/factor_mean": (0.5 + 1 + 2 + 1.1) / 4,
            "rollout_corr/factor_max": 2.0,
            "tis_clipfrac": 0.25,
        }
    )
    popped = IcePop(low=0.6, high=2.0).factors(difference[None], torch.ones(1, 4).bool())[0]
    statistics = correction_statistics(popped, difference)
    assert (statistics["rollout_corr/kept_share"], statistics["tis_clipfrac"]) == (0.5, 0.0)


def drifted(seed: int) -> list[Any]:
    """Responses whose old log-probs are near those that the rollout recorded."""
    generator = torch.Generator().manual_seed(seed)
    responses = []
    for response in step_responses(seed):
        shift = (0.3 * torch.randn(len(response.response_tokens), generator=generator)).tolist()
        old = [value + by for value, by in zip(response.rollout_logprobs, shift, strict=True)]
        responses.append(replace(response, old_logprobs=old))
    return responses


@pytest.mark.parametrize("correction", ALL)
def test_a_step_weighs_each_token_by_its_factor(correction: Correction) -> None:
    """A response is split into copies that train one token each, with the advantage times that token's factor."""
    responses = drifted(31)
    found = gradients(none_learner(objective=replace(GRPO, kl_coef=0.0), correction=correction), responses)
    split = []
    for response in responses:
        trained = [t for t, is_trained in enumerate(response.trained) if is_trained]
        ratios = [math.exp(response.old_logprobs[t] - response.rollout_logprobs[t]) for t in trained]
        for t, factor in zip(trained, plain(correction, ratios), strict=True):
            mask = [place == t for place in range(len(response.response_tokens))]
            split.append(replace(response, mask=mask, advantage=response.advantage * factor))
    expected = gradients(none_learner(objective=replace(GRPO, kl_coef=0.0)), split)
    assert found[0] == pytest.approx(expected[0], abs=1e-12)
    for name, gradient in expected[1].items():
        assert float((found[1][name] - gradient).abs().max()) < 1e-12 * max(1.0, float(gradient.norm()))
    assert any(
        float((found[1][name] - g).abs().max()) > 1e-3 for name, g in gradients(none_learner(), responses)[1].items()
    )


@pytest.mark.parametrize("correction", [SEQUENCE_TIS, GEO_RS])
def test_the_split_into_passes_does_not_matter(correction: Correction) -> None:
    options = {"objective": GRPO, "correction": correction}
    whole = make_learner(NoCheckpoint(), **options).backward(drifted(32))
    for learner in (make_learner(NoCheckpoint(), tokens=1, **options), make_learner(PackedPrefix(), **options)):
        result = learner.backward(drifted(32))
        assert result.loss == pytest.approx(whole.loss, abs=1e-12)
        assert result.statistics == pytest.approx(whole.statistics, abs=1e-9)
    assert 0 < whole.statistics["rollout_corr/kept_share"] <= 1


def test_without_old_or_rollout_log_probs_there_is_nothing_to_correct_by() -> None:
    bare = [replace(response, rollout_logprobs=None) for response in drifted(31)]
    with pytest.raises(ValueError, match="needs old and rollout log-probs"):
        none_learner(objective=GRPO, correction=TOKEN_TIS).backward(bare)


CPU = Machine(gpus=0, gpu_reason="none here", cpus=2)
OPTIONS = {
    "tis": TruncatedImportance(threshold=2.0, level="token"),
    "icepop": IcePop(low=0.5, high=5.0),
    "mis": MaskedImportance(low=0.5, high=2.0),
    "seq_rs": Rejection(low=0.5, high=2.0, mean=False),
    "geo_rs": Rejection(low=0.999, high=1.001, mean=True),
}


@pytest.mark.parametrize("name", OPTIONS)
def test_each_option_is_what_it_says_and_refuses_what_it_cannot_correct(name: str) -> None:
    grpo = {"correction": name, "algorithm": "grpo"}
    assert correction_of(load_cell(plain_config({"logprob.old": "dense"}, **grpo))) == OPTIONS[name]
    assert load_cell(plain_config({"logprob.old": "dense"}, **grpo)).unsupported_on(CPU) is None
    for config, reason in (
        (plain_config({}, **grpo), "logprob.old=rollout the ratio of old to rollout log-probs is 1"),
        (plain_config({}, correction=name), "algorithm=policy_gradient takes no ratio"),
    ):
        assert reason in (load_cell(config).unsupported_on(CPU) or "")


def test_no_correction_is_no_part_of_an_identity_and_older_cells_have_none() -> None:
    random = {"logprob.old": "dense", "model.weights": None, "experiment.steps": 1}
    config = plain_config(random, algorithm="grpo", experiment="gsm8k_reward")
    older = {key: value for key, value in config.items() if key != "correction"}
    assert load_cell(older) == load_cell(config)
    assert correction_of(load_cell(older)) is None
    corrected = plain_config(random, algorithm="grpo", experiment="gsm8k_reward", correction="tis")
    inputs = {"task.rollouts": FileInput(path="rollouts.jsonl", sha256="0" * 64)}
    without, with_tis = (scientific_keys(load_cell(one), inputs) for one in (config, corrected))
    assert "correction" not in without
    assert with_tis.pop("correction")["name"] == "tis"
    assert with_tis == without
