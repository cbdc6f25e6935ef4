"""The machine that an attempt runs on. Read from the system's files and from nvidia-smi; imports no torch."""

import os
import platform
import shutil
import socket
import subprocess
import sys
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Any

import psutil

from scalerlt.measure.cgroup import limits

VARIABLES = (
    "OMP_NUM_THREADS",
    "OMP_PROC_BIND",
    "OMP_PLACES",
    "KMP_AFFINITY",
    "MKL_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "MALLOC_ARENA_MAX",
    "LD_PRELOAD",
    "CUDA_VISIBLE_DEVICES",
    "CUBLAS_WORKSPACE_CONFIG",
    "NVIDIA_TF32_OVERRIDE",
    "PYTORCH_ALLOC_CONF",
    "PYTORCH_CUDA_ALLOC_CONF",
    "PYTORCH_NO_CUDA_MEMORY_CACHING",
    "TORCH_LOGS",
    "TORCHDYNAMO_DISABLE",
)
"""Variables that can change a figure without standing in the configuration."""


def environment(placed: Mapping[str, str] = MappingProxyType({})) -> dict[str, Any]:
    """Host, system, CPU, affinity, memory and its limits, GPUs and their driver, Slurm's ids, variables that matter.

    Args:
        placed: variables that the attempt's processes have beside this one's.
    """
    variables = {**os.environ, **placed}
    return {
        **_lasting(),
        "affinity": sorted(os.sched_getaffinity(0)),
        "memory_available_bytes": psutil.virtual_memory().available,
        "load_average_1min": os.getloadavg()[0],
        "slurm": {name: value for name, value in sorted(os.environ.items()) if _is_slurm_id(name)},
        "variables": {name: variables[name] for name in VARIABLES if name in variables},
    }


def too_few_cpus(cpus: int, threads: int, ranks: int = 1) -> str | None:
    """A note for the record when fewer CPUs may be used than the cell's ranks on a host have threads, else None."""
    if cpus >= threads * ranks:
        return None
    only = f"only {cpus} CPU{'s' if cpus > 1 else ''} may be used (affinity)"
    return f"{only}, fewer than device.threads={threads}" + (f" of {ranks} ranks" if ranks > 1 else "")


@cache
def _lasting() -> dict[str, Any]:
    """What does not change while a process lives."""
    return {
        "host": socket.gethostname(),
        "os": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        "python_executable": sys.executable,
        "machine": platform.machine(),
        "cpu": _cpu_model(),
        "cpus": os.cpu_count(),
        "cores": psutil.cpu_count(logical=False),
        "memory_bytes": psutil.virtual_memory().total,
        "cgroup": limits(),
        "gpus": gpus(),
    }


def _cpu_model() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith(("model name", "Model\t")):
            return line.partition(":")[2].strip()
    return platform.processor() or "unknown"


_GPU_FIELDS = ("index", "name", "uuid", "driver_version", "memory.total")


def gpus() -> list[dict[str, str]]:
    """The host's NVIDIA GPUs as nvidia-smi lists them (memory in MiB); empty where there is none."""
    if shutil.which("nvidia-smi") is None:
        return []
    command = ["nvidia-smi", f"--query-gpu={','.join(_GPU_FIELDS)}", "--format=csv,noheader,nounits"]
    try:
        listed = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return []
    if listed.returncode:
        return []
    rows = [[value.strip() for value in line.split(",")] for line in listed.stdout.splitlines() if line.strip()]
    return [dict(zip(_GPU_FIELDS, row, strict=True)) for row in rows if len(row) == len(_GPU_FIELDS)]


def _is_slurm_id(name: str) -> bool:
    return name.startswith("SLURM_") and name.endswith(
        ("_ID", "_NODELIST", "_NAME", "_NTASKS", "_CPUS_ON_NODE", "_COUNT", "_CPUS_PER_TASK", "_GPUS_ON_NODE", "_GPUS")
    )
