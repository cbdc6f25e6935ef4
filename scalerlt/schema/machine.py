"""What a plan needs to know of the machine it is made for; asked without importing torch."""

import os
import shutil
import subprocess
from dataclasses import dataclass
from functools import cache


@dataclass(frozen=True)
class Machine:
    """The devices that cells may be planned for.

    Attributes:
        gpus: number of visible NVIDIA GPUs.
        gpu_reason: why there are none.
        cpus: CPUs that this process may use.
        nodes: over how many hosts like it a cell may spread.
        called: what it is in a sentence.
    """

    gpus: int
    gpu_reason: str
    cpus: int
    nodes: int = 1
    called: str = "this machine"


@cache
def this_machine() -> Machine:
    """The machine that this process runs on."""
    gpus, reason = _count_gpus()
    return Machine(gpus=gpus, gpu_reason=reason, cpus=len(os.sched_getaffinity(0)))


def _count_gpus() -> tuple[int, str]:
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None and visible.strip() in ("", "-1"):
        return 0, f"CUDA_VISIBLE_DEVICES={visible!r} hides them all"
    if shutil.which("nvidia-smi") is None:
        return 0, "nvidia-smi is not installed"
    listed = subprocess.run(["nvidia-smi", "--list-gpus"], capture_output=True, text=True, timeout=60, check=False)
    if listed.returncode:
        lines = (listed.stderr or listed.stdout).strip().splitlines() or ["no message"]
        return 0, f"nvidia-smi says: {lines[0]}"
    count = sum(line.startswith("GPU ") for line in listed.stdout.splitlines())
    usable = min(count, len(visible.split(","))) if visible else count
    return usable, "" if usable else "nvidia-smi lists none"
