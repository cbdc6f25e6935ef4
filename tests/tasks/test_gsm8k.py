import json
from decimal import Decimal
from fractions import Fraction

import pytest

from scalerlt.errors import UserError
from scalerlt.tasks.grader import grade
from scalerlt.tasks.gsm8k import DIGESTS, digest, gsm8k
from scalerlt.tasks.problem import Problem, final_answer

ROWS = {"train": 7473, "test": 1319}
GOOD = json.dumps({"question": "Why?", "answer": "3 + 4 = <<3+4=7>>7\n#### 7"}).encode()


def write(directory, *lines, split="test"):
    (directory / f"{split}.jsonl").write_bytes(b"\n".join(lines) + b"\n")
    return directory


def row(question="Why?", answer="#### 7", **more):
    return json.dumps({"question": question, "answer": answer, **more}).encode()


@pytest.mark.parametrize("split", ["train", "test"])
def test_real_reference_answers_all_score(gsm8k_directory, split):
    problems = gsm8k(gsm8k_directory, split)
    assert len(problems) == len({problem.problem_id for problem in problems}) == ROWS[split]
    for problem in problems:
        gold = Fraction(Decimal(problem.answer.split("#### ")[1].replace(",", "")))
        assert problem.gold == gold, problem
        right, wrong = grade(problem.answer, gold), grade(problem.answer, gold + 1)
        assert right.strict.correct and right.flexible.correct and right.reward == 1, problem
        assert not wrong.strict.correct and not wrong.flexible.correct and wrong.reward == 0, problem


@pytest.mark.parametrize("split", ["train", "test"])
def test_real_reference_answers_score_flexibly_from_their_sentences(gsm8k_directory, split):
    """Each as `The answer is n.`, with the separators of the reference and a model that runs on."""
    for problem in gsm8k(gsm8k_directory, split):
        written = problem.answer.split("#### ")[1]
        text = f"The answer is ${written}.\nQuestion: {problem.question}\nAnswer: 5"
        assert grade(text, problem.gold, "flexible").reward == 1, problem


def test_real_files_have_the_published_digests_and_ids(gsm8k_directory):
    assert {split: digest(gsm8k_directory, split) for split in DIGESTS} == DIGESTS
    first = gsm8k(gsm8k_directory, "test", limit=18)
    assert len(first) == 18
    assert first[17].problem_id == "gsm8k/test/00017"
    assert first[0].question.startswith("Janet’s ducks lay 16 eggs per day.")
    assert first == gsm8k(gsm8k_directory, "test")[:18]


def test_one_changed_byte_is_refused_with_both_digests(gsm8k_directory, tmp_path):
    content = (gsm8k_directory / "test.jsonl").read_bytes()
    (tmp_path / "test.jsonl").write_bytes(content.replace(b"16 eggs", b"17 eggs", 1))
    with pytest.raises(UserError, match=DIGESTS["test"]) as error:
        gsm8k(tmp_path, "test")
    assert digest(tmp_path, "test") in str(error.value)
    assert len(gsm8k(tmp_path, "test", allow_other_digest=True)) == ROWS["test"]


def test_another_file_needs_permission(tmp_path):
    write(tmp_path, GOOD, GOOD)
    with pytest.raises(UserError, match="allow_other_digest") as error:
        gsm8k(tmp_path, "test")
    assert digest(tmp_path, "test") in str(error.value)
    assert DIGESTS["test"] in str(error.value)
    problems = gsm8k(str(tmp_path), "test", allow_other_digest=True)
    assert [problem.problem_id for problem in problems] == ["gsm8k/test/00000", "gsm8k/test/00001"]
    assert problems[0].gold == 7


@pytest.mark.parametrize(
    ("line", "fault"),
    [
        (b"", "the line is blank"),
        (b"   ", "the line is blank"),
        (b'{"question": "Why?"', "not JSON"),
        (b"{}{}", "not JSON"),
        (b"\xef\xbb\xbf" + GOOD, "not JSON"),
        (b'{"question": "caf\xe9", "answer": "#### 7"}', r"not UTF-8 \(byte 18 "),
        (b"[" * 100_000, "not JSON"),
        (b"9" * 10_000, "not JSON"),
        (b"[1, 2]", "a JSON list, not an object"),
        (b"null", "a JSON NoneType, not an object"),
        (b'{"question": "Why?"}', "the key 'answer' is missing; the row has 'question'"),
        (b'{"answer": "#### 7"}', "the key 'question' is missing"),
        (row(question=None), "'question' is NoneType, not a string"),
        (row(answer=7), "'answer' is int, not a string"),
        (row(question=" "), "'question' is empty"),
        (row(question="\ud83d"), "'question' holds half of a surrogate pair"),
        (row(answer="it is 7"), "the answer has no '#### '"),
        (row(answer="it is ####7"), "the answer has no '#### '"),
        (row(answer="#### 6\n#### 7"), "more than one '####'"),
        (row(answer="#### seven"), "'seven', which is not a number"),
        (row(answer="#### 7 apples"), "'7 apples', which is not a number"),
        (row(answer="#### 1,23"), "'1,23', which is not a number"),
        (row(answer="#### "), "'', which is not a number"),
        (row(answer="#### NaN"), "not a number"),
    ],
)
def test_a_broken_row_is_named_with_file_line_and_fault(tmp_path, line, fault):
    write(tmp_path, GOOD, GOOD, line, GOOD)
    for permitted in (False, True):
        with pytest.raises(UserError, match=fault) as error:
            gsm8k(tmp_path, "test", limit=1, allow_other_digest=permitted)
        message = str(error.value)
        assert message.startswith(f"{tmp_path / 'test.jsonl'}:3: ")
        assert "\n" not in message


def test_all_broken_rows_are_named_up_to_twenty(tmp_path):
    write(tmp_path, *[b"", GOOD] * 5)
    with pytest.raises(UserError) as error:
        gsm8k(tmp_path, "test")
    assert [line.split(":")[-2] for line in str(error.value).splitlines()] == ["1", "3", "5", "7", "9"]

    write(tmp_path, *[b"no"] * 50)
    with pytest.raises(UserError) as error:
        gsm8k(tmp_path, "test")
    lines = str(error.value).splitlines()
    assert len(lines) == 21
    assert lines[-1].endswith("30 more broken rows")


def test_an_empty_file_a_last_line_without_newline_and_windows_line_ends(tmp_path):
    (tmp_path / "test.jsonl").write_bytes(b"")
    with pytest.raises(UserError, match=r"test\.jsonl:1: the line is blank"):
        gsm8k(tmp_path, "test", allow_other_digest=True)
    (tmp_path / "test.jsonl").write_bytes(GOOD + b"\r\n" + GOOD)
    assert len(gsm8k(tmp_path, "test", allow_other_digest=True)) == 2


def test_missing_files_splits_and_limits_are_refused(tmp_path):
    with pytest.raises(UserError, match=r"train\.jsonl: cannot read it \(No such file"):
        gsm8k(tmp_path, "train")
    with pytest.raises(UserError, match="cannot read it"):
        digest(tmp_path / "nowhere", "test")
    for read in (gsm8k, digest):
        with pytest.raises(UserError, match="no split 'validation'; its splits are train and test"):
            read(tmp_path, "validation")
    write(tmp_path, GOOD, GOOD)
    for limit in (0, -1, 3):
        with pytest.raises(UserError, match=f"limit is {limit}; it must be between 1 and the 2 rows"):
            gsm8k(tmp_path, "test", limit=limit, allow_other_digest=True)


@pytest.mark.parametrize(
    ("answer", "gold"),
    [("#### 7", 7), ("a\n#### -1,234.5\n", Fraction(-2469, 2)), ("#### 109,200,000", 109_200_000)],
)
def test_gold_is_exact(answer, gold):
    assert final_answer(answer) == Problem("x", "Why?", answer).gold == gold
