"""`correction=geo_rs`: responses are left out whose geometric mean ratio is outside of bounds."""

from scalerlt.schema.correction import Bounds
from scalerlt.schema.registry import config_group


@config_group("correction", "geo_rs")
class GeoRs(Bounds):
    """Responses are left out whose geometric mean ratio is outside of bounds.

    Attributes:
        mean: whether the geometric mean over the response's tokens is taken, rather than the product.
    """

    mean: bool
