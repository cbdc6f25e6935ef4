"""`checkpoint=segments`: regions of loops, layers and queries are computed again in their backward passes."""

from typing import TYPE_CHECKING, Annotated

from pydantic import Field, model_validator

from scalerlt.schema.checkpoint import Checkpoint
from scalerlt.schema.registry import config_group

if TYPE_CHECKING:
    from typing import Self

Interval = Annotated[int, Field(ge=0)]


@config_group("checkpoint", "segments")
class Segments(Checkpoint):
    """Segments of loops, within them of layers, within them chunks of queries; of each only the inputs are kept.

    Attributes:
        loop_interval: consecutive loops of a segment; 0: loops make no segments.
        layer_interval: consecutive layers of a segment, within a loop; 0: layers make none.
        query_chunk: positions whose queries go through the rest of a layer together, with all K and V up to the last
            of them; 0: all positions.
    """

    loop_interval: Interval
    layer_interval: Interval
    query_chunk: Interval

    @model_validator(mode="after")
    def _check_segments(self) -> "Self":
        if not (self.loop_interval or self.layer_interval or self.query_chunk):
            raise ValueError(
                "loop_interval, layer_interval and query_chunk are all 0, so that nothing is computed again; "
                "use checkpoint=none"
            )
        return self
