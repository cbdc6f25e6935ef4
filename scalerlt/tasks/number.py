"""Numbers in running text, read as exact rationals in the ways people and language models write them.

Read: signs (also U+2212), thousands separators (commas or no-break and thin spaces, valid groups only), decimals,
exponents (`1e3`), fractions and mixed numbers (`3/4`, `1 3/4`, `\\frac{3}{4}`), `thousand` to `trillion`, currency
before the number; bold, `\\boxed{}`, brackets and the like around it. A percent sign, a unit or a full stop behind it
is text that follows. Every regular expression runs in time linear in the text; no number is built beyond `MAX_DIGITS`.
"""

import re
from dataclasses import dataclass
from fractions import Fraction

MAX_DIGITS = 500
"""Longest number that is read, in decimal places on either side; under every limit that Python sets on int(str)."""

_GROUPED = re.compile(r"(?:[0-9]*|[1-9][0-9]{0,2}(?:,[0-9]{3})+)(?:\.[0-9]+)?")

_CURRENCY = r"(?:US\$|[$€£¥₹]|(?:USD|EUR|GBP|Rs\.?)(?![A-Za-z]))"
_DIGITS = r"(?:(?<![0-9A-Za-z.)])\.)?[0-9](?:[0-9.,]*[0-9])?"
_NUMBER = re.compile(
    rf"""
    (?:(?<![0-9A-Za-z)\]}}.,%]) (?P<sign>[-+]))?       # between operands, "16-3", it is no sign
    (?:{_CURRENCY}[ ]*+ (?P<sign_inside>[-+]?))?
    (?P<digits>{_DIGITS})
    (?:[eE](?P<exponent>[-+]?[0-9]++))?
    (?:(?:[ ]++(?P<numerator>[0-9]++))? [ ]*+/[ ]*+ (?P<denominator>{_DIGITS}))?
    (?:[ ]*+(?P<magnitude>thousand|million|billion|trillion)(?![A-Za-z]))?
    """,
    re.VERBOSE,
)
_MAGNITUDES = {"thousand": 10**3, "million": 10**6, "billion": 10**9, "trillion": 10**12}

_LEAD = re.compile(
    r"""(?:
        [\s*_`"'#(\[{~≈=:] | \$(?=[\\$]) | \\boxed | \\text(?:bf)? | \\mathbf | \\[(\[;: ]
        | (?i:(?:the\ )?(?:final\ )?answer(?:\ is)?(?![A-Za-z]))
    )*+""",
    re.VERBOSE,
)
_SIGN_APART = re.compile(r"\A([-+])[ ]++")
# The number is one operand of an expression, a range or a time of day: not an answer.
_EXPRESSION = re.compile(r"[ ]*+(?:[-+*/^=:×÷·x]|\\times|\\cdot|\\div)[ ]*+[$(]?[0-9]")

_CHARACTERS = str.maketrans({"\u2212": "-", "\uff0d": "-", "\u2010": "-", "\u2011": "-", "\t": " "})
_LATEX = (("{,}", ","), (r"\!", ""), (r"\$", "$"), (r"\%", "%"), (r"\,", "\u2009"), (r"\dfrac", r"\frac"))
_FRAC = re.compile(r"(?P<whole>(?<=[0-9]))?\\frac\{(?P<above>[0-9]++)\}\{(?P<below>[0-9]++)\}")
_GROUPING_SPACE = re.compile("(?<=[0-9])[\u00a0\u2009\u202f](?=[0-9]{3}(?![0-9]))")
_FIXED_SPACES = str.maketrans(dict.fromkeys("\u00a0\u2009\u202f", " "))


@dataclass(frozen=True)
class Number:
    """A number found in a text: what stood there, and its value, None where it is malformed or over-long."""

    text: str
    value: Fraction | None


def plain_notation(text: str) -> str:
    """`text` with the typographic and LaTeX forms of signs, spaces and fractions written in ASCII."""
    text = text.translate(_CHARACTERS)
    for latex, plain in _LATEX:
        text = text.replace(latex, plain)
    text = _FRAC.sub(lambda m: f"{'' if m['whole'] is None else ' '}{m['above']}/{m['below']}", text)
    return _GROUPING_SPACE.sub(",", text).translate(_FIXED_SPACES)


def leading_number(text: str) -> Number | None:
    """The number that `text` (in plain notation) begins with, after decoration; None where it begins otherwise.

    An expression such as `3 + 4 = 7`, a range or a time of day counts as malformed.
    """
    text = _SIGN_APART.sub(r"\1", _LEAD.sub("", text, count=1))
    match = _NUMBER.match(text)
    if match is None:
        return None
    if _EXPRESSION.match(text, match.end()):
        return Number(match[0], None)
    return Number(match[0], _value(match))


def last_number(text: str) -> Number | None:
    """The last number anywhere in `text` (in plain notation)."""
    matches = list(_NUMBER.finditer(text))
    return Number(matches[-1][0], _value(matches[-1])) if matches else None


def decimal_value(digits: str, exponent: str | None = None) -> Fraction | None:
    """The value of digits with thousands commas, a decimal point and an exponent of ten.

    Returns:
        None where the groups are not threes, there are two points, or more than `MAX_DIGITS` places.
    """
    if not digits or not _GROUPED.fullmatch(digits):
        return None
    whole, _, decimals = digits.replace(",", "").partition(".")
    whole, decimals = whole.lstrip("0"), decimals.rstrip("0")
    power = (exponent or "0").lstrip("+-").lstrip("0") or "0"
    if len(whole) + len(decimals) > MAX_DIGITS or len(power) > 3 or int(power) > MAX_DIGITS:
        return None
    shift = -int(power) if exponent and exponent.startswith("-") else int(power)
    return int(whole + decimals or "0") * Fraction(10) ** (shift - len(decimals))


def _value(match: re.Match[str]) -> Fraction | None:
    value = decimal_value(match["digits"], match["exponent"])
    if value is not None and match["denominator"]:
        value = _fraction(value, match["numerator"], match["denominator"])
    if value is None or (match["sign"] and match["sign_inside"]):
        return None
    magnitude = _MAGNITUDES.get(match["magnitude"] or "", 1)
    return value * magnitude * (-1 if "-" in (match["sign"], match["sign_inside"]) else 1)


def _fraction(first: Fraction, numerator: str | None, denominator: str) -> Fraction | None:
    """first/denominator, or the mixed number `first numerator/denominator`."""
    below = decimal_value(denominator)
    if not below:
        return None
    if numerator is None:
        return first / below
    above = decimal_value(numerator)
    if above is None or above >= below or first.denominator != 1:
        return None
    return first + above / below
