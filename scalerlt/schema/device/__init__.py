"""Config group `device`: where a cell runs."""

from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import Field

from scalerlt.schema.fields import Bytes, IdentityDefault, NotIdentity, PositiveInt, parse_bytes
from scalerlt.schema.registry import config_group

if TYPE_CHECKING:
    from scalerlt.schema.cell import Cell
    from scalerlt.schema.machine import Machine


@config_group("device")
class Device:
    """A device, resolved: `device=auto` becomes cpu or cuda before a cell is frozen.

    Attributes:
        threads: CPU threads of torch. Part of the identity: the order of summation depends on it.
        memory_limit: what the cell may allocate on the host beyond the started interpreter; null is no limit. One that
            is set is part of the identity: running out of it is no answer for a cell without.
        env: environment variables that must be set before torch is imported.
    """

    name: Literal["cpu", "cuda"]
    type: Literal["cpu", "cuda"]
    threads: Annotated[PositiveInt, Field(le=4096)]
    memory_limit: Annotated[Bytes | None, IdentityDefault(None)]
    env: Annotated[dict[str, str], NotIdentity(), Field(default_factory=dict)]

    @property
    def memory_limit_bytes(self) -> int | None:
        """The memory limit in bytes."""
        return None if self.memory_limit is None else parse_bytes(self.memory_limit)

    def supports(self, cell: "Cell", machine: "Machine") -> str | None:
        """Why the machine has no such device, or None."""
        if self.type == "cuda" and machine.gpus == 0:
            return f"device=cuda needs a GPU and {machine.called} has none ({machine.gpu_reason}); use device=cpu"
        return None
