"""`experiment=all_reduce`: what communication between ranks costs."""

from typing import TYPE_CHECKING, ClassVar

from scalerlt.schema.experiment import RepeatedExperiment
from scalerlt.schema.fields import Size
from scalerlt.schema.registry import config_group

if TYPE_CHECKING:
    from scalerlt.schema.cell import Cell
    from scalerlt.schema.machine import Machine

PRECISIONS = ("fp64", "fp32", "bf16", "fp16")


@config_group("experiment", "all_reduce")
class AllReduce(RepeatedExperiment):
    """Sums one tensor over all ranks, again and again.

    Attributes:
        bytes: of the tensor; rounded down to whole numbers in the cell's precision.
    """

    distributed: ClassVar[bool] = True
    bytes: Size

    def supports(self, cell: "Cell", machine: "Machine") -> str | None:
        """Why there is nothing to sum, or None."""
        if cell.parallel.ranks == 1:
            return "experiment=all_reduce is between ranks; use parallel=ranks parallel.ranks_per_node=2 or more"
        if cell.precision.name not in PRECISIONS:
            return f"experiment=all_reduce sums in {', '.join(PRECISIONS)}, and not in precision={cell.precision.name}"
        return None
