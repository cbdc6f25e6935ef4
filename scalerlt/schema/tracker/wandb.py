"""`tracker=wandb`: a run at Weights & Biases."""

from typing import Annotated, Literal

from pydantic import AfterValidator

from scalerlt.schema.registry import config_group
from scalerlt.schema.tracker import Tracker

FORBIDDEN = "/\\#?%:"


def _project(value: str) -> str:
    if not value or len(value) > 128 or any(character in FORBIDDEN for character in value):
        raise ValueError(f"a project has 1 to 128 characters, none of them one of {' '.join(FORBIDDEN)}")
    return value


@config_group("tracker", "wandb")
class Wandb(Tracker):
    """Weights & Biases.

    Attributes:
        entity: a user or a team; None: the one that the key belongs to.
        mode: `auto` is what WANDB_MODE says, else online where a key is known, else offline.
    """

    project: Annotated[str, AfterValidator(_project)]
    entity: str | None
    mode: Literal["auto", "online", "offline"]
