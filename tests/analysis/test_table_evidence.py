import csv
import io
from pathlib import Path
from typing import Any

import pytest
import yaml
from synthetic_runs import Axes, SyntheticSweep, cell_axes, cell_id, planned

from scalerlt.analysis.evidence import KINDS, evidence
from scalerlt.analysis.gates import load_gates
from scalerlt.analysis.judging import judged
from scalerlt.analysis.latex import to_latex
from scalerlt.analysis.reading import CellResult, read_runs
from scalerlt.analysis.table_spec import TableSpec, load_tables
from scalerlt.analysis.tables import Table, build_all, to_csv, to_markdown
from scalerlt.records.cell import FrozenCell
from scalerlt.records.record import Metric, RankReport, Verdict

REPOSITORY = Path(__file__).resolve().parents[2]


@pytest.fixture
def sweep(tmp_path: Path) -> SyntheticSweep:
    return SyntheticSweep(tmp_path / "trial")


def cells_of(sweep: SyntheticSweep) -> list[CellResult]:
    results = read_runs(sweep.path).sweeps[0]
    return judged(results.cells, results.path)


def shipped(sweep: SyntheticSweep, name: str) -> Table:
    return next(table for table in build_all(load_tables(), cells_of(sweep), []) if table.name == name)


def test_the_evidence_of_a_row_is_of_its_records(sweep: SyntheticSweep) -> None:
    cpu = cell_axes("rollout_throughput", "fp32", "small")
    gpu = {**cell_axes("rollout_throughput", "fp32", "small", cohort=1), "device": "cuda", "device.type": "cuda"}
    emulated = {**cell_axes("rollout_throughput", "fp32", "small", cohort=2), "precision.arithmetic": "emulated"}
    ranks = cell_axes("rollout_throughput", "fp32", "small", cohort=3)
    never = cell_axes("rollout_throughput", "fp32", "small", cohort=4)
    failed = cell_axes("rollout_throughput", "fp32", "small", cohort=5)
    sweep.plan([planned(axes) for axes in (cpu, gpu, emulated, ranks, never, failed)])
    for axes in (cpu, gpu, emulated):
        sweep.record(axes)
    sweep.record(ranks, ranks=[RankReport(rank=0), RankReport(rank=1)])
    sweep.record(failed, Verdict.FAILED)
    cells = read_runs(sweep.path).sweeps[0].cells
    assert [evidence([cell]) for cell in cells] == ["cpu", "one GPU", "emulated", "several ranks", "–", "cpu"]
    assert evidence(cells[:2]) == "cpu, one GPU"
    assert evidence(cells) == ", ".join(KINDS)
    assert evidence([]) == "–"


def test_the_evidence_stands_in_all_three_outputs(sweep: SyntheticSweep) -> None:
    axes = [cell_axes("rollout_throughput", precision, "small") for precision in ("fp32", "bf16")]
    sweep.plan([planned(one) for one in axes])
    sweep.record(axes[0])
    table = shipped(sweep, "rollout_throughput")
    assert to_markdown(table).splitlines()[2].endswith("| evidence |")
    assert [line.split("|")[-2].strip() for line in to_markdown(table).splitlines()[4:6]] == ["cpu", "–"]
    assert [row["evidence"] for row in csv.DictReader(io.StringIO(to_csv(table)))] == ["cpu", "–"]
    assert [line.split("&")[-1].strip() for line in to_latex(table).splitlines() if " fp32 &" in line] == [r"cpu \\"]


def test_every_entry_names_its_records(sweep: SyntheticSweep) -> None:
    axes = [
        cell_axes("actor_update", "fp32", batch, "layer", cohort=n) for batch in ("small", "medium") for n in range(3)
    ]
    sweep.plan([planned(one) for one in axes])
    for one, verdict in zip(
        axes, (Verdict.MEASURED, Verdict.OOM, None, Verdict.OOM, Verdict.KILLED, None), strict=True
    ):
        if verdict is not None:
            sweep.record(one, verdict)
    table = shipped(sweep, "actor_update")
    files = {name: f"{name}/attempt-001/record.json" for name in map(cell_id, axes)}
    first, second, _, fourth, fifth, _ = files.values()
    assert table.lines[0].entries[0].sources == (first,)  # those behind the number
    assert table.lines[1].entries[0].sources == (fourth, fifth)  # those that say why there is none
    assert table.sources == sorted([first, second, fourth, fifth])
    assert all((sweep.path / name).is_file() for name in table.sources)


def test_a_row_under_a_failed_gate_is_marked(sweep: SyntheticSweep) -> None:
    cells = [cell_axes("actor_update", precision, "small", "layer") for precision in ("fp32", "fp16", "bf16")]
    sweep.plan([planned(axes) for axes in cells])
    sweep.record(cells[0], edit=lambda metrics: metrics.update(grad_sched_relative_l2=Metric(value=0.5)))
    sweep.record(cells[1], edit=lambda metrics: metrics.update(gate=Metric(value="FAIL")))
    sweep.record(cells[2])
    table = shipped(sweep, "gradient_error_groups")
    text = to_markdown(table)
    assert "| fp32 | small | layer | 1 [1] |" in text
    assert "- [1] FAIL: gradient_relative_l2: grad_sched_relative_l2 0.5 is not within" in text
    assert "NOT_RESOLVED: no gate is declared for precision fp16" in text
    assert "| bf16 | small | layer | 1 |" in text
    assert r"fp32 & small & layer & 1\textsuperscript{1} &" in to_latex(table)
    assert "FAIL: " in to_csv(table)


def test_a_recorded_verdict_without_a_reason_has_its_footnote(sweep: SyntheticSweep) -> None:
    cells = [cell_axes("rollout_throughput", "fp32", "small", cohort=cohort) for cohort in range(2)]
    sweep.plan([planned(axes) for axes in cells])
    for axes, verdict in zip(cells, ("NOT_RESOLVED", "PASS"), strict=True):
        sweep.record(axes, edit=lambda metrics, verdict=verdict: metrics.update(own_gate=Metric(value=verdict)))
    columns = [{"metric": "own_gate", "header": "gate"}]
    spec = TableSpec.model_validate(
        {"name": "g", "experiment": "rollout_throughput", "caption": "G.", "rows": [], "columns": columns}
    )
    [table] = build_all([spec], cells_of(sweep), [])
    text = to_markdown(table)
    assert "| 2 | 1 NOT\\_RESOLVED, 1 PASS [1] |" in text or "| 2 | 1 NOT_RESOLVED, 1 PASS [1] |" in text
    assert "1 of 2 cohorts NOT_RESOLVED: the measurements do not decide the gate" in text


def freeze(sweep: SyntheticSweep, axes: Axes, name: str, **changes: Any) -> None:
    """cell.yaml as planning writes it, with gates that differ from the shipped ones in `changes` of fp32."""
    gates = yaml.safe_load((REPOSITORY / "conf/gates/default.yaml").read_text())
    gates |= {"name": name, "fp32": {**gates["fp32"], **changes}}
    [directory] = [file.parents[1] for file in sweep.path.glob("*/*/record.json")]
    cell = FrozenCell(
        identity_version=1,
        identity="0" * 64,
        cell_id=directory.name,
        sweep=sweep.path.name,
        axes={**axes, "x.gates:": "\n  gates:\n    name: none\n"},
        config={"experiment": {"name": "actor_update"}, "gates": gates, "device": {"type": "cpu"}},
    )
    cell.write(directory / "cell.yaml")


def test_a_cell_is_judged_by_the_gates_that_were_frozen_with_it(sweep: SyntheticSweep) -> None:
    axes = cell_axes("actor_update", "fp32", "small", "layer")
    sweep.plan([planned(axes)])
    edit = {"grad_sched_relative_l2": Metric(value=1e-3), "grad_round_floor_relative_l2": Metric(value=1e-9)}
    sweep.record(axes, edit=lambda metrics: metrics.update(edit))
    assert cells_of(sweep)[0].metrics["gate"].value == "FAIL"
    freeze(sweep, axes, "default")
    [same] = cells_of(sweep)
    assert same.metrics["gate"].value == "FAIL"
    assert "frozen" not in (same.metrics["gate"].reason or "")
    freeze(sweep, axes, "loose", gradient_relative_l2=1e-2)
    [own] = cells_of(sweep)
    assert own.metrics["gate"].value == "PASS"
    said = "judged by the gates frozen with the cell (loose), which are not the shipped ones"
    assert own.metrics["gate"].reason == said
    assert own.metrics["gate/gradient_relative_l2/allowed"].value == 1e-2
    assert f"PASS: {said}" in to_markdown(shipped(sweep, "gradient_error"))


@pytest.mark.parametrize(
    "text", ["", "config: {", "config:\n  gates:\n    fp32: {loss: 3}\n", "config:\n  gates:\n    - 1\n"]
)
def test_gates_that_cannot_be_read_are_no_gates(sweep: SyntheticSweep, text: str) -> None:
    axes = cell_axes("actor_update", "fp32", "small", "layer")
    sweep.plan([planned(axes)])
    record = sweep.record(axes)
    (record.parents[1] / "cell.yaml").write_text(text)
    gate = cells_of(sweep)[0].metrics["gate"]
    assert gate.value == "PASS"
    assert ("cannot be read" in (gate.reason or "")) == ("gates:" in text)


def test_the_frozen_gates_are_those_that_ship() -> None:
    content = yaml.safe_load((REPOSITORY / "conf/gates/default.yaml").read_text())
    assert set(load_gates().learner) == set(content) - {"name", "replay_mismatches"}
