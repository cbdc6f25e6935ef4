"""Config group `parallel`: in how many processes a cell runs, and on how many nodes."""

from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import Field, model_validator

from scalerlt.schema.fields import PositiveInt
from scalerlt.schema.registry import config_group

if TYPE_CHECKING:
    from typing import Self

    from scalerlt.schema.cell import Cell
    from scalerlt.schema.machine import Machine


@config_group("parallel")
class Parallel:
    """The ranks of one torch.distributed group, as many on each node.

    Attributes:
        nodes: hosts; in a frozen cell `config["parallel"]["nodes"]`, which older ones lack.
        ranks_per_node: processes on each; with GPUs each has one of its own.
        backend: of torch.distributed; None: nccl between GPUs, gloo between CPUs.
    """

    name: str
    nodes: Annotated[PositiveInt, Field(le=4096)] = 1
    ranks_per_node: Annotated[PositiveInt, Field(le=4096)] = 1
    backend: Literal["gloo", "nccl"] | None = None

    @model_validator(mode="after")
    def _check_single(self) -> "Self":
        if self.name == "single" and (self.ranks > 1 or self.backend is not None):
            raise ValueError("single is one process alone; use parallel=ranks for nodes, ranks_per_node and backend")
        return self

    @property
    def ranks(self) -> int:
        """Processes on all nodes together."""
        return self.nodes * self.ranks_per_node

    def backend_on(self, device: Literal["cpu", "cuda"]) -> Literal["gloo", "nccl"]:
        """The backend between devices of a kind."""
        return self.backend or ("nccl" if device == "cuda" else "gloo")

    def supports(self, cell: "Cell", machine: "Machine") -> str | None:
        """Why the cell cannot have these ranks on the machine, or None."""
        if self.ranks > 1 and not cell.experiment.distributed:
            return f"experiment={cell.experiment.name} runs in one process; use parallel=single"
        if self.nodes > machine.nodes:
            return f"parallel.nodes={self.nodes} needs as many nodes, and here is {machine.nodes}; {SEVERAL_NODES}"
        if self.backend == "nccl" and cell.device.type != "cuda":
            return f"parallel.backend=nccl is between GPUs, and this is device={cell.device.name}; use gloo or null"
        if cell.device.type == "cuda" and self.ranks_per_node > max(machine.gpus, 1):
            have = f"{machine.called} has {machine.gpus}"
            return f"parallel.ranks_per_node={self.ranks_per_node} needs a GPU for each, and {have}"
        return None


SEVERAL_NODES = "only Slurm gives a cell several (hydra/launcher=slurm)"
