"""`task=gsm8k`: the real GSM8K, from a local directory."""

from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import model_validator

from scalerlt.schema.fields import FileInput, Flag
from scalerlt.schema.registry import config_group
from scalerlt.schema.task import RecordedTask

if TYPE_CHECKING:
    from typing import Self


@config_group("task", "gsm8k")
class Gsm8k(RecordedTask):
    """Grade-school mathematics (arXiv 2110.14168).

    Attributes:
        path: directory that holds train.jsonl and test.jsonl.
        allow_other_digest: accept files that are not the published ones.
    """

    split: Literal["train", "test"]
    path: Annotated[str | None, FileInput(("{split}.jsonl",))]
    allow_other_digest: Flag

    @model_validator(mode="after")
    def _check(self) -> "Self":
        if self.path is None:
            raise ValueError("task.path is not set; point it to a directory that holds train.jsonl and test.jsonl")
        return self
