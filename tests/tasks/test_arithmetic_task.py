import hashlib
import re
from fractions import Fraction
from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scalerlt.errors import UserError
from scalerlt.tasks.arithmetic import DIFFICULTIES, MAX_SIZE, SPLITS, VOCABULARY, arithmetic
from scalerlt.tasks.grader import grade
from scalerlt.tasks.prompt import Prompt

STEPS = {"one_digit": {1}, "two_digit": {1}, "two_step": {2}, "multi_step": {3, 4}}
everywhere = pytest.mark.parametrize("difficulty", DIFFICULTIES)


def evaluate(expression):
    """Left to right; enough for one operation, and independent of the generator."""
    left, sign, right = re.fullmatch(r"(\d+)([-+*])(\d+)", expression).groups()
    return {"+": int.__add__, "-": int.__sub__, "*": int.__mul__}[sign](int(left), int(right))


def read(question):
    """The answer, from the words of the question: a second author's understanding of the text."""
    n = [int(number) for number in re.findall(r"\d+", question)]
    if "times as many and" in question:
        return n[0] + n[0] * n[1] + n[0] * n[1] + n[2]
    if "times as many" in question:
        return n[0] + n[0] * n[1] - n[2]
    if "bags" in question:
        return n[0] * n[1] + n[2] * n[3] - n[4]
    total = n[0] * n[1] if "boxes" in question else n[0]
    changes = re.findall(r"(buys|finds|wins|donates|loses|sells) (\d+)", question)
    return total + sum(int(count) * (1 if verb in ("buys", "finds", "wins") else -1) for verb, count in changes)


@everywhere
@pytest.mark.parametrize("split", SPLITS)
def test_answers_follow_from_question_and_steps(split, difficulty):
    kinds = set()
    for problem in arithmetic(split, difficulty, seed=3, size=500):
        *steps, last = problem.answer.split("\n")
        assert len(steps) in STEPS[difficulty]
        signs = set()
        for step in steps:
            expression, result, shown = re.search(r"<<(.+)=(\d+)>>(\d+)", step).groups()
            assert evaluate(expression) == int(result) == int(shown)
            signs.add(re.search("[-+*]", expression)[0])
        assert last == f"#### {shown}"
        assert problem.gold == read(problem.question) == int(shown) >= 0
        for extraction in ("strict", "flexible"):
            assert grade(problem.answer, problem.gold, extraction).reward == 1
            assert grade(problem.answer, problem.gold + 1, extraction).reward == 0
        assert difficulty != "multi_step" or "*" in signs
        kinds |= signs
    assert kinds == ({"+", "-", "*"} if difficulty == "multi_step" else {"+", "-"})


def test_one_step_problems_are_short_and_their_operands_have_the_digits():
    for difficulty, digits in (("one_digit", 1), ("two_digit", 2)):
        for problem in arithmetic("train", difficulty, seed=0, size=2000):
            assert {len(number) for number in re.findall(r"\d+", problem.question)} == {digits}
            assert len(problem.question.split()) < 15
            assert len(problem.answer.split("\n")[0].split()) <= 5


@everywhere
def test_texts_consist_of_the_vocabulary(difficulty):
    seen = set()
    for split in SPLITS:
        for problem in arithmetic(split, difficulty, seed=1, size=800):
            text = f"{Prompt().render(problem.question)} {problem.answer}"
            pieces = re.findall(r"####|<<|>>|[A-Za-z]+|[\s\S]", text)
            assert "".join(pieces) == text
            seen.update(pieces)
    assert seen <= set(VOCABULARY)
    if difficulty == "multi_step":
        one_step = arithmetic("train", "one_digit", seed=0, size=500) + arithmetic("train", "two_step", 0, 500)
        for problem in one_step:
            seen.update(re.findall(r"[A-Za-z]+", f"{problem.question} {problem.answer}"))
        assert seen == set(VOCABULARY)
    assert len(VOCABULARY) == len(set(VOCABULARY)) < 100


@everywhere
@settings(max_examples=10, deadline=None)
@given(seed=st.integers(), size=st.integers(1, 60), more=st.integers(0, 40), split=st.sampled_from(SPLITS))
def test_deterministic_and_prefix_stable(difficulty, seed, size, more, split):
    problems = arithmetic(split, difficulty, seed, size)
    assert problems == arithmetic(split, difficulty, seed, size)
    assert problems == arithmetic(split, difficulty, seed, size + more)[:size]
    assert len(problems) == size
    assert len({problem.question for problem in problems}) == len({problem.problem_id for problem in problems}) == size
    assert problems != arithmetic(split, difficulty, seed + 1, size) or size < 5


def test_splits_are_disjoint_by_content_over_seeds_and_difficulties():
    texts = {split: set() for split in SPLITS}
    ids = {split: set() for split in SPLITS}
    for difficulty in DIFFICULTIES:
        for seed in range(10):
            for split in SPLITS:
                for problem in arithmetic(split, difficulty, seed, 60):
                    texts[split].add(problem.question)
                    ids[split].add(problem.problem_id.split("/")[-1])
                    assert problem.problem_id.startswith(f"arithmetic/{split}/")
    for held in (texts, ids):
        assert not held["train"] & held["test"]
        assert not held["train"] & held["validation"]
        assert not held["test"] & held["validation"]
    assert all(len(texts[split]) == len(ids[split]) > 1500 for split in SPLITS)


def test_one_digit_is_exhausted_exactly():
    """Against all its questions, written out here: with a of 2..9 and b of 1..9, nothing taken that is not there."""
    questions = {split: set() for split in SPLITS}
    names = ("Amy", "Ben", "Eva", "Leo", "Mia", "Sam", "Tom", "Zoe")
    items = ("apples", "books", "cards", "coins", "eggs", "pens", "shells", "stamps")
    for name, item, a, b in product(names, items, range(2, 10), range(1, 10)):
        more = [f"{verb} {b} more. How many {item} does {name} have?" for verb in ("buys", "finds", "wins")]
        less = [f"{verb} {b}. How many {item} are left?" for verb in ("donates", "loses", "sells")]
        for change in more + less if b <= a else more:
            question = f"{name} has {a} {item} and {change}"
            tenth = int(hashlib.sha256(question.encode()).hexdigest()[:8], 16) % 10
            questions[SPLITS[max(0, 2 - tenth)]].add(question)
    for split in SPLITS:
        size = len(questions[split])
        problems = arithmetic(split, "one_digit", seed=0, size=size)
        assert {problem.question for problem in problems} == questions[split]
        for too_many in (size + 1, 10**12):
            if split == "test":
                with pytest.raises(UserError, match=f"split test of difficulty one_digit holds {size} problems"):
                    arithmetic("test", "one_digit", seed=9, size=too_many)


def test_kinds_take_turns():
    problems = arithmetic("train", "multi_step", seed=5, size=8)
    kinds = [
        re.sub(r"\d+|[A-Z]\w+|\b(apples|books|cards|coins|eggs|pens|shells|stamps)\b", "", p.answer) for p in problems
    ]
    assert len(set(kinds[:4])) == 4


@pytest.mark.parametrize(
    ("split", "difficulty", "size", "fault"),
    [
        ("dev", "one_digit", 5, "no split 'dev'; its splits are train, validation, test"),
        ("test", "hard", 5, "no difficulty 'hard'; its difficulties are one_digit, two_digit, two_step, multi_step"),
        ("test", "one_digit", 0, "size is 0; it must be at least 1"),
        ("test", "one_digit", -3, "size is -3; it must be at least 1"),
        ("test", "two_step", MAX_SIZE + 1, f"size is {MAX_SIZE + 1}; at most {MAX_SIZE} problems"),
    ],
)
def test_wrong_requests_are_refused(split, difficulty, size, fault):
    with pytest.raises(UserError, match=fault):
        arithmetic(split, difficulty, 0, size)


def test_problems_never_change():
    """Another digest means that earlier runs learnt from other problems: take a new difficulty, not a new digest."""
    digest = hashlib.sha256()
    for difficulty in DIFFICULTIES:
        for split in SPLITS:
            for problem in arithmetic(split, difficulty, seed=7, size=50):
                digest.update(f"{problem.problem_id}\0{problem.question}\0{problem.answer}\0".encode())
    assert digest.hexdigest() == "c47a084f0ee989efa26e3ed3ce0533983b500cd3f5cbf5fa13d4e80f4726e4f5"
    assert arithmetic("train", "one_digit", 0, 1)[0].gold == Fraction(9)
