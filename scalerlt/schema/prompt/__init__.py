"""Config group `prompt`: how a question becomes the text that a model continues."""

from typing import Annotated

from pydantic import Field, field_validator

from scalerlt.schema.fields import NonNegativeInt
from scalerlt.schema.registry import config_group

MAX_SHOTS = 100


@config_group("prompt")
class Prompt:
    """A template and worked examples.

    Attributes:
        template: holds `{question}` once.
        shots: worked examples before the question, the last of the first `MAX_SHOTS` training problems.
    """

    name: str
    template: str
    shots: Annotated[NonNegativeInt, Field(le=MAX_SHOTS)]

    @field_validator("template")
    @classmethod
    def _check(cls, template: str) -> str:
        if template.count("{question}") != 1:
            raise ValueError("the template has to hold {question} exactly once")
        return template
