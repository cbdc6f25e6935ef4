import math

import pytest
import torch
from learner.plain_learner import plain_logprobs, ragged_responses
from models.small import small_model

from scalerlt.learner.batching import TrainingResponse, pack
from scalerlt.learner.logprobs import dense_logprobs
from scalerlt.learner.readout import FULL


class FixedLogits:
    """A model that says the same logits at every position."""

    def __init__(self, logits: list[float], dtype: torch.dtype = torch.float64) -> None:
        self._logits = torch.tensor(logits, dtype=dtype)

    def logits(self, h):
        return h.new_ones(len(h), 1).to(self._logits.dtype) * self._logits

    def logprobs(self, temperature: float) -> torch.Tensor:
        """Of the tokens 0, 1, 2."""
        return FULL(self, torch.ones(3, 1), torch.tensor([0, 1, 2]), temperature)


def published(temperature: float) -> list[float]:
    """log-softmax([2, 1, 0] / T), in closed form."""
    normaliser = math.log(sum(math.exp(z / temperature) for z in (2, 1, 0)))
    return [z / temperature - normaliser for z in (2, 1, 0)]


def test_the_temperature_divides_the_logits():
    """trl issue 4159 and others: at T = 0.5 the values are -0.1429, -2.1429, -4.1429."""
    values = FixedLogits([2.0, 1.0, 0.0]).logprobs(0.5).tolist()
    assert values == pytest.approx([-0.142932, -2.142932, -4.142932], abs=1e-6)


@pytest.mark.parametrize("temperature", [0.5, 0.6, 1.0, 1.3])
def test_the_ratio_to_the_sampler_is_one(temperature: float):
    learner = FixedLogits([2.0, 1.0, 0.0]).logprobs(temperature).tolist()
    for mine, sampler in zip(learner, published(temperature), strict=True):
        assert math.exp(mine - sampler) == pytest.approx(1.0, abs=1e-12)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_log_softmax_of_narrow_logits_runs_in_fp32(dtype: torch.dtype):
    values = FixedLogits([2.0, 1.0, 0.0], dtype).logprobs(0.6)
    assert values.dtype == torch.float32
    assert values.tolist() == pytest.approx(published(0.6), abs=1e-6)  # bf16 would be off by up to 8e-3


def test_greedy_sampling_has_no_log_probs():
    batch = pack([TrainingResponse([0], [1], 1.0)])
    with pytest.raises(ValueError, match="temperature 0"):
        dense_logprobs(small_model(), batch, temperature=0.0)


def test_ragged_batch_against_a_pass_per_token():
    model, responses = small_model(), ragged_responses()
    values = dense_logprobs(model, pack(responses), temperature=0.7)
    assert values.shape == (4, 30)
    for row, response in zip(values, responses, strict=True):
        expected = [value.item() for value in plain_logprobs(model, response, 0.7)]
        assert row[: len(expected)].tolist() == pytest.approx(expected, abs=1e-10)
        assert not row[len(expected) :].any()
