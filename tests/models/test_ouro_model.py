import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from models.small import SMALL, plain_twin, small_model
from torch import Tensor

from scalerlt.models.ouro import RMSNorm, exit_distribution, rotary, rotate

TOKENS = [[7, 3, 3, 28, 0, 11, 5, 19], [1, 2, 27, 4, 4, 9, 0, 0]]


def test_prefill_agrees_with_the_plain_implementation() -> None:
    model = small_model()
    plain = plain_twin(model)
    with torch.no_grad():
        states = model(torch.tensor(TOKENS))
        gates = torch.stack([model.exit_gate(h) for h in states], -1)
        exits = exit_distribution(gates)
        logits = [model.logits(h) for h in states]
    assert len(states) == SMALL.total_ut_steps
    for row, tokens in enumerate(TOKENS):
        expected = plain.states(tokens)
        for loop, per_token in enumerate(expected):
            np.testing.assert_allclose(states[loop][row], np.stack(per_token), rtol=0, atol=1e-10)
            plain_logits = np.stack([plain.logits(h) for h in per_token])
            np.testing.assert_allclose(logits[loop][row], plain_logits, rtol=0, atol=1e-10)
        for time in range(len(tokens)):
            plain_exit = plain.exit_distribution([per_token[time] for per_token in expected])
            np.testing.assert_allclose(exits[row, time], plain_exit, rtol=0, atol=1e-10)


def test_padding_on_the_right_changes_nothing_before_it() -> None:
    model = small_model()
    with torch.no_grad():
        long = model(torch.tensor(TOKENS))[-1]
        short = model(torch.tensor(TOKENS)[:, :5])[-1]
    torch.testing.assert_close(long[:, :5], short, rtol=0, atol=1e-12)


def test_positions_matter_only_relative_to_each_other() -> None:
    model = small_model()
    ids = torch.tensor(TOKENS)
    positions = torch.arange(8).expand(2, 8)
    with torch.no_grad():
        first = model(ids)[-1]
        torch.testing.assert_close(model(ids, positions)[-1], first, rtol=0, atol=0)
        torch.testing.assert_close(model(ids, positions + 17)[-1], first, rtol=0, atol=1e-11)
        assert not torch.allclose(model(ids, 2 * positions)[-1], first, atol=1e-3)


def test_the_layers_exist_once() -> None:
    model = small_model()
    names = {name for name, _ in model.named_parameters()}
    assert len(names) == 11 * SMALL.num_hidden_layers + 5
    assert names == set(SMALL.tensor_shapes())
    assert not list(model.named_buffers())


def test_attend_sees_every_loop_and_layer_with_the_documented_shapes() -> None:
    model = small_model()
    seen = []

    def attend(loop: int, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        seen.append((loop, layer, tuple(q.shape), tuple(k.shape), tuple(v.shape)))
        return q

    with torch.no_grad():
        model(torch.tensor(TOKENS), attend=attend)
    assert seen == [(loop, layer, (2, 8, 4, 6), (2, 8, 2, 6), (2, 8, 2, 6)) for loop in range(3) for layer in range(2)]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_rope_tables_are_never_rounded_before_the_end(dtype: torch.dtype) -> None:
    """At position 60,000 a frequency rounded to 8 bits is wrong by whole turns."""
    model = small_model(torch.float32).to(dtype)
    positions = torch.tensor([0, 1, 60_000])
    cos, sin = model.rotary(positions)
    assert cos.dtype == sin.dtype == dtype
    frequencies = np.float32(1.0) / np.float32(50.0) ** (np.arange(0, 6, 2, dtype=np.float32) / np.float32(6))
    angles = positions.numpy().astype(np.float32)[:, None] * frequencies
    # One rounding of cos and sin to the dtype, and the last bit of an fp32 angle of up to 60,000.
    tolerance = 2.0**-8 + 2.0**-8
    np.testing.assert_allclose(cos[:, 0, :3].float(), np.cos(angles.astype(np.float64)), rtol=0, atol=tolerance)
    np.testing.assert_allclose(sin[:, 0, 3:].float(), np.sin(angles.astype(np.float64)), rtol=0, atol=tolerance)
    assert torch.equal(sin[:, 0, :3], -sin[:, 0, 3:])


def test_a_model_converted_to_bf16_and_back_keeps_its_positions() -> None:
    model = small_model(torch.float32)
    there_and_back = small_model(torch.float32).to(torch.bfloat16).to(torch.float32)
    positions = torch.arange(50)
    assert torch.equal(model.rotary(positions)[0], there_and_back.rotary(positions)[0])


@given(st.integers(1, 6).map(lambda half: 2 * half), st.integers(0, 2**16), st.integers(0, 2**16))
@settings(max_examples=50, deadline=None)
def test_rotation_keeps_lengths_and_makes_products_relative(head_dim: int, p: int, q: int) -> None:
    generator = torch.Generator().manual_seed(p)
    x, y = torch.randn(2, 1, head_dim, dtype=torch.float64, generator=generator)

    def at(vector: Tensor, position: int) -> Tensor:
        return rotate(vector, *rotary(torch.tensor(position), head_dim, 1e4, torch.float64))

    torch.testing.assert_close(at(x, p).norm(), x.norm(), rtol=1e-12, atol=1e-12)
    low = min(p, q)
    torch.testing.assert_close(
        (at(x, p) * at(y, q)).sum(), (at(x, p - low) * at(y, q - low)).sum(), rtol=1e-8, atol=1e-8
    )


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32, torch.float64])
def test_rms_norm_rounds_exactly_twice(dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(0)
    norm = RMSNorm(96, 1e-6).to(dtype)
    with torch.no_grad():
        norm.weight.copy_(torch.randn(96, generator=generator))
        x = (200 * torch.randn(40, 96, generator=generator)).to(dtype)  # squares overflow fp16
        internal = x.to(torch.float64 if dtype == torch.float64 else torch.float32)
        normed = internal * torch.rsqrt(internal.square().mean(-1, keepdim=True) + 1e-6)
        assert torch.equal(norm(x), norm.weight * normed.to(dtype))


@given(st.lists(st.floats(-30, 30), min_size=1, max_size=6))
@settings(deadline=None)
def test_exit_distribution_is_the_published_recursion(gates: list[float]) -> None:
    result = exit_distribution(torch.tensor([gates], dtype=torch.float64))[0].tolist()
    remaining, expected = 1.0, []
    for gate in gates[:-1]:
        stop = 1 / (1 + math.exp(-gate))
        expected.append(stop * remaining)
        remaining *= 1 / (1 + math.exp(gate))
    assert result == pytest.approx([*expected, remaining], abs=1e-14)
    assert sum(result) == pytest.approx(1.0, abs=1e-12)


def test_the_gate_is_computed_in_fp32_for_a_bf16_model() -> None:
    """Gate logits 3 and 4 leave 1 - CDF = 8.5e-4 after loop 2: lost in bf16, where the cumulative sum rounds to 1."""
    model = small_model(torch.bfloat16)
    with torch.no_grad():
        h = model(torch.tensor(TOKENS))[0]
        gate = model.exit_gate(h)
        weight, bias = model.model.early_exit_gate.weight.float(), model.model.early_exit_gate.bias.float()
        assert gate.dtype == torch.float32
        assert gate.shape == (2, 8)
        torch.testing.assert_close(gate, (h.float() @ weight.T + bias)[..., 0], rtol=1e-6, atol=1e-6)
    exits = exit_distribution(torch.tensor([3.0, 4.0, 0.0, 0.0]))
    assert exits[:2].sum() < 1.0
    assert exits[:2].sum() == pytest.approx(1 - (1 - 0.9525741) * (1 - 0.9820138), abs=1e-6)


def test_bf16_stays_near_fp64_of_the_same_weights() -> None:
    model = small_model(torch.bfloat16)
    with torch.no_grad():
        rounded = model(torch.tensor(TOKENS))[-1].double()
        exact = model.to(torch.float64)(torch.tensor(TOKENS))[-1]
    error = float((rounded - exact).norm() / exact.norm())
    assert 2.0**-10 < error < 0.2
