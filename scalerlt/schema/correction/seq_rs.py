"""`correction=seq_rs`: responses are left out whose ratio is outside of bounds."""

from scalerlt.schema.correction import Bounds
from scalerlt.schema.registry import config_group


@config_group("correction", "seq_rs")
class SeqRs(Bounds):
    """Responses are left out whose ratio is outside of bounds.

    Attributes:
        mean: whether the geometric mean over the response's tokens is taken, rather than the product.
    """

    mean: bool
