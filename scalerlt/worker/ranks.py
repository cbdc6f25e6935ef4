"""The ranks of an attempt: one job each, with what torch.distributed reads from the environment."""

import socket
from collections.abc import Mapping
from pathlib import Path

from scalerlt.schema import Cell
from scalerlt.worker.starting import VISIBLE, Job


def jobs_of(cell: Cell, cell_file: Path, attempt: Path, first: str | None, here: Mapping[str, str]) -> list[Job]:
    """One job per rank, those of a node one after another.

    Args:
        cell_file, attempt: absolute paths.
        first: what other nodes call this one, the first; None: there are no others.
        here: variables that the ranks have; which GPUs are visible is of this node alone.
    """
    ranks, per_node = cell.parallel.ranks, cell.parallel.ranks_per_node
    several = {"WORLD_SIZE": str(ranks), "LOCAL_WORLD_SIZE": str(per_node), **_meeting(first)} if ranks > 1 else {}
    jobs = []
    for rank in range(ranks):
        node, local = divmod(rank, per_node)
        given = {name: value for name, value in here.items() if node == 0 or name != VISIBLE}
        own = {"RANK": str(rank), "LOCAL_RANK": str(local)} if ranks > 1 else {}
        device = local if per_node > 1 and cell.device.type == "cuda" else None
        environment = {**several, **own, **given, **cell.device.env}
        jobs.append(Job(str(cell_file), str(attempt), rank, environment, node, device))
    return jobs


def _meeting(first: str | None) -> dict[str, str]:
    """Where the ranks meet: on the first host, which is this one, at a port that is free now."""
    if first is None:
        return {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(_free_port("127.0.0.1"))}
    try:
        socket.getaddrinfo(first, None)
        address = first
    except OSError:  # a name that Slurm alone knows
        address = socket.gethostname()
    return {"MASTER_ADDR": address, "MASTER_PORT": str(_free_port(""))}


def _free_port(address: str) -> int:
    with socket.socket() as probe:
        probe.bind((address, 0))
        port: int = probe.getsockname()[1]
        return port
