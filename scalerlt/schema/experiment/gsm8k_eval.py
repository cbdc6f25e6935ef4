"""`experiment=gsm8k_eval`: accuracy without training."""

from typing import Literal

from scalerlt.schema.experiment import Experiment
from scalerlt.schema.fields import PositiveInt
from scalerlt.schema.registry import config_group


@config_group("experiment", "gsm8k_eval")
class Gsm8kEval(Experiment):
    """Grades answers to the first problems of the task.

    Attributes:
        problems: how many; null for as many as the split has (`gsm8k` only).
        answers: `policy` generates them; `reference` takes the task's own, which shows that prompts and grader work.
    """

    problems: PositiveInt | None
    answers: Literal["policy", "reference"]
