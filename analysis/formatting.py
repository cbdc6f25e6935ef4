"""How numbers and texts are written for people: the only place where a number becomes a rounded string.

A rounded number never claims more than it shows and never hides what it is: a value that is not zero is never written
"0", an integer keeps its digits, the integer part of a number is never rounded to tens, and every shown digit is
correctly rounded, so reading the text back gives the value to half a unit of its last digit.
"""

import math
import re
from collections.abc import Iterable
from dataclasses import dataclass
from statistics import median_high

DIGITS = 4
ERROR_DIGITS = 3
FIXED_FROM, FIXED_BELOW = 1e-3, 1e7


def format_number(value: float, digits: int = DIGITS) -> str:
    """A number with at least `digits` significant digits: 12,346 for 12345.678, 1.000e-9 for 1e-9, 0 for -0.0."""
    if isinstance(value, int) or not math.isfinite(value) or value == 0:
        return _exact(value)
    scientific = f"{value:.{digits - 1}e}"
    exponent = int(scientific.partition("e")[2])  # after rounding: 9.9996 has exponent 1
    if not FIXED_FROM <= abs(float(scientific)) < FIXED_BELOW:
        return _without_padding(scientific)
    return f"{value:,.{max(digits - 1 - exponent, 0)}f}"


def format_error(value: float, digits: int = ERROR_DIGITS) -> str:
    """An error or a difference: always scientific (2.13e-7), so that magnitudes compare at a glance; 0 only for 0."""
    if isinstance(value, int) or not math.isfinite(value) or value == 0:
        return _exact(value)
    return _without_padding(f"{value:.{digits - 1}e}")


def _exact(value: float) -> str:
    if isinstance(value, int):
        return f"{int(value):,}"
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "inf" if value > 0 else "-inf"
    return "0"


def _without_padding(scientific: str) -> str:
    mantissa, _, exponent = scientific.partition("e")
    return f"{mantissa}e{int(exponent)}"


@dataclass(frozen=True)
class Scale:
    """A unit for people: `value * factor` is in `unit`."""

    unit: str
    factor: float = 1.0

    def apply(self, value: float) -> float:
        """The value in this unit; integers that need no scaling stay integers."""
        return value if self.factor == 1 else value * self.factor


_BINARY = [Scale("B"), Scale("KiB", 2.0**-10), Scale("MiB", 2.0**-20), Scale("GiB", 2.0**-30), Scale("TiB", 2.0**-40)]
_SECONDS = [Scale("µs", 1e6), Scale("ms", 1e3), Scale("s")]
SCALES: dict[str, list[Scale]] = {"bytes": _BINARY, "B": _BINARY, "seconds": _SECONDS, "s": _SECONDS}
"""For a recorded unit the units that people read, smallest first."""


def choose_scale(unit: str, values: Iterable[float]) -> Scale:
    """The unit in which the middle one of the values is at least 1; the recorded unit where people use no other."""
    magnitudes = [abs(value) for value in values if value and math.isfinite(value)]
    steps = SCALES.get(unit)
    if steps is None:
        return Scale(unit)
    if not magnitudes:
        return next(step for step in steps if step.factor == 1)
    middle = median_high(magnitudes)
    return next((step for step in reversed(steps) if middle * step.factor >= 1), steps[0])


_SPECIAL = re.compile(r"([\\`*|<>\[\]~$&])|(?<!\w)(_)|(_)(?!\w)")


def one_line(text: str) -> str:
    """Text with every run of white space, line breaks too, as one blank."""
    return " ".join(text.split())


def escape_markdown(text: str) -> str:
    """Text that Markdown shows as it is, in a table too: one line, every character that means something escaped."""
    return _SPECIAL.sub(r"\\\g<0>", one_line(text))
