"""`correction=mis`: the ratio of responses within bounds, and nothing outside."""

from scalerlt.schema.correction import Bounds
from scalerlt.schema.registry import config_group


@config_group("correction", "mis")
class Mis(Bounds):
    """The ratio of responses within bounds, and nothing outside."""
