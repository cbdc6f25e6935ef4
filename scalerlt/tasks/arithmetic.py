"""Generated word problems in GSM8K's own format, small enough for a tiny model and a word tokenizer.

Every problem of a template has a number, whose mixed-radix digits are the words and operands that fill the template.
The seed permutes these numbers, so that a data set never repeats a problem and a smaller size is a prefix of a larger
one. The hash of the question decides its split, whatever the seed: the splits are disjoint by content.
"""

import hashlib
import math
import operator
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from string import Formatter

from scalerlt.errors import UserError
from scalerlt.tasks.counter_random import RandomPermutation, stream_key
from scalerlt.tasks.problem import ANSWER_MARKER, Problem

SPLITS = ("train", "validation", "test")
"""Eight, one and one tenths of all problems."""

MAX_SIZE = 100_000
"""Most problems that one call makes; every split holds more, but for those of `one_digit`."""

_NAMES = ("Amy", "Ben", "Eva", "Leo", "Mia", "Sam", "Tom", "Zoe")
_WORDS: dict[str, Sequence[str]] = {
    "name": _NAMES,
    "other": _NAMES,
    "third": _NAMES,
    "items": ("apples", "books", "cards", "coins", "eggs", "pens", "shells", "stamps"),
    "gains": ("buys", "finds", "wins"),
    "gains_again": ("buys", "finds", "wins"),
    "loses": ("donates", "loses", "sells"),
    "loses_again": ("donates", "loses", "sells"),
}
_OPERATIONS = {"+": operator.add, "-": operator.sub, "*": operator.mul}


@dataclass(frozen=True)
class Template:
    """A kind of problem.

    Attributes:
        question: with the fields of the words in braces, and of `operands`.
        steps: (equation `result = left sign right`, sentence in which `{}` is its annotated value); the last result is
            the answer.
        operands: values of each operand. Counts of things start at 2, for the plural.
    """

    question: str
    steps: tuple[tuple[str, str], ...]
    operands: Mapping[str, range]

    @cached_property
    def fields(self) -> dict[str, Sequence[str | int]]:
        """What varies, in order of appearance, with its values."""
        names = dict.fromkeys(name for _, name, _, _ in Formatter().parse(self.question) if name)
        return {name: self.operands[name] if name in self.operands else _WORDS[name] for name in names}

    @cached_property
    def size(self) -> int:
        """Numbers of problems: range(size); some stand for none."""
        return math.prod(len(values) for values in self.fields.values())

    def problem(self, number: int) -> tuple[str, str] | None:
        """Question and answer of problem `number`; None where a person appears twice or a result is negative."""
        filling: dict[str, str | int] = {}
        for name, values in self.fields.items():
            number, digit = divmod(number, len(values))
            filling[name] = values[digit]
        people = [filling[person] for person in ("name", "other", "third") if person in filling]
        if len(set(people)) < len(people):
            return None
        numbers = {name: int(filling[name]) for name in self.operands}
        lines = []
        for equation, sentence in self.steps:
            result, _, left, sign, right = equation.split()
            value = numbers[result] = _OPERATIONS[sign](numbers[left], numbers[right])
            if value < 0:
                return None
            annotation = f"<<{numbers[left]}{sign}{numbers[right]}={value}>>{value}"
            lines.append(sentence.format(annotation, **filling))
        lines.append(f"{ANSWER_MARKER} {value}")
        return self.question.format(**filling), "\n".join(lines)


def _one_step(most: int, least: int) -> tuple[Template, ...]:
    operands = {"a": range(max(2, least), most + 1), "b": range(least, most + 1)}
    return (
        Template(
            "{name} has {a} {items} and {gains} {b} more. How many {items} does {name} have?",
            (("p = a + b", "{name} has {} now."),),
            operands,
        ),
        Template(
            "{name} has {a} {items} and {loses} {b}. How many {items} are left?",
            (("p = a - b", "{name} has {} left."),),
            operands,
        ),
    )


_TWO_STEP_OPERANDS = {"a": range(2, 31), "b": range(1, 31), "c": range(1, 31)}
_TWO_STEP = (
    Template(
        "{name} has {a} {items}, {gains} {b} more and then {gains_again} {c} more. How many {items} does {name} have?",
        (("p = a + b", "{name} has {}."), ("q = p + c", "{name} has {} now.")),
        _TWO_STEP_OPERANDS,
    ),
    Template(
        "{name} has {a} {items}, {gains} {b} more and then {loses} {c}. How many {items} are left?",
        (("p = a + b", "{name} has {}."), ("q = p - c", "{name} has {} left.")),
        _TWO_STEP_OPERANDS,
    ),
    Template(
        "{name} has {a} {items}, {loses} {b} and then {gains} {c} more. How many {items} does {name} have?",
        (("p = a - b", "{name} has {}."), ("q = p + c", "{name} has {} now.")),
        _TWO_STEP_OPERANDS,
    ),
    Template(
        "{name} has {a} {items}, {loses} {b} and then {loses_again} {c}. How many {items} are left?",
        (("p = a - b", "{name} has {}."), ("q = p - c", "{name} has {} left.")),
        _TWO_STEP_OPERANDS,
    ),
)

_MULTI_STEP = (
    Template(
        "{name} has {a} boxes of {b} {items} each, {gains} {c} more {items} and then {loses} {d}. "
        "How many {items} are left?",
        (
            ("p = a * b", "The boxes hold {}."),
            ("q = p + c", "{name} has {}."),
            ("r = q - d", "{name} has {} left."),
        ),
        {"a": range(2, 10), "b": range(2, 10), "c": range(1, 31), "d": range(1, 31)},
    ),
    Template(
        "{name} has {a} {items} and {other} has {b} times as many. Together they sell {c}. How many {items} are left?",
        (
            ("p = a * b", "{other} has {}."),
            ("q = a + p", "Together they have {}."),
            ("r = q - c", "They have {} left."),
        ),
        {"a": range(2, 31), "b": range(2, 10), "c": range(2, 100)},
    ),
    Template(
        "{name} has {a} boxes of {b} {items} each and {c} bags of {d} {items} each. {name} {loses} {e}. "
        "How many {items} are left?",
        (
            ("p = a * b", "The boxes hold {}."),
            ("q = c * d", "The bags hold {}."),
            ("r = p + q", "{name} has {}."),
            ("s = r - e", "{name} has {} left."),
        ),
        {
            "a": range(2, 10),
            "b": range(2, 10),
            "c": range(2, 10),
            "d": range(2, 10),
            "e": range(1, 31),
        },
    ),
    Template(
        "{name} has {a} {items}, {other} has {b} times as many and {third} has {c} more than {other}. "
        "How many {items} do they have together?",
        (
            ("p = a * b", "{other} has {}."),
            ("q = p + c", "{third} has {}."),
            ("r = a + p", "{name} and {other} have {}."),
            ("s = r + q", "Together they have {}."),
        ),
        {"a": range(2, 31), "b": range(2, 10), "c": range(1, 31)},
    ),
)

DIFFICULTIES: dict[str, tuple[Template, ...]] = {
    "one_digit": _one_step(least=1, most=9),
    "two_digit": _one_step(least=10, most=99),
    "two_step": _TWO_STEP,
    "multi_step": _MULTI_STEP,
}


def _vocabulary() -> tuple[str, ...]:
    sentences = [
        text
        for templates in DIFFICULTIES.values()
        for template in templates
        for text in (template.question, *(sentence for _, sentence in template.steps))
    ]
    words = {word for values in _WORDS.values() for word in values}
    words.update(re.findall("[A-Za-z]+", re.sub(r"\{\w*\}", "", " ".join(sentences))))
    words.update(("Question", "Answer"))
    symbols = (" ", "\n", ".", ",", "?", ":", "<<", ">>", "=", *_OPERATIONS, ANSWER_MARKER)
    return (*symbols, *"0123456789", *sorted(words))


VOCABULARY = _vocabulary()
"""Symbols, digits and words of which every problem and its default prompt consist: one token each, if one likes."""


def arithmetic(split: str, difficulty: str, seed: int, size: int) -> list[Problem]:
    """Generate `size` different problems; kinds of problem take turns while they last.

    The result is a function of the arguments alone, on every platform. A smaller size gives a prefix of a larger one.
    No problem of one split is in another, whatever the seeds. Ids are "arithmetic/<split>/<hash of the question>".

    Args:
        split: one of `SPLITS`.
        difficulty: `one_digit` and `two_digit`: one step, + or -; `two_step`: two of these; `multi_step`: three or four
            steps, with *. Every value is a non-negative integer.
        seed: chooses the problems and their order.
        size: number of problems.

    Raises:
        UserError: an unknown split or difficulty, or a size that is not positive, above `MAX_SIZE`, or more
            than the split holds (says how many).
    """
    if split not in SPLITS:
        raise UserError(f"arithmetic has no split {split!r}; its splits are {', '.join(SPLITS)}")
    if difficulty not in DIFFICULTIES:
        raise UserError(f"arithmetic has no difficulty {difficulty!r}; its difficulties are {', '.join(DIFFICULTIES)}")
    if size < 1:
        raise UserError(f"arithmetic: size is {size}; it must be at least 1")
    templates = DIFFICULTIES[difficulty]
    if size > MAX_SIZE and sum(template.size for template in templates) > MAX_SIZE:
        raise UserError(f"arithmetic: size is {size}; at most {MAX_SIZE} problems are made at once")
    streams = [
        _problems(template, split, stream_key("arithmetic", seed, split, difficulty, kind))
        for kind, template in enumerate(templates)
    ]
    problems = list(islice(_taking_turns(streams), size))
    if len(problems) < size:
        raise UserError(
            f"arithmetic: size is {size}, but split {split} of difficulty {difficulty} holds {len(problems)} problems"
        )
    return problems


def _problems(template: Template, split: str, key: int) -> Iterator[Problem]:
    permutation = RandomPermutation(key, template.size)
    for index in range(template.size):
        problem = template.problem(permutation(index))
        if problem is None:
            continue
        question, answer = problem
        content_hash = hashlib.sha256(question.encode()).hexdigest()
        if _split(content_hash) == split:
            yield Problem(f"arithmetic/{split}/{content_hash[:16]}", question, answer)


def _split(content_hash: str) -> str:
    tenth = int(content_hash[:8], 16) % 10
    return "test" if tenth == 0 else "validation" if tenth == 1 else "train"


def _taking_turns(streams: list[Iterator[Problem]]) -> Iterator[Problem]:
    while streams:
        unfinished = []
        for stream in streams:
            for problem in islice(stream, 1):
                yield problem
                unfinished.append(stream)
        streams = unfinished
