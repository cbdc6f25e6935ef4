"""Which cells that have a record run again: `retry=failed,killed`, a list of verdicts or one word for several."""

import re
from collections.abc import Iterable, Sequence
from typing import Any

from scalerlt.errors import RequestErrors
from scalerlt.records.record import Record, Verdict

BY_VERDICT = ("failed", "killed", "lost", "timeout", "oom")
DEFAULT = frozenset({"failed", "killed", "lost", "timeout"})
"""What conf/config.yaml says: whatever has no answer."""
WORDS = (*BY_VERDICT, "other_revision", "all", "none")


def as_list(override: str) -> str:
    """`retry=failed,killed` is one list and no sweep of two: written as Hydra writes a list."""
    key, _, value = override.partition("=")
    return f"{key}=[{value}]" if re.fullmatch(r"[\w\s,-]+", value) else override


def read_retry(value: Any) -> frozenset[str]:
    """The words of a configuration's `retry`; RequestErrors names those that are none."""
    given = value if isinstance(value, Sequence) and not isinstance(value, str) else [value]
    words = [str(word).lower() for word in given if word is not None]
    problems = [f"retry={word}: there are {', '.join(WORDS)}" for word in words if word not in WORDS]
    if not words:
        problems.append(f"retry names nothing; there are {', '.join(WORDS)}")
    if len(words) > 1 and (alone := next((word for word in words if word in ("all", "none")), None)):
        problems.append(f"retry={','.join(words)}: {alone} stands alone")
    if problems:
        raise RequestErrors(problems)
    return frozenset(words)


def why_again(record: Record, retry: Iterable[str], revision: str | None) -> str | None:
    """Why a cell for which this record stands runs again, as a sentence for the plan; None when it does not.

    An attempt that was preempted is not done and goes on under every word but `none`.

    Args:
        retry: the words of the request.
        revision: the git revision of the program that would run it, where there is one.
    """
    words, verdict = set(retry), record.verdict
    if "all" in words:
        return f"runs again (retry=all): its record is {verdict.value}"
    if verdict is Verdict.PREEMPTED and "none" not in words:
        return "goes on: the last attempt was preempted"
    if verdict.value in words:
        return f"runs again (retry={verdict.value}): its record is {verdict.value}"
    if "other_revision" in words and verdict is Verdict.MEASURED:
        earlier = record.provenance.get("git_revision")
        if earlier != revision:
            return (
                f"runs again (retry=other_revision): measured at revision {_short(earlier)}, this is {_short(revision)}"
            )
    return None


def _short(revision: str | None) -> str:
    return revision[:10] if revision else "unknown"
