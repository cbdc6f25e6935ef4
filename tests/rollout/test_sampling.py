import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from models.plain_ouro import plain_uniform
from scipy import stats

from scalerlt.rollout.sampling import greedy, sample, uniforms

SEEDS = st.integers(0, 2**63 - 1)


def grid(seeds: torch.Tensor, positions: int) -> torch.Tensor:
    return uniforms(seeds[:, None], torch.arange(positions)[None])


@given(SEEDS, st.integers(0, 2**20))
@settings(deadline=None)
def test_numbers_are_splitmix64_on_integers_of_64_bits(seed: int, position: int) -> None:
    value = uniforms(torch.tensor([seed]), torch.tensor([position]))
    assert value.dtype == torch.float64
    assert value.item() == plain_uniform(seed, position)
    assert 0 <= value.item() < 1


@pytest.mark.parametrize("stride", [1, 2**32, 1_000_003])
def test_numbers_are_uniform_and_independent(stride: int) -> None:
    """Along positions, along (neighbouring) seeds, and between them. The p-values are of fixed data, not of luck."""
    values = grid(stride * torch.arange(400), 400).numpy()
    assert stats.kstest(values.ravel(), "uniform").pvalue > 1e-3
    n = values.size
    for a, b in (
        (values[:, :-1], values[:, 1:]),  # next position
        (values[:-1], values[1:]),  # next seed
        (values[:-1, 1:], values[1:, :-1]),  # one sequence shifted against the next
        (values[:-1, :-1], values[1:, 1:]),
    ):
        assert abs(np.corrcoef(a.ravel(), b.ravel())[0, 1]) < 4 / np.sqrt(n)
        counts = np.histogram2d(a.ravel(), b.ravel(), bins=16, range=[[0, 1], [0, 1]])[0]
        assert stats.chisquare(counts.ravel()).pvalue > 1e-3
    assert len(np.unique(values)) == n


def test_each_number_belongs_to_its_pair_alone() -> None:
    seeds, positions = torch.arange(7) * 12345, 9
    values = grid(seeds, positions)
    for row in (3, 0, 6):
        assert torch.equal(uniforms(seeds[row].expand(positions), torch.arange(positions)), values[row])


@pytest.mark.parametrize("temperature", [0.5, 1.0, 2.0])
def test_frequencies_are_the_softmax(temperature: float) -> None:
    draws = 200_000
    logits = torch.tensor([1.5, -2.0, 0.0, 3.0, 2.9, -40.0, 0.7], dtype=torch.float32)
    probabilities = torch.softmax(logits.double() / temperature, -1)
    tokens, logprobs = sample(
        logits.expand(draws, -1),
        torch.full((draws,), temperature),
        uniforms(torch.arange(draws), torch.tensor(17)),
    )
    counts = torch.bincount(tokens, minlength=7).numpy()
    assert counts[5] == 0  # probability below 1e-9
    keep = np.arange(7) != 5
    expected = probabilities.numpy()[keep] / probabilities.numpy()[keep].sum() * draws
    assert stats.chisquare(counts[keep], expected).pvalue > 1e-3
    torch.testing.assert_close(logprobs.double(), probabilities.log()[tokens], rtol=0, atol=1e-6)


def test_the_cumulative_distribution_is_inverted_in_vocabulary_order() -> None:
    logits = torch.log(torch.tensor([[0.25, 0.0, 0.5, 0.25]], dtype=torch.float64))
    cases = {0.0: 0, 0.2499: 0, 0.2501: 2, 0.7499: 2, 0.7501: 3, 1 - 2.0**-53: 3}
    tokens, logprobs = sample(
        logits.expand(len(cases), -1),
        torch.ones(len(cases), dtype=torch.float64),
        torch.tensor(list(cases), dtype=torch.float64),
    )
    assert tokens.tolist() == list(cases.values())
    assert logprobs.exp().tolist() == pytest.approx([0.25, 0.25, 0.5, 0.5, 0.25, 0.25])


def test_a_token_of_probability_zero_is_never_drawn() -> None:
    logits = torch.tensor([[-torch.inf, 0.0, -torch.inf, 1.0, -torch.inf]])
    for value in (0.0, 0.5, 1 - 2.0**-53):
        token, logprob = sample(logits, torch.ones(1), torch.tensor([value], dtype=torch.float64))
        assert token.item() in (1, 3)
        assert torch.isfinite(logprob).all()


def test_temperature_zero_is_greedy_and_leaves_its_neighbours_alone() -> None:
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(6, 11, generator=generator)
    temperatures = torch.tensor([0.0, 1.0, 0.0, 0.3, 2.0, 0.0])
    uniform = uniforms(torch.arange(6), torch.arange(6))
    tokens, logprobs = sample(logits, temperatures, uniform)
    best, best_logprobs = greedy(logits)
    assert best.tolist() == logits.argmax(-1).tolist()
    for row, temperature in enumerate(temperatures.tolist()):
        one = slice(row, row + 1)
        token, logprob = sample(logits[one], temperatures[one], uniform[one])
        assert token.item() == tokens[row]
        assert logprob.item() == pytest.approx(logprobs[row].item(), abs=1e-6)
        if temperature == 0:
            assert tokens[row] == best[row]
            assert logprobs[row].item() == pytest.approx(best_logprobs[row].item(), abs=1e-6)


def test_logprobs_of_half_precision_logits_are_fp32() -> None:
    logits = torch.tensor([[9.0, 1.0]], dtype=torch.bfloat16)
    assert greedy(logits)[1].dtype == torch.float32
    assert greedy(logits)[1].item() == pytest.approx(-0.00033540637, rel=1e-4)
    assert sample(logits, torch.ones(1), torch.zeros(1, dtype=torch.float64))[1].dtype == torch.float32
