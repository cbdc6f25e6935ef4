"""Copy bandwidth of a device: what its memory sustains, against which the traffic of a computation is read."""

from dataclasses import dataclass

import torch

from scalerlt.measure.clock import synchronizer, timed

COPIED_BYTES = {"cpu": 2**28, "cuda": 2**30}
"""Size of the copied tensor by kind of device; both tensors together are more than its last cache holds."""
REPEATS = 5


@dataclass(frozen=True, kw_only=True)
class CopyBandwidth:
    """The copy bandwidth of a device.

    Attributes:
        bytes_per_second: bytes read and bytes written, per second of the fastest copy; None: there was no room.
        method: how it was measured.
        reason: why there is no figure, or None.
    """

    bytes_per_second: float | None
    method: str
    reason: str | None = None


def copy_bandwidth(device: torch.device, *, copied_bytes: int | None = None) -> CopyBandwidth:
    """Copy one large tensor into another on `device`, with the threads that torch has, several times.

    As in McCalpin's STREAM a copy of n bytes moves 2n, whatever the caches add, and the best of the repeats counts. A
    copy before them is not timed: it brings the pages in.

    Args:
        device: a CPU or a CUDA device.
        copied_bytes: size of the tensor; None: that of `COPIED_BYTES`.
    """
    size = COPIED_BYTES[device.type] if copied_bytes is None else copied_bytes
    threads = f", {torch.get_num_threads()} threads" if device.type == "cpu" else ""
    method = f"fastest of {REPEATS} copies of a tensor of {size} bytes, bytes read and written{threads}"
    try:
        # Ones, since untouched pages would all be the one page of zeros.
        source = torch.ones(size, dtype=torch.uint8, device=device)
        target = torch.zeros_like(source)
    except (MemoryError, RuntimeError) as error:
        return CopyBandwidth(bytes_per_second=None, method=method, reason=f"no room for the copy: {_first_line(error)}")
    target.copy_(source)
    seconds = timed(lambda: target.copy_(source), synchronize=synchronizer(device), repeats=REPEATS)
    return CopyBandwidth(bytes_per_second=2 * size / min(seconds), method=method)


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]
