"""Config group `precision`: the number format of parameters and activations."""

from typing import TYPE_CHECKING

from scalerlt.schema.registry import config_group

if TYPE_CHECKING:
    from scalerlt.schema.cell import Cell
    from scalerlt.schema.machine import Machine


@config_group("precision")
class Precision:
    """A number format that torch computes in natively (fp64, fp32, bf16, fp16).

    Norm statistics, RoPE tables, softmax, exit gate and log-softmax run in fp32, in fp64 for fp64. The optimizer keeps
    fp32 master weights for the formats below fp32.
    """

    name: str

    def supports(self, cell: "Cell", machine: "Machine") -> str | None:
        """Why this option cannot run in the cell on the machine, or None."""
        return None
