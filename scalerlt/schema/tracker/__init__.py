"""Config group `tracker`: where an attempt is mirrored while and after it runs; out of the identity."""

from pydantic import Field

from scalerlt.schema.fields import Target
from scalerlt.schema.registry import config_group


@config_group("tracker", "none")
class NoTracker:
    """`none`: nowhere."""

    name: str


@config_group("tracker")
class Tracker:
    """A mirror.

    Attributes:
        target: called with what is mirrored and the values of this option (see `scalerlt.tracking.following`).
    """

    name: str
    target: Target = Field(alias="_target_")
