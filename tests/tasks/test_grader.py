import sys
from fractions import Fraction

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from scalerlt.errors import UserError
from scalerlt.tasks.grader import MAX_EXTRACTED, Verdict, grade, own_turn
from scalerlt.tasks.number import MAX_DIGITS


def both(text, gold):
    """The two scores of `text`, having checked that `reward` is the verdict asked for."""
    gold = Fraction(gold)
    strict, flexible = grade(text, gold, "strict"), grade(text, gold, "flexible")
    assert (strict.strict, strict.flexible) == (flexible.strict, flexible.flexible)
    assert strict.reward == float(strict.strict.correct)
    assert flexible.reward == float(strict.flexible.correct)
    return strict.reward, flexible.reward


LONG = "and that is what was asked for; " * 10
RIGHT_AT_THE_MARKER = [
    # what verl's GSM8K reward scored 0, strict or flexible
    ("#### 72", 72),
    ("#### 72.", 72),
    ("#### 1,234", 1234),
    ("#### $1,234", 1234),
    ("####72", 72),
    ("####  72", 72),
    ("#### **72**", 72),
    (r"#### \boxed{72}", 72),
    (f"#### 42 {LONG}", 42),
    ("#### 42" + "x" * 301, 42),
    ("#### 42" + "." * 301, 42),
    # signs: verl #7274's neighbours open-instruct #1530, proeval #19
    ("#### -3", -3),
    ("#### -1,234.5", "-1234.5"),
    ("#### \u22123", -3),
    ("#### - 3", -3),
    ("#### +3", 3),
    ("#### -$5", -5),
    ("#### $-5", -5),
    ("#### **-3**", -3),
    # separators: opencompass #2426, AISBench #359
    ("#### $200,000", 200000),
    ("#### 1,234,567.89.", "1234567.89"),
    ("#### 1\u00a0234", 1234),
    ("#### 1\u202f234\u202f567", 1234567),
    (r"#### \$1{,}234", 1234),
    (r"#### 1\,234", 1234),
    ("#### 12,", 12),
    ("#### 12, 34", 12),
    # run-on: sglang #29933
    ("#### 18\nQuestion: Tom has 7. How many?\nAnswer: #### 7", 18),
    ("#### 18\n\nQ: Tom has 7. How many?\nA: #### 7", 18),
    ("#### 18 #### 7", 18),
    ("#### 18<|im_end|>\n<|im_start|>user\n#### 7", 18),
    # forms
    ("#### $18.00.", 18),
    ("#### 1e3", 1000),
    ("#### 1.5E-2", "0.015"),
    ("#### 3/4", "3/4"),
    ("#### 3 / 4 of a pie", "3/4"),
    ("#### 1 3/4", "7/4"),
    (r"#### -\frac{3}{4}", "-3/4"),
    (r"#### 1\dfrac{3}{4}", "7/4"),
    (r"#### $\boxed{72}$", 72),
    (r"#### \(72\)", 72),
    ("#### 72%", 72),
    (r"#### 72\%", 72),
    ("#### 72 apples - and 3 pears", 72),
    ("#### 5kg", 5),
    ("#### .5", "1/2"),
    ("#### 0.50", "1/2"),
    ("#### 007", 7),
    ("#### 1.5 million", 1500000),
    ("#### €\u00a018", 18),
    ("#### US$18", 18),
    ("#### Rs. 18", 18),
    ("#### = 18", 18),
    ("#### The final answer is: 18", 18),
    ("####\n18", 18),
    ("#### 5\n- 3 apples", 5),
    ("#### " + "0" * 10000 + "72", 72),
    ("#### 72." + "0" * 10000, 72),
]


@pytest.mark.parametrize(("text", "gold"), RIGHT_AT_THE_MARKER)
def test_answer_at_the_marker_scores_in_both(text, gold):
    assert both(text, gold) == (1, 1)
    assert both(f"She has 3 + 4 = <<3+4=7>>7 apples.\n{text}", gold) == (1, 1)
    assert both(text, Fraction(gold) + 1) == (0, 0)
    assert Fraction(gold) == 0 or both(text, -Fraction(gold)) == (0, 0)


@pytest.mark.parametrize(
    ("text", "gold"),
    [
        ("The total is 72 clips, altogether.", 72),
        ("The answer is $200,000", 200000),
        ("It is 1,234.", 1234),
        ("$18.00.", 18),
        (r"So it is \boxed{18}, that is, 3 boxes of 6.", 18),
        (r"\boxed{3}, no, \boxed{18} with 2 left", 18),
        (r"\boxed{\text{18 apples}}", 18),
        (r"\boxed{-\frac{3}{4}}", "-3/4"),
        ("**72**", 72),
        ("It falls to -3", -3),
        ("So 16-3-4", 4),
        ("So 16 - 3 - 4 = 9", 9),
        ("A loss of -$1,234.50!", "-1234.5"),
        ("In 2019, 5", 5),
        ("1e3", 1000),
        ("The answer is 18.\nQuestion: Tom has 7 apples", 18),
        ("The answer is 18.\n\nQ: Tom has 7 apples", 18),
        ("The answer is 18.\n### Problem 2: Tom has 7 apples", 18),
        ("The answer is 18.</s>7 7 7", 18),
        # a marker without a readable number behind it does not hide the answer from the flexible extraction
        ("#### Step 1: add 3 and 4\nThe answer is 7", 7),
        ("The answer is 7\n####", 7),
        ("#### 3 + 4 = 7", 7),
        (r"#### 3 + 4 = \boxed{7}, of 9", 7),
    ],
)
def test_answer_elsewhere_scores_in_flexible_only(text, gold):
    assert both(text, gold) == (0, 1)
    assert both(text, Fraction(gold) + 1) == (0, 0)


@pytest.mark.parametrize(
    ("text", "strict", "flexible"),
    [
        ("", "no_marker", "no_number"),
        ("I do not know, sorry.", "no_marker", "no_number"),
        ("72", "no_marker", "correct"),
        ("71", "no_marker", "wrong"),
        ("### 72", "no_marker", "correct"),
        ("#### 71", "wrong", "wrong"),
        ("####", "no_number", "no_number"),
        ("#### ,", "no_number", "no_number"),
        ("#### -", "no_number", "no_number"),
        ("#### seventy-two", "no_number", "no_number"),
        ("#### x = 72", "no_number", "correct"),
        ("#### 1,23,4", "malformed_number", "malformed_number"),
        ("#### 12,34", "malformed_number", "malformed_number"),
        ("#### 1234,567", "malformed_number", "malformed_number"),
        ("#### 0,72", "malformed_number", "malformed_number"),
        ("#### 0,072", "malformed_number", "malformed_number"),
        ("#### 1.234,56", "malformed_number", "malformed_number"),
        ("#### 1.2.3", "malformed_number", "malformed_number"),
        ("#### 3/0", "malformed_number", "malformed_number"),
        ("#### 1 4/3", "malformed_number", "malformed_number"),
        ("#### -$-72", "malformed_number", "malformed_number"),
        ("#### 1e999999999", "malformed_number", "malformed_number"),
        ("#### " + "9" * (MAX_DIGITS + 1), "malformed_number", "malformed_number"),
        ("#### 72 - 5", "malformed_number", "wrong"),
        ("#### 72-75", "malformed_number", "wrong"),
        ("#### 72:30", "malformed_number", "wrong"),
        ("#### 6 x 12", "malformed_number", "wrong"),
        (r"#### 6 \times 12 = 72", "malformed_number", "correct"),
        ("The answer is 72 or 1,23", "no_marker", "malformed_number"),
    ],
)
def test_reasons(text, strict, flexible):
    result = grade(text, 72)
    assert (result.strict.reason, result.flexible.reason) == (strict, flexible)


def test_verdict_holds_text_and_exact_value():
    assert grade("so\n#### -$1,234.50 in all", 5).strict == Verdict("-$1,234.50", Fraction(-2469, 2), False, "wrong")
    assert grade("#### 33.3", Fraction(100, 3)).reward == 0
    assert grade("#### 100/3", Fraction(100, 3)).reward == 1


@pytest.mark.parametrize(
    ("text", "turn"),
    [
        ("Question: Tom has 3.\nHe has 3.\nQuestion: more", "Question: Tom has 3.\nHe has 3.\n"),
        ("\n\nQ: Tom has 3.\nIt is 3", "\n\nQ: Tom has 3.\nIt is 3"),
        ("\nIt is 3.\nThis is the question: 4", "\nIt is 3.\nThis is the question: 4"),
        ("It is 3.\nA new Question: 4", "It is 3.\nA new "),
        ("It is 3.\n**Question 2:** 4", "It is 3.\n"),
        ("It is 3.\n Q 2: 4", "It is 3.\n"),
        ("It is 3.\n### Instruction: 4", "It is 3.\n"),
        ("It is 3.\nHuman: 4", "It is 3.\n"),
        ("It is 3.\nFAQ: 4", "It is 3.\nFAQ: 4"),
        ("It is 3.<|endoftext|>4", "It is 3."),
        ("<|im_end|> 4", ""),
        ("<|im_start|>assistant\nIt is 3<|im_end|>4", "<|im_start|>assistant\nIt is 3"),
    ],
)
def test_own_turn(text, turn):
    assert own_turn(text) == turn


def test_unknown_extraction_is_refused():
    with pytest.raises(UserError, match=r"'loose'.*'strict' or 'flexible'"):
        grade("#### 72", 72, "loose")


# Properties


@st.composite
def written_rationals(draw):
    """A rational and one way in which people write it; built from integers, not by the grader's rules."""
    whole = draw(st.integers(0, 10**15) | st.integers(0, 10**30))
    kind = draw(st.sampled_from(["integer", "decimal", "fraction", "mixed", "latex", "exponent"]))
    written = f"{whole:,}" if draw(st.booleans()) else str(whole)
    if kind == "integer":
        value = Fraction(whole)
    elif kind == "decimal":
        places = draw(st.integers(1, 8))
        decimals = draw(st.integers(0, 10**places - 1))
        written, value = f"{written}.{decimals:0{places}}", whole + Fraction(decimals, 10**places)
    elif kind == "exponent":
        power = draw(st.integers(-20, 20))
        written, value = f"{whole}e{power}", whole * Fraction(10) ** power
    else:
        below = draw(st.integers(2, 10**6))
        above = draw(st.integers(1, below - 1))
        if kind == "fraction":
            written, value = f"{written}/{below}", Fraction(whole, below)
        elif kind == "mixed":
            written, value = f"{whole} {above}/{below}", whole + Fraction(above, below)
        else:
            written, value = rf"\frac{{{above}}}{{{below}}}", Fraction(above, below)
    sign, factor = draw(st.sampled_from([("", 1), ("-", -1), ("\u2212", -1), ("+", 1)]))
    currency = draw(st.sampled_from(["", "$", "€", "£", r"\$", "$ ", "US$"])) if kind != "latex" else ""
    return sign + currency + written, factor * value


WRAPPINGS = ["{}", "**{}**", "{}.", "{} apples.", "{} dollars in all", "{}%", "\u00a0{}\u00a0", "`{}`", r"\boxed{{{}}}"]


@given(
    rational=written_rationals(),
    wrapping=st.sampled_from(WRAPPINGS),
    spaces=st.text(" ", max_size=3),
    steps=st.sampled_from(["", "4 + 5 = <<4+5=9>>9\n", "First, 1,000 - 3.\n"]),
    run_on=st.sampled_from(["", "\n", "\nQuestion: Tom has 7. #### 8", "<|im_end|>\n9", "\n\nSo there are 12 left."]),
    other=st.integers(-3, 3) | st.integers(),
)
def test_a_rational_as_written_scores_against_itself_alone(rational, wrapping, spaces, steps, run_on, other):
    written, value = rational
    text = f"{steps}####{spaces}{wrapping.format(written)}{run_on}"
    assert both(text, value) == (1, 1), text
    if other != value:
        assert both(text, other) == (0, 0), text
    if value != 0:
        assert both(text, -value) == (0, 0), text


@given(rational=written_rationals(), wrapping=st.sampled_from(WRAPPINGS))
def test_without_a_marker_the_last_number_scores_in_flexible(rational, wrapping):
    written, value = rational
    assert both(f"Out of 12, the answer is {wrapping.format(written)}", value) == (0, 1)


FRAGMENTS = [*"# \n\u00a0$-+.,/e1x}٣\ud800", "####", "23", "000", "9" * 5000, r"\boxed{", r"\frac{1}{", r"\$", "{,}"]
FRAGMENTS += ["Question:", "\nQ:", "<|im_start|>", "</s>", "answer is", "million"]


@given(st.text() | st.lists(st.sampled_from(FRAGMENTS)).map("".join), st.fractions())
@example("#### ٣", Fraction(3))
def test_no_text_raises_and_verdicts_are_consistent(text, gold):
    both(text, gold)
    result = grade(text, gold)
    for verdict in (result.strict, result.flexible):
        assert verdict.correct == (verdict.value == gold) == (verdict.reason == "correct")
        assert (verdict.extracted is None) == (verdict.reason in ("no_marker", "no_number"))
        assert (verdict.value is None) == (verdict.reason not in ("correct", "wrong"))
        assert verdict.extracted is None or len(verdict.extracted) <= MAX_EXTRACTED + 1
    if result.strict.value is not None:
        assert result.flexible == result.strict
    assert (result.strict.reason == "no_marker") == ("####" not in own_turn(text))


REPEATED = [
    *"9 \t\n\u00a0,-$#*(eQ",
    "1,",
    "1.",
    "1 ",
    "1/",
    "1 1/",
    "1e",
    "x1",
    "$-",
    "Rs",
    "1{,}",
    r"\$",
    "answer is ",
]
REPEATED += ["\nQ", "\n# ", r"\boxed{", r"\frac{1", r"\frac{1}{1}"]


@pytest.mark.timeout(60)
@pytest.mark.parametrize("unit", REPEATED)
def test_a_long_repetition_is_graded_in_linear_time(unit):
    """No time is asserted: with 100,000 repetitions a quadratic search exceeds the time limit of the test."""
    for text in ("#### " + unit * 100_000, unit * 100_000, "#### 1" + unit * 100_000 + "!"):
        grade(text, 72)


def test_digit_limit_of_the_interpreter_does_not_matter():
    limit = sys.get_int_max_str_digits()
    sys.set_int_max_str_digits(640)  # the least that Python permits
    try:
        longest = "7" * MAX_DIGITS
        assert grade(f"#### {longest}", int(longest)).reward == 1
        assert grade(f"#### {'7' * 10**6}", 7).strict.reason == "malformed_number"
    finally:
        sys.set_int_max_str_digits(limit)
