import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from scalerlt.measure.gradients import ErrorFigures, Tolerance, compare, norm


def first_part(name: str) -> str:
    return name.split(".")[0]


def figures(a, b, tolerance: Tolerance | None = None) -> ErrorFigures:
    return compare({"x": a}, {"x": b}, group=first_part, tolerance=tolerance).total


def test_figures_of_a_case_by_hand():
    a, b = torch.tensor([3.0, 4.5, 0.0]), torch.tensor([3.0, 4.0, 0.0])
    result = figures(a, b, Tolerance(abs=0.1, rel=0.1))
    assert result.relative_l2 == pytest.approx(0.5 / 5.0)
    assert result.max_abs == 0.5
    assert result.cosine == pytest.approx((9 + 18) / (5 * math.sqrt(9 + 20.25)))
    assert result.elementwise == pytest.approx(0.5 / 0.5)  # 0.1 + 0.1 * 4
    assert (result.mismatches, result.elements) == (1, 3)


def test_groups_and_total():
    a = {"mlp.0": torch.tensor([1.0]), "mlp.1": torch.tensor([2.0]), "norm.0": torch.tensor([4.0])}
    b = {"mlp.0": torch.tensor([1.0]), "mlp.1": torch.tensor([1.0]), "norm.0": torch.tensor([4.0])}
    report = compare(a, b, group=first_part)
    assert set(report.groups) == {"mlp", "norm"}
    assert report.groups["mlp"].relative_l2 == pytest.approx(1 / math.sqrt(2))
    assert report.groups["norm"].relative_l2 == 0
    assert report.total.relative_l2 == pytest.approx(1 / math.sqrt(18))
    assert report.total.elementwise is None


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.lists(st.floats(-1e3, 1e3), min_size=0, max_size=5), min_size=1, max_size=4),
    st.floats(-1e-2, 1e-2),
)
def test_splitting_into_tensors_changes_no_total(parts: list[list[float]], shift: float):
    b = {f"g{i % 2}.{i}": torch.tensor(part, dtype=torch.float64) for i, part in enumerate(parts)}
    a = {name: tensor + shift for name, tensor in b.items()}
    split = compare(a, b, group=first_part, tolerance=Tolerance(1e-3, 1e-3)).total
    whole = figures(torch.cat(list(a.values())), torch.cat(list(b.values())), Tolerance(1e-3, 1e-3))
    assert split.relative_l2 == pytest.approx(whole.relative_l2, rel=1e-9, nan_ok=True)
    assert split.cosine == pytest.approx(whole.cosine, rel=1e-9, abs=1e-12)
    assert (split.max_abs, split.elementwise) == (whole.max_abs, whole.elementwise)
    assert (split.mismatches, split.elements) == (whole.mismatches, whole.elements)


def test_small_errors_of_bf16_values_are_seen_in_fp64():
    b = torch.full((100_000,), 1.0, dtype=torch.bfloat16)
    a = b.clone()
    a[7] = 1.0078125  # the next bf16
    result = figures(a, b)
    assert result.relative_l2 == pytest.approx(0.0078125 / math.sqrt(100_000))
    assert result.mismatches == 1


@pytest.mark.parametrize("empty", [torch.zeros(0), None])
def test_nothing_to_compare_is_no_error(empty):
    result = figures(empty, empty, Tolerance(1e-3, 0.0))
    assert result == ErrorFigures(0.0, 0.0, 1.0, 0.0, 0, 0)


def test_zero_gradients():
    zero, one = torch.zeros(3), torch.ones(3)
    assert figures(zero, zero, Tolerance(0.0, 0.0)) == ErrorFigures(0.0, 0.0, 1.0, 0.0, 0, 3)
    against_zero = figures(one, zero, Tolerance(0.0, 0.1))
    assert (against_zero.relative_l2, against_zero.cosine) == (math.inf, 0.0)
    assert against_zero.elementwise == math.inf
    assert figures(zero, one).relative_l2 == 1.0
    assert figures(torch.tensor([-0.0]), torch.tensor([0.0])).mismatches == 0


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("both", [False, True])
def test_non_finite_values_pass_no_gate(bad: float, both: bool):
    a, b = torch.tensor([1.0, bad]), torch.tensor([1.0, bad if both else 1.0])
    result = compare(
        {"x.0": a, "y.0": torch.ones(2)}, {"x.0": b, "y.0": torch.ones(2)}, group=first_part, tolerance=Tolerance(1, 1)
    )
    total = result.total
    for figure in (total.relative_l2, total.max_abs, total.cosine, total.elementwise):
        assert math.isnan(figure)
    assert not total.elementwise <= 1
    assert result.groups["y"].elementwise == 0


def test_a_missing_gradient_is_not_a_zero_gradient():
    zero = torch.zeros(2, 3)
    assert figures(None, zero).mismatches == 6
    result = figures(torch.ones(2, 3), None)
    assert (result.mismatches, result.elements, result.max_abs) == (6, 6, 1.0)


def test_the_compared_tensors_stay_as_they_are():
    a, b = torch.tensor([1.0, -2.0], dtype=torch.float64), torch.tensor([-1.0, -3.0], dtype=torch.float64)
    kept = a.clone(), b.clone()
    figures(a, b, Tolerance(1e-3, 1e-3))
    assert torch.equal(a, kept[0]) and torch.equal(b, kept[1])


def test_other_names_and_shapes_are_refused():
    with pytest.raises(ValueError, match="'y'"):
        compare({"x": torch.zeros(1)}, {"x": torch.zeros(1), "y": torch.zeros(1)}, group=first_part)
    with pytest.raises(ValueError, match=r"x: shapes \[2\] and \[3\]"):
        figures(torch.zeros(2), torch.zeros(3))


def test_norm():
    assert norm({"a": torch.tensor([3.0]), "b": None, "c": torch.tensor([4.0], dtype=torch.bfloat16)}) == 5.0
