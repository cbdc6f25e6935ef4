"""Config group `prompt`: how a question becomes the text that a model continues."""

from pydantic import field_validator

from scalerlt.schema.fields import NonNegativeInt
from scalerlt.schema.registry import config_group


@config_group("prompt")
class Prompt:
    """A template and worked examples.

    Attributes:
        template: holds `{question}` once.
        shots: worked examples before the question, the last problems of the task's training split.
    """

    name: str
    template: str
    shots: NonNegativeInt

    @field_validator("template")
    @classmethod
    def _check(cls, template: str) -> str:
        if template.count("{question}") != 1:
            raise ValueError("the template has to hold {question} exactly once")
        return template
