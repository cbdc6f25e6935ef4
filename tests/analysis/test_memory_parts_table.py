"""The tables of what a learner step's memory is made of, from records that hold it."""

import csv
import io
from pathlib import Path

import pytest
from synthetic_runs import SyntheticSweep, cell_axes, planned

from scalerlt.analysis.judging import judged
from scalerlt.analysis.reading import read_runs
from scalerlt.analysis.table_spec import load_tables
from scalerlt.analysis.tables import Table, build_all, to_csv, to_markdown
from scalerlt.records.record import Metric

PARTS = {"weights": 2**20, "optimizer": 2 * 2**20, "gradients": 2**20, "activations": 3 * 2**20}
PARTS |= {"logits": 2**19, "kv": 2**19, "other": 2**18}
PHASES = ("forward", "backward", "optimizer")
HEADERS = ["peak", "weights", "optimizer state", "gradients", "activations", "logits", "K/V", "other", "unexplained"]


def parts(metrics: dict[str, Metric]) -> None:
    """Parts that lack 1 % of the peak; those of each phase differ in their activations."""
    for number, phase in enumerate(("", *PHASES)):
        found = PARTS | {"activations": PARTS["activations"] - number * 2**18}
        peak, suffix = round(sum(found.values()) / 0.99), f"/{phase}" if phase else ""
        metrics[f"memory_peak_bytes{suffix}"] = Metric(value=peak, unit="B", method="allocator events")
        metrics[f"memory_unexplained_relative{suffix}"] = Metric(value=1 - sum(found.values()) / peak)
        name = f"{phase}_memory_bytes" if phase else "memory_bytes"
        for part, size in found.items():
            metrics[f"{name}/{part}"] = Metric(value=size, unit="B", method="storages")


@pytest.fixture
def tables(tmp_path: Path) -> dict[str, Table]:
    sweep = SyntheticSweep(tmp_path / "trial")
    whole, shared = (cell_axes("actor_update", "fp32", "small", checkpoint) for checkpoint in ("none", "layer"))
    gpu = {**whole, "device": "cuda", "device.type": "cuda"}
    sweep.plan([planned(axes) for axes in (whole, shared, gpu)], swept=["checkpoint", "device"])
    sweep.record(whole, edit=parts)
    sweep.record(shared)  # as it was recorded before there were parts
    sweep.record(gpu, edit=parts)
    results = read_runs(sweep.path).sweeps[0]
    built = build_all(load_tables(), judged(results.cells, results.path), ["checkpoint", "device"])
    return {table.name: table for table in built}


def rows(table: Table) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(to_csv(table))))


@pytest.mark.parametrize("name", ["parts", *PHASES])
@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_the_columns_add_up_to_the_peak_but_for_what_is_unexplained(
    tables: dict[str, Table], name: str, device: str
) -> None:
    table = tables[f"actor_update_memory_{name}_{device}"]
    assert [column.header for column in table.columns] == [*HEADERS, "gate"]
    measured = rows(table)[0]
    suffix, prefix = ("", "") if name == "parts" else (f"/{name}", f"{name}_")
    peak = float(measured[f"memory_peak_bytes{suffix} (B)"])
    total = sum(float(measured[f"{prefix}memory_bytes/{part} (B)"]) for part in PARTS)
    unexplained = float(measured[f"memory_unexplained_relative{suffix}"])
    assert total == pytest.approx((1 - unexplained) * peak)
    assert 0.009 < unexplained < 0.011


def test_the_phases_have_tables_of_their_own(tables: dict[str, Table]) -> None:
    activations = [
        rows(tables[f"actor_update_memory_{phase}_cpu"])[0][f"{phase}_memory_bytes/activations (B)"] for phase in PHASES
    ]
    assert activations == [str(PARTS["activations"] - number * 2**18) for number in (1, 2, 3)]


def test_people_read_one_unit_and_per_cent(tables: dict[str, Table]) -> None:
    lines = to_markdown(tables["actor_update_memory_parts_cpu"]).splitlines()
    header = next(line for line in lines if line.startswith("| precision"))
    assert "| peak (MiB) | weights (MiB) | optimizer state (MiB) | gradients (MiB) | activations (MiB) |" in header
    assert "| unexplained (%) |" in header
    row = next(line for line in lines if line.startswith("| fp32 | small | none"))
    assert "| 1.000 | 2.000 | 1.000 | 3.000 | 0.5000 | 0.5000 | 0.2500 | 1.000 |" in row
    assert "The peak is the allocator's" in lines[0]


def test_records_without_parts_say_so(tables: dict[str, Table]) -> None:
    older = rows(tables["actor_update_memory_parts_cpu"])[1]
    assert older["checkpoint"] == "layer"
    assert {older[f"memory_bytes/{part} state"] for part in PARTS} == {"not_measured"}
