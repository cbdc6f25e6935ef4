"""`correction=icepop`: the ratio of tokens within bounds, and nothing outside."""

from scalerlt.schema.correction import Bounds
from scalerlt.schema.registry import config_group


@config_group("correction", "icepop")
class IcePop(Bounds):
    """The ratio of tokens within bounds, and nothing outside."""
