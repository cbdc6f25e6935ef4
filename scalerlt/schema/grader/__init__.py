"""Config group `grader`: which verdict on an answer is the reward."""

from typing import Literal

from scalerlt.schema.registry import config_group


@config_group("grader")
class Grader:
    """Exact rational comparison of the extracted answer; both verdicts are always recorded.

    Attributes:
        extraction: `strict` wants the number behind `####`; `flexible` also takes a boxed or the last number.
        version: of the grader's rules; a changed rule is another cell.
    """

    name: str
    extraction: Literal["strict", "flexible"]
    version: str
