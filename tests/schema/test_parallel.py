"""Config group `parallel`: what it refuses, and that older cells do not notice it."""

import copy
from typing import Any

import pytest
from schema.plain_config import plain_config

from scalerlt.errors import RequestErrors
from scalerlt.records.cell import FileInput
from scalerlt.schema import load_cell
from scalerlt.schema.identity import cell_id, identity, scientific_keys
from scalerlt.schema.machine import Machine

INPUTS = {"task.rollouts": FileInput(path="a", sha256="0" * 64)}
CPU = Machine(gpus=0, gpu_reason="none here", cpus=4)
GPUS = Machine(gpus=2, gpu_reason="", cpus=4)
CLUSTER = Machine(gpus=8, gpu_reason="", cpus=4, nodes=16)


def refusal(
    machine: Machine, nodes: int = 1, ranks_per_node: int = 1, backend: str | None = None, **chosen: str
) -> Any:
    ranks = {"parallel.nodes": nodes, "parallel.ranks_per_node": ranks_per_node, "parallel.backend": backend}
    options = {"experiment": "all_reduce", "parallel": "ranks", "task": "random_tokens", **chosen}
    return load_cell(plain_config({**ranks, "model.weights": None}, **options)).unsupported_on(machine)


def test_what_runs() -> None:
    assert refusal(CPU, 1, 2) is None
    assert refusal(CLUSTER, 4, 8, device="cuda") is None
    assert refusal(GPUS, 1, 2, "gloo", device="cuda") is None
    assert refusal(CPU, 1, 1, experiment="actor_update", task="arithmetic") is None


@pytest.mark.parametrize(
    ("machine", "ranks", "chosen", "said"),
    [
        (
            CPU,
            (1, 2),
            {"experiment": "actor_update"},
            "experiment=actor_update runs in one process; use parallel=si",
        ),
        (CPU, (2, 1), {}, "parallel.nodes=2 needs as many nodes, and here is 1; only Slurm gives a cell several"),
        (
            CPU,
            (1, 1),
            {},
            "is between ranks; use parallel=ranks parallel.ranks_per_node=2 or more",
        ),
        (CPU, (1, 2, "nccl"), {}, "parallel.backend=nccl is between GPUs, and this is device=cpu; use gloo or null"),
        (GPUS, (1, 3), {"device": "cuda"}, "parallel.ranks_per_node=3 needs a GPU for each, and this machine has 2"),
        (CPU, (1, 2), {"device": "cuda"}, "parallel.ranks_per_node=2 needs a GPU for each, and this machine has 0"),
        (CPU, (1, 2), {"precision": "mxfp8"}, "sums in fp64, fp32, bf16, fp16, and not in precision=mxfp8"),
    ],
)
def test_what_does_not(machine: Machine, ranks: tuple[Any, ...], chosen: dict[str, str], said: str) -> None:
    assert said in refusal(machine, *ranks, **chosen)


@pytest.mark.parametrize("key", ["nodes", "ranks_per_node", "backend"])
def test_single_is_one_process(key: str) -> None:
    with pytest.raises(RequestErrors, match="single is one process alone; use parallel=ranks"):
        load_cell(plain_config({f"parallel.{key}": "gloo" if key == "backend" else 2}))


def test_cells_from_before_have_one_rank_and_the_same_id() -> None:
    now = plain_config({"model.weights": None}, experiment="readout")
    before = {group: values for group, values in now.items() if group != "parallel"}
    ids = []
    for values in (now, before):
        cell = load_cell(values)
        assert (cell.parallel.name, cell.parallel.ranks) == ("single", 1)
        content = scientific_keys(cell, INPUTS)
        assert "parallel" not in content
        ids.append(cell_id(cell, identity(content)))
    assert ids[0] == ids[1]


def test_ranks_are_part_of_what_a_cell_is() -> None:
    digests = set()
    for nodes, ranks_per_node in ((1, 2), (2, 1), (2, 2)):
        values = plain_config(
            {"parallel.nodes": nodes, "parallel.ranks_per_node": ranks_per_node, "model.weights": None},
            experiment="all_reduce",
            parallel="ranks",
            task="random_tokens",
        )
        digests.add(identity(scientific_keys(load_cell(values), INPUTS)))
        spelled = copy.deepcopy(values)
        spelled["experiment"]["bytes"] = 2**20
        assert identity(scientific_keys(load_cell(spelled), INPUTS)) in digests, "1MiB is 1048576 bytes"
    assert len(digests) == 3


@pytest.mark.parametrize("size", [0, "1MB", True, 1.5, None])
def test_what_is_no_size(size: object) -> None:
    values = plain_config({"experiment.bytes": size}, experiment="all_reduce")
    with pytest.raises(RequestErrors, match=r"experiment\.bytes="):
        load_cell(values)
