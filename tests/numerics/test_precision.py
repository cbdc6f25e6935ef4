import pytest
import torch

from scalerlt.errors import UserError
from scalerlt.numerics.precision import FORMATS, internal_dtype, matrix_path, number_format, unit_roundoff


@pytest.mark.parametrize("name", list(FORMATS))
def test_unit_roundoff_is_half_the_distance_from_one_to_the_next_number(name: str) -> None:
    assert unit_roundoff(name) == torch.finfo(number_format(name).dtype).eps / 2


def test_internals_are_fp32_or_fp64() -> None:
    internal = {name: internal_dtype(number_format(name).dtype) for name in FORMATS}
    assert internal == {
        "fp64": torch.float64,
        "fp32": torch.float32,
        "bf16": torch.float32,
        "fp16": torch.float32,
    }


def test_unknown_format_lists_the_known_ones() -> None:
    with pytest.raises(UserError, match=r"'mxfp8'.*fp64, fp32, bf16, fp16"):
        number_format("mxfp8")


@pytest.mark.parametrize("name", ["fp64", "fp32", "bf16", "fp16"])
def test_a_cpu_multiplies_in_all_four(name: str) -> None:
    assert matrix_path(name, "cpu")


def test_a_product_that_torch_does_not_have_is_false(monkeypatch: pytest.MonkeyPatch) -> None:
    """torch really lacks it: exponent-only floats have no product on a CPU."""
    lacking = FORMATS["fp16"].__class__(name="e8m0", dtype=torch.float8_e8m0fnu, unit_roundoff=2.0**-4)
    monkeypatch.setitem(FORMATS, "e8m0", lacking)
    assert not matrix_path("e8m0", "cpu")


def test_any_other_error_is_raised() -> None:
    if torch.cuda.is_available():
        assert matrix_path("fp32", "cuda")
    else:
        with pytest.raises((RuntimeError, AssertionError)):
            matrix_path("fp32", "cuda")
