"""`precision=mxfp8`: planned for, not built."""

from typing import TYPE_CHECKING

from scalerlt.schema.precision import Precision
from scalerlt.schema.registry import config_group

if TYPE_CHECKING:
    from scalerlt.schema.cell import Cell
    from scalerlt.schema.machine import Machine


@config_group("precision", "mxfp8")
class MxFp8(Precision):
    """OCP microscaling 8-bit floats in blocks of 32."""

    def supports(self, cell: "Cell", machine: "Machine") -> str | None:
        """Always a reason: there is no MXFP8 arithmetic here yet."""
        return "precision=mxfp8 has no implementation yet, neither native nor emulated; use fp32, bf16, fp16 or fp64"
