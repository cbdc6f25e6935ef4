import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from scalerlt.learner.mismatch import k3, mismatch, percentile


def test_figures_by_hand():
    """Ratios 2, 1/2 and 1; the masked token would change every figure."""
    learner = torch.tensor([[math.log(0.4), math.log(0.1)], [math.log(0.3), -math.inf]], dtype=torch.float64)
    rollout = torch.tensor([[math.log(0.2), math.log(0.2)], [math.log(0.3), -1.0]], dtype=torch.float64)
    found = mismatch(learner, rollout, torch.tensor([[True, True], [True, False]]))
    found.pop("rollout_corr/F_2")  # two ratios lie on its border
    half = math.log(2)
    expected = {
        "rollout_corr/kl": 0.0,
        "rollout_corr/k3_kl": ((1 - half) + (half - 0.5) + 0) / 3,
        "train_rollout_logprob_abs_diff": 2 * half / 3,
        "train_rollout_logprob_abs_diff_max": half,
        "rollout_corr/rollout_is_mean": 3.5 / 3,
        "rollout_corr/rollout_is_max": 2.0,
        "rollout_corr/rollout_is_p99": 2.0,
        "rollout_corr/rollout_is_eff_sample_size": 3.5**2 / (3 * (4 + 0.25 + 1)),
    }
    assert found == pytest.approx(expected, abs=1e-14)


def test_tokens_far_off_count_on_both_sides():
    """Ratios just above 2 and just below 1/2, and as far inside."""
    difference = torch.tensor([2.001, 1 / 2.001, 1.999, 1 / 1.999, 1.0], dtype=torch.float64).log()
    found = mismatch(difference - 3, torch.full((5,), -3.0), torch.ones(5, dtype=torch.bool))
    assert found["rollout_corr/F_2"] == 2 / 5


def test_k1_has_its_sign():
    """The learner gives less to what was sampled: KL(rollout || learner) is positive."""
    values = torch.tensor([-1.0, -2.0])
    assert mismatch(values - 0.5, values, torch.tensor([True, True]))["rollout_corr/kl"] == pytest.approx(0.5)


def test_no_mismatch_is_exactly_none():
    values = torch.tensor([-0.1, -3.3, -20.0])
    found = mismatch(values, values, torch.ones(3, dtype=torch.bool))
    zero = {
        "rollout_corr/kl",
        "rollout_corr/k3_kl",
        "rollout_corr/F_2",
        "train_rollout_logprob_abs_diff",
        "train_rollout_logprob_abs_diff_max",
    }
    assert {name for name, value in found.items() if value == 0} == zero
    assert {value for name, value in found.items() if name not in zero} == {1.0}


def test_nothing_trained_has_no_figures():
    assert mismatch(torch.zeros(2, 2), torch.zeros(2, 2), torch.zeros(2, 2, dtype=torch.bool)) == {}


def test_an_impossible_token_is_infinitely_far_and_no_nan():
    found = mismatch(torch.tensor([-math.inf, -1.0]), torch.tensor([-1.0, -1.0]), torch.tensor([True, True]))
    assert found["train_rollout_logprob_abs_diff_max"] == math.inf
    assert not any(math.isnan(value) for value in found.values())


def test_log_probs_kept_in_bf16_would_be_flagged():
    """slime 245: rounding to bf16 alone makes a floor of the divergence that fp32 has not."""
    exact = -8.03125 + 1e-3 + torch.linspace(-1, 1, 1000)
    mask = torch.ones(1000, dtype=torch.bool)
    assert mismatch(exact, exact.float(), mask)["rollout_corr/k3_kl"] < 1e-12
    assert mismatch(exact, exact.bfloat16(), mask)["rollout_corr/k3_kl"] > 1e-5


@given(st.floats(-19, 19))
def test_k3_in_closed_form(x: float):
    found = float(k3(torch.tensor(x, dtype=torch.float64)))
    assert found >= 0
    assert found == pytest.approx(min(math.expm1(x) - x, 10.0), rel=1e-12, abs=1e-15)


@given(st.floats(-1e3, 1e3, width=32))
def test_k3_is_never_negative_in_fp32(x: float):
    value = torch.tensor(x, dtype=torch.float32, requires_grad=True)
    found = k3(value)
    assert 0 <= found.item() <= 10
    found.backward()
    assert math.isfinite(float(value.grad))


def test_k3_estimates_the_divergence():
    """Over all tokens of a distribution, weighted by q: KL(q || p)."""
    q = torch.tensor([0.5, 0.3, 0.2], dtype=torch.float64)
    p = torch.tensor([0.2, 0.2, 0.6], dtype=torch.float64)
    assert float((q * k3(p.log() - q.log())).sum()) == pytest.approx(float((q * (q / p).log()).sum()), rel=1e-12)


def test_nearest_rank():
    values = torch.arange(1, 201).double()[torch.randperm(200, generator=torch.Generator().manual_seed(0))]
    assert percentile(values, 99) == 198
    assert percentile(values, 0) == 1
    assert percentile(torch.tensor([3.0]), 99) == 3
