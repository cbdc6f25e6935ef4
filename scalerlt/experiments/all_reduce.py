"""`experiment=all_reduce`: how long it takes to sum a tensor over all ranks, and whether the sum is right.

Bandwidths are those of nccl-tests (doc/PERFORMANCE.md): algorithm bandwidth is bytes over seconds, and bus bandwidth
that times 2 (n - 1) / n, what each of n ranks must send and receive at least.
"""

import time

import torch
import torch.distributed as dist
from torch import Tensor

from scalerlt.experiments.building import device_of
from scalerlt.measure.clock import synchronizer, timed
from scalerlt.numerics.precision import number_format
from scalerlt.records.recorder import Recorder
from scalerlt.schema import Cell
from scalerlt.schema.experiment.all_reduce import AllReduce

PERIOD = 5
"""Rank r gives (i + r) mod 5 - 2 for element i: sums of them are small integers, exact in any precision."""


def run(cell: Cell, recorder: Recorder) -> None:
    """Measure the all-reduce of the cell; every rank records its own figures."""
    chosen = cell.experiment
    assert isinstance(chosen, AllReduce)
    device, dtype = device_of(cell), number_format(cell.precision.name).dtype
    backend = cell.parallel.backend_on(cell.device.type)
    with recorder.phase("rendezvous"):
        began = time.perf_counter()
        dist.init_process_group(backend)
        recorder.metric("rendezvous_seconds", time.perf_counter() - began, "s", scope="rendezvous")
    ranks = dist.get_world_size()
    own = numbers(max(1, chosen.bytes // dtype.itemsize), dist.get_rank(), dtype, device)
    reduced = torch.empty_like(own)

    def seconds(data: Tensor, into: Tensor, repeats: int, progress: str = "") -> list[float]:
        """Of each repeat on this rank, all ranks starting together."""
        taken = []
        for repeat in range(repeats):
            into.copy_(data)
            dist.barrier()
            taken += timed(lambda: dist.all_reduce(into), synchronize=synchronizer(device), repeats=1)
            if progress:
                recorder.progress(repeat + 1, repeats, progress)
        return taken

    with recorder.measuring("warm_up"):
        seconds(own, reduced, chosen.warmup)
    with recorder.measuring("time"):
        rank_seconds = seconds(own, reduced, chosen.repeats, "all-reduces")
        slowest = slowest_rank(rank_seconds, device)
    with recorder.measuring("latency"):
        latency = slowest_rank(seconds(own[:1], torch.empty_like(own[:1]), chosen.repeats), device)
    wrong = int((reduced != total(own.numel(), ranks, dtype, device)).sum())

    recorder.metric("ranks", ranks, method=f"torch.distributed, {backend}")
    recorder.metric("sum_errors", wrong, method="elements of the last sum that are not the exact one")
    recorder.repeated("all_reduce_seconds", slowest, "s", scope="all_reduce", method="of the slowest rank")
    recorder.repeated("rank_seconds", rank_seconds, "s", scope="all_reduce", method="of this rank")
    recorder.repeated("latency_seconds", latency, "s", scope="all_reduce", method="of one element, slowest rank")
    algorithm = [own.nbytes / taken for taken in slowest]
    bus = [2 * (ranks - 1) / ranks * bandwidth for bandwidth in algorithm]
    recorder.repeated("algorithm_bandwidth", algorithm, "B/s", scope="all_reduce", method=f"of {own.nbytes} bytes")
    recorder.repeated("bus_bandwidth", bus, "B/s", scope="all_reduce", method="2 (n - 1) / n algorithm bandwidths")
    dist.barrier()
    dist.destroy_process_group()
    if wrong:
        raise RuntimeError(f"{wrong} of {own.numel()} elements of the sum over {ranks} ranks are wrong")


def numbers(count: int, rank: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """What a rank gives, [count]."""
    return ((torch.arange(count, device=device) + rank) % PERIOD - 2).to(dtype)


def total(count: int, ranks: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """The sum over all ranks, [count], from integers."""
    one_period = [sum((place + rank) % PERIOD - 2 for rank in range(ranks)) for place in range(PERIOD)]
    return torch.tensor(one_period, dtype=dtype, device=device)[torch.arange(count, device=device) % PERIOD]


def slowest_rank(seconds: list[float], device: torch.device) -> list[float]:
    """Of each repeat the seconds of the rank that took longest."""
    longest = torch.tensor(seconds, dtype=torch.float64, device=device)
    dist.all_reduce(longest, op=dist.ReduceOp.MAX)
    return [float(value) for value in longest]
