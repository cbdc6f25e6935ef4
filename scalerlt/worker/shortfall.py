"""Notes for the record on the CPUs and GPUs that a cell's nodes were to have and had not."""

from collections.abc import Iterator, Mapping
from typing import Any

from scalerlt.measure.environment import too_few_cpus
from scalerlt.records.queue import Asked
from scalerlt.schema import Cell
from scalerlt.worker.slots import visible_gpus


def of_job(asked: Asked, cpus: int, gpus: int | None) -> list[str]:
    """What a job has fewer of on one node than it was asked for.

    Args:
        gpus: None when no cell needs one.
    """
    notes = _fewer(asked.cpus, cpus, "CPU")
    return notes if gpus is None else notes + _fewer(asked.gpus, gpus, "GPU")


def of_hosts(hosts: Mapping[str, Mapping[str, Any]], cell: Cell, asked: Asked) -> Iterator[str]:
    """What other hosts have fewer of than a cell's ranks there need, or than their job was asked for.

    Args:
        hosts: what each has told of itself (measure.environment), by its name.
    """
    for host, told in hosts.items():
        cpus = len(told["affinity"])
        gpus = _gpus(told) if cell.device.type == "cuda" else None
        of_threads = too_few_cpus(cpus, cell.device.threads, cell.parallel.ranks_per_node)
        for note in (of_threads, *of_job(asked, cpus, gpus)):
            if note is not None:
                yield f"{host}: {note}"


def _gpus(told: Mapping[str, Any]) -> int:
    visible = visible_gpus(told["variables"])
    return len(told["gpus"] if visible is None else visible)


def _fewer(wanted: int | None, found: int, what: str) -> list[str]:
    if wanted is None or found >= wanted:
        return []
    plural = "s" if found != 1 else ""
    return [f"the job may use {found} {what}{plural}, fewer than the {wanted} that it was asked for"]
