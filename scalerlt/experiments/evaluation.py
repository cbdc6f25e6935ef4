"""Held-out accuracy: greedy, one answer per problem, with what a reader needs to trust it."""

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from scalerlt.experiments.answers import Answer


@dataclass(frozen=True, kw_only=True)
class Evaluation:
    """Accuracy over n problems.

    Attributes:
        accuracy: share of correct answers by the grader's chosen extraction.
        standard_error: binomial, sqrt(p (1 - p) / n).
        strict, flexible: share correct by each extraction.
        format_rate: share of answers with a readable number behind the marker.
        clipped_ratio: share that ended at the length limit.
        mean_length: response tokens per answer.
        mean_depth: loops behind a response token.
        reasons: answers by the strict verdict's reason.
    """

    n: int
    accuracy: float
    standard_error: float
    strict: float
    flexible: float
    format_rate: float
    clipped_ratio: float
    mean_length: float
    mean_depth: float
    reasons: dict[str, int]


def evaluate(answers: Sequence[Answer]) -> Evaluation:
    """Summarise graded answers."""
    n = len(answers)
    accuracy = sum(answer.reward for answer in answers) / n
    tokens = sum(len(answer.response.tokens) for answer in answers)
    return Evaluation(
        n=n,
        accuracy=accuracy,
        standard_error=math.sqrt(accuracy * (1 - accuracy) / n),
        strict=sum(answer.grade.strict.correct for answer in answers) / n,
        flexible=sum(answer.grade.flexible.correct for answer in answers) / n,
        format_rate=sum(answer.grade.strict.reason in ("correct", "wrong") for answer in answers) / n,
        clipped_ratio=sum(answer.response.finish_reason == "length" for answer in answers) / n,
        mean_length=tokens / n,
        mean_depth=sum(sum(answer.response.exit_depths) for answer in answers) / tokens,
        reasons=dict(Counter(answer.grade.strict.reason for answer in answers)),
    )
