"""`checkpoint=prefix`: the prompt of several responses runs once."""

from scalerlt.schema.checkpoint import Checkpoint
from scalerlt.schema.fields import PositiveInt
from scalerlt.schema.registry import config_group


@config_group("checkpoint", "prefix")
class Prefix(Checkpoint):
    """Responses run in waves after the prompt that they share.

    Attributes:
        wave_responses: responses of a wave, at most; `batch.microbatch_tokens` bounds its padded response tokens too.
    """

    wave_responses: PositiveInt
