"""What memory a cell needs, phase by phase, against what its device has."""

from dataclasses import dataclass

from scalerlt.schema.device import Device

REFERENCE = "reference"
"""The phase in which a cell is compared with fp64, after everything is measured."""


@dataclass(frozen=True)
class MemoryPlan:
    """The bytes of a cell.

    Attributes:
        phases: for each phase of the cell what it holds, by name.
        assumed: whether lengths are assumed that are known only when the cell runs.
        available: what the device has for the cell; None where that is not known.
        limited_by: whose limit that is.
    """

    phases: dict[str, dict[str, int]]
    assumed: bool
    available: int | None
    limited_by: str | None

    @property
    def peak_phase(self) -> str:
        """The phase that needs most."""
        return max(self.phases, key=lambda phase: sum(self.phases[phase].values()))

    @property
    def needed(self) -> int:
        """Bytes of the phase that needs most."""
        return sum(self.phases[self.peak_phase].values())

    @property
    def step(self) -> int:
        """Bytes of what is measured, the comparison with fp64 behind it left aside."""
        return max(sum(held.values()) for phase, held in self.phases.items() if phase != REFERENCE)

    @property
    def fits(self) -> bool | None:
        """Whether that is there; None where it cannot be told."""
        return None if self.available is None else self.needed <= self.available


@dataclass(frozen=True)
class Capacity:
    """What a machine has.

    Attributes:
        host: memory of the host in bytes, or the limit of a control group where that is less.
        host_is: which of the two.
        gpu: memory of the smallest visible GPU; None without one.
    """

    host: int | None
    host_is: str
    gpu: int | None

    def of(self, device: Device) -> tuple[int | None, str | None]:
        """What a cell on the device may have, and whose limit that is."""
        if device.type == "cuda":
            return self.gpu, None if self.gpu is None else "the GPU's memory"
        limit = device.memory_limit_bytes
        if limit is not None and (self.host is None or limit <= self.host):
            return limit, "device.memory_limit"
        return self.host, None if self.host is None else self.host_is
