"""`checkpoint=joint`: prompt and waves are computed again in their backward passes."""

from scalerlt.schema.checkpoint.prefix import Prefix
from scalerlt.schema.registry import config_group


@config_group("checkpoint", "joint")
class Joint(Prefix):
    """As `checkpoint=prefix`, but prompt and waves are computed again in their backward passes."""
