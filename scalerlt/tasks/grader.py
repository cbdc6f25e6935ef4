"""The grader `canonical`: a model's text against a reference answer, by exact rational comparison.

Two extractions of one answer, both always returned, as GSM8K accuracy depends on the extraction more than on most
training choices (lm-evaluation-harness calls them strict-match and flexible-extract):

- **strict**: the number that follows the first `####` of the model's own turn.
- **flexible**: that number; where it is missing or malformed, the last `\\boxed{…}`; where that is, the last number of
  the turn.

The own turn ends at an end-of-turn token and where the model goes on to invent a next question. The first marker
counts, not the last, and no window limits the search, so that text behind the answer never costs it. `number` says
which ways of writing a number are read. Behind `####` the number must come first: decoration, currency, `=` and
`the answer is` may stand before it, any other text may follow it. An expression there (`3 + 4 = 7`) is malformed.
"""

import re
from dataclasses import dataclass
from fractions import Fraction
from typing import Literal, get_args

from scalerlt.errors import UserError
from scalerlt.tasks.number import Number, last_number, leading_number, plain_notation
from scalerlt.tasks.problem import ANSWER_MARKER

GRADER_VERSION = "canonical-1"
"""Changes whenever any text could be graded differently."""

Extraction = Literal["strict", "flexible"]
Reason = Literal["correct", "wrong", "no_marker", "no_number", "malformed_number"]

MAX_EXTRACTED = 80
"""Characters kept of an extracted text: a record should not hold a runaway string of digits."""

_END_OF_TURN = re.compile(
    r"<\|(?:im_start|im_end|endoftext|end_of_text|eot_id|end|user|assistant)\|>|</s>|<eos>|<end_of_turn>"
)
_TURN_HEADER = re.compile(r"\s*+<\|(?:im_start|assistant)\|>")
_NEXT_QUESTION = re.compile(
    r"Question:|^[ \t>*#]*+(?:Question|Problem|Q|User|Human|Instruction)(?:[ ]?[0-9]++)?[ ]?:", re.MULTILINE
)
_BOXED = r"\boxed{"


@dataclass(frozen=True)
class Verdict:
    """What one extraction found.

    Attributes:
        extracted: the number as written, in plain notation and cut at `MAX_EXTRACTED`; None where there is none.
        value: its exact value; None where there is none or it is malformed.
        correct: value equals the reference answer.
        reason: `correct`; `wrong`; `no_marker`, no `####` (strict only); `no_number`; `malformed_number`, such as
            `1,23`, `3/0`, an expression, or more digits than are read.
    """

    extracted: str | None
    value: Fraction | None
    correct: bool
    reason: Reason


@dataclass(frozen=True)
class Grade:
    """Both verdicts, and the reward that one of them gives: 1.0 where it is correct, else 0.0."""

    strict: Verdict
    flexible: Verdict
    reward: float


def grade(text: str, gold: Fraction | int, extraction: Extraction = "strict") -> Grade:
    """Grade what a model wrote after the prompt.

    Args:
        text: the response, any string.
        gold: the reference answer.
        extraction: which verdict is the reward.

    Raises:
        UserError: `extraction` is neither of the two. No text raises.
    """
    if extraction not in get_args(Extraction):
        raise UserError(f"grader canonical: extraction is {extraction!r}; it must be 'strict' or 'flexible'")
    turn = plain_notation(own_turn(text))
    _, marker, after_marker = turn.partition(ANSWER_MARKER)
    marked = leading_number(after_marker) if marker else None
    strict = _verdict(marked, gold, missing="no_number" if marker else "no_marker")
    flexible = _verdict(_flexible_number(marked, turn), gold, missing="no_number")
    reward = strict if extraction == "strict" else flexible
    return Grade(strict, flexible, float(reward.correct))


def own_turn(text: str) -> str:
    """`text` up to the model's first end-of-turn token or next question.

    A question marker on the first line is the model repeating its own question, and a turn may open with its own
    header: neither ends it.
    """
    header = _TURN_HEADER.match(text)
    end_of_turn = _END_OF_TURN.search(text, header.end() if header else 0)
    if end_of_turn:
        text = text[: end_of_turn.start()]
    first_line = len(text) - len(text.lstrip())
    second_line = text.find("\n", first_line) + 1
    next_question = _NEXT_QUESTION.search(text, second_line) if second_line else None
    return text[: next_question.start()] if next_question else text


def _flexible_number(marked: Number | None, turn: str) -> Number | None:
    if marked is not None and marked.value is not None:
        return marked
    if _BOXED in turn:
        boxed = leading_number(turn.rpartition(_BOXED)[2])
        if boxed is not None and boxed.value is not None:
            return boxed
    return last_number(turn)


def _verdict(number: Number | None, gold: Fraction | int, missing: Reason) -> Verdict:
    if number is None:
        return Verdict(extracted=None, value=None, correct=False, reason=missing)
    extracted = number.text if len(number.text) <= MAX_EXTRACTED else f"{number.text[:MAX_EXTRACTED]}…"
    if number.value is None:
        return Verdict(extracted, value=None, correct=False, reason="malformed_number")
    correct = number.value == gold
    return Verdict(extracted, number.value, correct, reason="correct" if correct else "wrong")
