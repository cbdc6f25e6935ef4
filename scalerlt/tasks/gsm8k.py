"""The real GSM8K (arXiv 2110.14168; github.com/openai/grade-school-math) from a local directory."""

import hashlib
import json
from pathlib import Path

from scalerlt.errors import UserError
from scalerlt.tasks.problem import Problem, final_answer

DIGESTS = {
    "train": "17f347dc51477c50d4efb83959dbb7c56297aba886e5544ee2aaed3024813465",
    "test": "3730d312f6e3440559ace48831e51066acaca737f6eabec99bccb9e4b3c39d14",
}
"""SHA-256 of train.jsonl (7,473 rows) and test.jsonl (1,319 rows) of grade-school-math, commit 3101c7d5."""

MAX_ROWS_NAMED = 20
"""Broken rows that one message lists."""


def gsm8k(path: str | Path, split: str, limit: int | None = None, allow_other_digest: bool = False) -> list[Problem]:
    """Read `<path>/<split>.jsonl`, whole, and return its problems in file order.

    Ids are "gsm8k/<split>/<row from 0>".

    Args:
        path: the directory that holds train.jsonl and test.jsonl.
        split: "train" or "test".
        limit: return the first `limit` problems; None for all.
        allow_other_digest: accept a file that is not the published one.

    Raises:
        UserError: no such split or file; broken rows (the first `MAX_ROWS_NAMED` named with line and fault); a file
            that is not the published one; a limit that is not positive or exceeds the rows.
    """
    file = _file(path, split)
    content = _content(file)
    problems = _problems(file, split, content)
    found = hashlib.sha256(content).hexdigest()
    if found != DIGESTS[split] and not allow_other_digest:
        raise UserError(
            f"{file}: SHA-256 is {found}, the published GSM8K {split} split has {DIGESTS[split]}; "
            "get the published file, or set allow_other_digest=true to use this one"
        )
    if limit is not None and not 1 <= limit <= len(problems):
        raise UserError(f"{file}: limit is {limit}; it must be between 1 and the {len(problems)} rows of the file")
    return problems[:limit]


def digest(path: str | Path, split: str) -> str:
    """SHA-256 (hex) of `<path>/<split>.jsonl`, which stands for the file in the identity of a run."""
    return hashlib.sha256(_content(_file(path, split))).hexdigest()


def _file(path: str | Path, split: str) -> Path:
    if split not in DIGESTS:
        raise UserError(f"GSM8K has no split {split!r}; its splits are {' and '.join(DIGESTS)}")
    return Path(path) / f"{split}.jsonl"


def _content(file: Path) -> bytes:
    try:
        return file.read_bytes()
    except OSError as error:
        raise UserError(
            f"{file}: cannot read it ({error.strerror}); the path of the GSM8K task is the directory that holds "
            "train.jsonl and test.jsonl of github.com/openai/grade-school-math"
        ) from error


def _problems(file: Path, split: str, content: bytes) -> list[Problem]:
    problems: list[Problem] = []
    faults: list[str] = []
    lines = content.removesuffix(b"\n").split(b"\n")
    for row, line in enumerate(lines):
        try:
            problems.append(_problem(f"gsm8k/{split}/{row:05d}", line))
        except UserError as fault:
            faults.append(f"{file}:{row + 1}: {fault}")
    if faults:
        hidden = len(faults) - MAX_ROWS_NAMED
        more = [f"{file}: {hidden} more broken rows"] if hidden > 0 else []
        raise UserError("\n".join(faults[:MAX_ROWS_NAMED] + more))
    return problems


def _problem(problem_id: str, line: bytes) -> Problem:
    """One row; a UserError says only what is wrong with it."""
    if not line.strip():
        raise UserError("the line is blank")
    try:
        row = json.loads(line.decode())
    except UnicodeDecodeError as error:
        raise UserError(f"not UTF-8 (byte {error.start + 1} of the line: {error.reason})") from error
    except (ValueError, RecursionError) as error:
        raise UserError(f"not JSON ({error})") from error
    if not isinstance(row, dict):
        raise UserError(f"a JSON {type(row).__name__}, not an object with question and answer")
    for key in ("question", "answer"):
        _check_text(row, key)
    problem = Problem(problem_id, row["question"], row["answer"])
    final_answer(problem.answer)
    return problem


def _check_text(row: dict[str, object], key: str) -> None:
    if key not in row:
        raise UserError(f"the key {key!r} is missing; the row has {', '.join(map(repr, row)) or 'none'}")
    text = row[key]
    if not isinstance(text, str):
        raise UserError(f"{key!r} is {type(text).__name__}, not a string")
    if not text.strip():
        raise UserError(f"{key!r} is empty")
    if any("\ud800" <= character <= "\udfff" for character in text):
        raise UserError(f"{key!r} holds half of a surrogate pair, which is no character")
