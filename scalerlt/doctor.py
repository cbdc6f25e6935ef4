"""`scalerlt doctor`: what this machine can do, each with a reason when not."""

import importlib.metadata
import importlib.util
import json
import os
import platform
import shutil
import subprocess
import sys

import psutil
from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from scalerlt import __version__
from scalerlt.schema.machine import this_machine

PACKAGES = {
    "torch": "models, rollouts, learning: pip install 'scalerlt[torch]'",
    "safetensors": "reading checkpoints: pip install 'scalerlt[torch]'",
    "tokenizers": "tokenizers of real checkpoints: pip install 'scalerlt[torch]'",
    "wandb": "mirroring to Weights & Biases: pip install 'scalerlt[wandb]'",
    "tensorboard": "mirroring as TensorBoard files: pip install 'scalerlt[tensorboard]'",
    "vllm": "the vLLM engine: pip install 'scalerlt[vllm]'",
    "transformers": "Hugging Face models: pip install 'scalerlt[hf]'",
    "pynvml": "GPU names and drivers: pip install 'scalerlt[gpu]'",
}
SLURM_SECONDS = 5.0
"""Longest wait for the controller of a cluster."""
_TORCH_PROBE = """
import json, torch
print(json.dumps({"version": torch.__version__, "threads": torch.get_num_threads(), "cuda": torch.cuda.is_available(),
 "devices": [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())],
 "cuda_build": torch.version.cuda, "capability": torch.backends.cpu.get_cpu_capability()}))
"""


def examine() -> int:
    """Print the findings; the exit code is 1 when something installed is broken."""
    table = Table("what", "found", "remark", title=f"scalerlt {__version__}", title_justify="left", box=box.SIMPLE)
    machine = this_machine()
    memory = psutil.virtual_memory()
    table.add_row("python", platform.python_version(), sys.executable)
    table.add_row("CPUs", f"{machine.cpus} of {os.cpu_count()}", "that this process may use")
    table.add_row("memory", f"{memory.available / 2**30:.1f} GiB free", f"of {memory.total / 2**30:.1f} GiB")
    threads = [f"{name}={os.environ[name]}" for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS") if name in os.environ]
    table.add_row("threads", "device.threads (default 1)", " ".join(threads))
    table.add_row("GPUs", str(machine.gpus), machine.gpu_reason and f"device=cuda is unsupported: {machine.gpu_reason}")
    sound = _add_torch(table)
    for name, use in PACKAGES.items():
        if name != "torch":
            version = _version(name)
            table.add_row(name, version or "no", "" if version else escape(f"needed for {use}"))
    table.add_row("Slurm", *map(escape, slurm()))
    Console(soft_wrap=True).print(table)
    return 0 if sound else 1


def _add_torch(table: Table) -> bool:
    """Torch is asked in a process of its own: importing it is slow, and a broken build may crash."""
    if importlib.util.find_spec("torch") is None:
        table.add_row("torch", "no", escape(f"needed for {PACKAGES['torch']}; plan, status and report work without"))
        return True
    probe = subprocess.run([sys.executable, "-c", _TORCH_PROBE], capture_output=True, text=True, check=False)
    if probe.returncode:
        last = (probe.stderr.strip().splitlines() or ["no message"])[-1]
        table.add_row("torch", "broken", escape(last))
        return False
    found = json.loads(probe.stdout.splitlines()[-1])
    build = f"CUDA {found['cuda_build']}" if found["cuda_build"] else "CPU build"
    table.add_row("torch", found["version"], f"{build}, {found['capability']}")
    for index, name in enumerate(found["devices"]):
        table.add_row(f"cuda:{index}", name, "")
    if this_machine().gpus and not found["cuda"]:
        table.add_row("cuda", "no", "there is a GPU, but this torch cannot use it: install a CUDA build")
    return True


def slurm() -> tuple[str, str]:
    """Where sbatch is, or "no"; and whether the cluster's controller answers, with what it has."""
    sbatch = shutil.which("sbatch")
    if sbatch is None:
        return "no", "sbatch is not on the path"
    command = ["sinfo", "--noheader", "--Node", "--format=%N|%R|%T"]
    try:
        answer = subprocess.run(command, capture_output=True, text=True, timeout=SLURM_SECONDS, check=False)
    except subprocess.TimeoutExpired:
        return sbatch, f"its controller does not answer: sinfo said nothing within {SLURM_SECONDS:g} s"
    except OSError as error:
        return sbatch, f"sinfo cannot be asked for the cluster ({error.strerror})"
    if answer.returncode:
        lines = (answer.stderr or answer.stdout).strip().splitlines() or [f"exit code {answer.returncode}"]
        return sbatch, f"its controller does not answer: {lines[-1]}"
    listed = [line.strip().split("|") for line in answer.stdout.splitlines() if line.count("|") == 2]
    nodes = {node: state for node, _, state in listed}
    down = sum(state.startswith(("down", "drain", "fail", "unk")) or state.endswith("*") for state in nodes.values())
    counts = [(len(nodes), "node"), (len({partition for _, partition, _ in listed}), "partition")]
    has = " in ".join(f"{count} {what}{'s' if count != 1 else ''}" for count, what in counts)
    return sbatch, f"its controller answers: {has}" + (f"; {down} of the nodes cannot be used now" if down else "")


def _version(package: str) -> str | None:
    if importlib.util.find_spec(package) is None:
        return None
    names = importlib.metadata.packages_distributions().get(package, [package])
    return importlib.metadata.version(names[0])
