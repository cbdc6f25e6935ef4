"""The ranks of an attempt: one job each, with what torch.distributed reads from the environment."""

import socket
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from scalerlt.schema import Cell
from scalerlt.worker.starting import VISIBLE, Job


def jobs_of(
    cell: Cell, cell_file: Path, attempt: Path, meeting: Mapping[str, str], here: Mapping[str, str]
) -> list[Job]:
    """One job per rank, those of a node one after another.

    Args:
        cell_file, attempt: absolute paths.
        meeting: where they meet (see `meeting_place`).
        here: variables that the ranks have; which GPUs are visible is of this node alone.
    """
    ranks, per_node = cell.parallel.ranks, cell.parallel.ranks_per_node
    several = {"WORLD_SIZE": str(ranks), "LOCAL_WORLD_SIZE": str(per_node), **meeting} if ranks > 1 else {}
    jobs = []
    for rank in range(ranks):
        node, local = divmod(rank, per_node)
        given = {name: value for name, value in here.items() if node == 0 or name != VISIBLE}
        own = {"RANK": str(rank), "LOCAL_RANK": str(local)} if ranks > 1 else {}
        device = local if per_node > 1 and cell.device.type == "cuda" else None
        environment = {**several, **own, **given, **cell.device.env}
        jobs.append(Job(str(cell_file), str(attempt), rank, environment, node, device))
    return jobs


@contextmanager
def meeting_place(cell: Cell, first: str | None) -> Iterator[dict[str, str]]:
    """Where the ranks meet: on the first host, which is this one, at a port that is kept for them meanwhile.

    Args:
        first: what other nodes call this one, the first; None: there are no others.
    """
    if cell.parallel.ranks == 1:
        yield {}
        return
    with socket.socket() as kept:
        # whoever asks for any port is not given one that is bound; rank 0, which asks for this one, may have it too,
        # since both set SO_REUSEADDR, as torch does, and this one does not listen
        kept.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        kept.bind(("127.0.0.1" if first is None else "", 0))
        yield {"MASTER_ADDR": _address(first), "MASTER_PORT": str(kept.getsockname()[1])}


def _address(first: str | None) -> str:
    if first is None:
        return "127.0.0.1"
    try:
        socket.getaddrinfo(first, None)
        return first
    except OSError:  # a name that Slurm alone knows
        return socket.gethostname()
