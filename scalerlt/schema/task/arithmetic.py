"""`task=arithmetic`: generated word problems in GSM8K's own format."""

from typing import Literal

from scalerlt.schema.fields import NonNegativeInt
from scalerlt.schema.registry import config_group
from scalerlt.schema.task import RecordedTask


@config_group("task", "arithmetic")
class Arithmetic(RecordedTask):
    """Word problems, deterministic in the seed, with splits disjoint by content."""

    split: Literal["train", "validation", "test"]
    difficulty: Literal["one_digit", "two_digit", "two_step", "multi_step"]
    problem_seed: NonNegativeInt
