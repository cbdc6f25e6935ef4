"""Peak resident set size of this process, from the Linux kernel's own counters."""

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_PROC = Path("/proc/self")


class ResidentPeak:
    """The peak of the resident set while it is entered, and in each phase.

    The kernel's high-water mark (VmHWM) is reset at entry and at every border of a phase by writing 5 to
    /proc/self/clear_refs; without the reset it would be the process's whole life, so then there is no figure. At entry
    freed memory that the C library's heap still holds is given back: it would raise the baseline and hide what the
    step needs.

    Attributes:
        reason: why there is no peak, or None.
        baseline_bytes: resident when it was entered; None where the kernel does not say.
        peak_bytes: largest since then; None where it cannot be reset.
        phases: the largest in each phase.
    """

    def __init__(self, proc: Path = _PROC) -> None:
        self._proc = proc
        self.reason: str | None = None
        self.baseline_bytes: int | None = None
        self.peak_bytes: int | None = None
        self.phases: dict[str, int] = {}

    @contextmanager
    def tracing(self) -> Iterator[None]:
        """Follow what runs inside."""
        _give_back_freed_memory()
        try:
            self.baseline_bytes = self._read("VmRSS")
            self._reset()
        except OSError as error:
            self.reason = f"the resident peak cannot be reset: {error}"
        yield
        self._close_interval()

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """What runs inside is (a part of) phase `name`."""
        self._close_interval()
        yield
        peak = self._close_interval()
        if peak is not None:
            self.phases[name] = max(self.phases.get(name, 0), peak)

    def _close_interval(self) -> int | None:
        if self.reason is not None:
            return None
        peak = self._read("VmHWM")
        self.peak_bytes = max(self.peak_bytes or 0, peak)
        self._reset()
        return peak

    def _reset(self) -> None:
        (self._proc / "clear_refs").write_text("5")

    def _read(self, field: str) -> int:
        for line in (self._proc / "status").read_text().splitlines():
            if line.startswith(field + ":"):
                return int(line.split()[1]) * 1024  # the kernel's kB are KiB
        raise OSError(f"{self._proc / 'status'} has no field {field}")


def _give_back_freed_memory() -> None:
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # glibc has it, other C libraries may not
    if trim is not None:
        trim(0)
