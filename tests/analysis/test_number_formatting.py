import math
import re
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scalerlt.analysis.formatting import choose_scale, escape_markdown, format_error, format_number, one_line

finite = st.floats(allow_nan=False, allow_infinity=False)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (12345.678, "12,346"),
        (1e-9, "1.000e-9"),
        (-0.0, "0"),
        (0.0, "0"),
        (math.inf, "inf"),
        (-math.inf, "-inf"),
        (math.nan, "NaN"),
        (1234567, "1,234,567"),
        (10**18 + 1, "1,000,000,000,000,000,001"),
        (0, "0"),
        (-3, "-3"),
        (9.9996, "10.00"),
        (0.99999, "1.000"),
        (999.96, "1,000"),
        (0.0012345, "0.001234"),
        (0.00099999, "0.001000"),
        (0.00099949, "9.995e-4"),
        (-42.4242, "-42.42"),
        (9_999_999.5, "1.000e7"),
        (5e-324, "4.941e-324"),
    ],
)
def test_known_numbers(value: float, text: str) -> None:
    assert format_number(value) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [(2.134e-7, "2.13e-7"), (0.4, "4.00e-1"), (1.0, "1.00e0"), (0.0, "0"), (3, "3"), (math.nan, "NaN")],
)
def test_known_errors(value: float, text: str) -> None:
    assert format_error(value) == text


def last_place(text: str) -> Decimal:
    """The weight of the last digit of a number's text."""
    mantissa, _, exponent = text.partition("e")
    decimals = len(mantissa.partition(".")[2])
    return Decimal(10) ** (int(exponent or 0) - decimals)


def significant_digits(text: str) -> int:
    digits = re.sub(r"[^0-9]", "", text.partition("e")[0])
    return len(digits.lstrip("0"))


@given(finite, st.integers(min_value=2, max_value=8))
def test_a_shown_number_is_the_value_to_half_a_unit_of_its_last_digit(value: float, digits: int) -> None:
    for text in (format_number(value, digits), format_error(value, digits)):
        plain = text.replace(",", "")
        assert abs(Decimal(plain) - Decimal(value)) <= last_place(plain) / 2
        if value != 0:
            assert Decimal(plain) != 0
            assert significant_digits(plain) >= digits
            assert plain.startswith("-") == (value < 0)


@given(st.integers())
def test_integers_keep_every_digit(value: int) -> None:
    assert int(format_number(value).replace(",", "")) == value


@given(st.lists(st.floats(min_value=1e-3, max_value=1e18), min_size=1))
def test_a_scale_makes_the_middle_value_at_least_one_and_only_changes_the_unit(values: list[float]) -> None:
    scale = choose_scale("B", values)
    factor = {"B": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40}[scale.unit]
    middle = sorted(values)[len(values) // 2]
    assert scale.apply(middle) * factor == middle
    assert scale.apply(middle) >= 1 or scale.unit == "B"
    assert scale.apply(middle) < 1024 or scale.unit == "TiB"


def test_scales() -> None:
    assert choose_scale("s", [0.002]).unit == "ms"
    assert choose_scale("s", [0.002]).apply(0.002) == pytest.approx(2)
    assert choose_scale("s", []).unit == "s"
    assert choose_scale("s", [math.nan, math.inf]).unit == "s"
    assert choose_scale("token/s", [1e9]).unit == "token/s"
    scaled = choose_scale("B", [512]).apply(512)
    assert scaled == 512
    assert isinstance(scaled, int)


@given(st.text())
def test_escaping_keeps_the_text_and_nothing_breaks_a_table(text: str) -> None:
    escaped = escape_markdown(text)
    assert re.sub(r"\\(.)", r"\1", escaped) == one_line(text)
    assert "|" not in re.sub(r"\\.", "", escaped)
    assert len(escaped.splitlines()) <= 1


def test_names_stay_readable() -> None:
    assert escape_markdown("batch.group_size") == "batch.group_size"
    assert escape_markdown("_a_ *b* `c`\n|") == r"\_a\_ \*b\* \`c\` \|"
