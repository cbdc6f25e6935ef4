"""One word problem with its reference answer, in GSM8K's form (arXiv 2110.14168)."""

import re
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property

from scalerlt.errors import UserError
from scalerlt.tasks.number import decimal_value

ANSWER_MARKER = "####"
_REFERENCE_NUMBER = re.compile(r"(?P<sign>-?)(?P<digits>[0-9](?:[0-9.,]*[0-9])?)")


@dataclass(frozen=True)
class Problem:
    """A question and its reference answer.

    Attributes:
        problem_id: stable and unique, such as "gsm8k/test/00017" or "arithmetic/train/<content hash>".
        question: the text of the question.
        answer: worked steps and a last line `#### n`.
    """

    problem_id: str
    question: str
    answer: str

    @cached_property
    def gold(self) -> Fraction:
        """The final number of the reference answer, exactly."""
        return final_answer(self.answer)


def final_answer(answer: str) -> Fraction:
    """The number after the `#### ` of a reference answer.

    Stricter than the grader of model text: a reference has one marker and nothing but a number behind it.

    Raises:
        UserError: says what the answer lacks.
    """
    before, found, after = answer.partition(f"{ANSWER_MARKER} ")
    if not found:
        raise UserError(f"the answer has no '{ANSWER_MARKER} ' before its final number")
    if ANSWER_MARKER in before or ANSWER_MARKER in after:
        raise UserError(f"the answer has more than one '{ANSWER_MARKER}'")
    number = _REFERENCE_NUMBER.fullmatch(after.strip())
    value = decimal_value(number["digits"]) if number else None
    if number is None or value is None:
        raise UserError(f"the text after '{ANSWER_MARKER} ' is {after.strip()[:60]!r}, which is not a number")
    return -value if number["sign"] else value
