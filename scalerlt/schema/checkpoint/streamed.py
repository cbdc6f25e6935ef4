"""`checkpoint=streamed`: the prompt runs first without a graph, and once more after its waves."""

from scalerlt.schema.checkpoint.prefix import Prefix
from scalerlt.schema.registry import config_group


@config_group("checkpoint", "streamed")
class Streamed(Prefix):
    """As `checkpoint=prefix`, but the prompt runs first without a graph, and once more after its waves."""
