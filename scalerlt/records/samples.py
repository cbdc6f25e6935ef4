"""Recorded rollouts: what was generated, one response a line, in strict JSON lines.

The first line is a header that says what the file is and how it came about; every further line is one response.
"""

import hashlib
import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal, Self, TypeVar

from pydantic import Field, ValidationError, model_validator

from scalerlt.errors import UserError
from scalerlt.records.base import Part, finite, read_file, write_atomically

TokenId = Annotated[int, Field(ge=0)]


class SamplesHeader(Part):
    """The first line."""

    kind: Literal["samples"] = "samples"
    schema_version: Literal[1] = 1
    model: str
    """The policy that generated: a model's name, or a checkpoint."""
    vocab_size: int = Field(gt=0)
    made_by: str
    """How the file was made: command, engine, source of the rewards and advantages."""


class Sample(Part):
    """One response to one prompt."""

    problem_id: str
    prompt_group: int = Field(ge=0)
    """Responses of one prompt share it."""
    prompt_tokens: list[TokenId] = Field(min_length=1)
    response_tokens: list[TokenId]
    logprobs: list[float]
    """Log-probability of each response token under the distribution that it was drawn from (after temperature)."""
    raw_logprobs: list[float] | None = None
    """The same under the unscaled logits."""
    learner_logprobs: list[float] | None = None
    """The learner's, of the same tokens, before its first update on them."""
    temperature: float = Field(ge=0)
    """Of the sampling; 0 is greedy."""
    finish_reason: Literal["stop", "length"]
    seed: int
    """Effective seed of the request."""
    weight_version: int
    """Version of the weights that generated."""
    reward: float
    advantage: float | None = None
    exit_depths: list[Annotated[int, Field(gt=0)]] | None = None
    """Loops that each response token ran; None: all of them."""
    question: str | None = None
    gold: str | None = None
    """The reference answer, as an exact fraction."""
    text: str | None = None
    """The response as text."""
    extracted: str | None = None
    """The answer that the grader read."""
    strict: str | None = None
    flexible: str | None = None
    """Each extraction's verdict: correct, wrong, no_marker, no_number, malformed_number."""

    @model_validator(mode="after")
    def _lengths_agree(self) -> Self:
        for name in ("logprobs", "raw_logprobs", "learner_logprobs", "exit_depths"):
            values = getattr(self, name)
            if values is not None and len(values) != len(self.response_tokens):
                raise ValueError(f"{len(values)} {name} for {len(self.response_tokens)} response_tokens")
        return self


@dataclass(frozen=True)
class Samples:
    """A file of samples as read."""

    header: SamplesHeader
    samples: list[Sample]


def write_samples(path: Path, header: SamplesHeader, samples: Iterable[Sample]) -> None:
    """Write the file atomically. The same samples give the same bytes."""
    write_atomically(path, "".join(_line(part) for part in (header, *samples)))


def read_samples(path: Path) -> Samples:
    """Read and check a whole file.

    Raises:
        UserError: it cannot be read, or a line is broken: the file, the line's number from 1, and the fault.
    """
    try:
        text = read_file(path).decode()
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"samples file {path}: cannot be read ({error})") from error
    if not text:
        raise UserError(f"samples file {path}: is empty; its first line has to be a header")
    lines = text.removesuffix("\n").split("\n")  # not splitlines: a response may hold other line separators
    header = _parse(SamplesHeader, lines[0], path, 1)
    return Samples(header, [_parse(Sample, line, path, number) for number, line in enumerate(lines[1:], start=2)])


def digest(path: Path) -> str:
    """SHA-256 of the file's bytes, in hexadecimal: what stands for it in a cell's identity."""
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _line(part: Part) -> str:
    plain = finite(part.model_dump(mode="python", exclude_none=True))
    return json.dumps(plain, ensure_ascii=False, allow_nan=False, separators=(",", ":")) + "\n"


_P = TypeVar("_P", bound=Part)


def _parse(schema: type[_P], line: str, path: Path, number: int) -> _P:
    try:
        return schema.model_validate_json(line)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        message = first["msg"].removeprefix("Value error, ")
        what = "header" if schema is SamplesHeader else "sample"
        raise UserError(f"samples file {path}, line {number}: not a {what} ({where or 'line'}: {message})") from error
