"""`correction=tis`: truncated importance sampling."""

from typing import Literal

from scalerlt.schema.correction import Correction
from scalerlt.schema.fields import PositiveFloat
from scalerlt.schema.registry import config_group


@config_group("correction", "tis")
class Tis(Correction):
    """The ratio, truncated from above.

    Attributes:
        threshold: the most that it counts.
        level: of each token, or of its whole response.
    """

    threshold: PositiveFloat
    level: Literal["token", "sequence"]
