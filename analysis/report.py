"""The report of a sweep: tables, figures, one page that shows them all, and a manifest of what was made from what.

The same records and plans give the same bytes: nothing of the time, the place or the machine of building enters, files
are read in the order of their names, and text is written as UTF-8 with plain line ends.
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from scalerlt.analysis.coverage import coverage_table, overhead_table, unmeasured_table
from scalerlt.analysis.drawing import fixed_style
from scalerlt.analysis.figures import build_figures, save
from scalerlt.analysis.gates import LearnerGate, default_gates_file, describe, judge, load_gates
from scalerlt.analysis.page import render_page
from scalerlt.analysis.reading import CellResult, SweepResults, read_runs
from scalerlt.analysis.specs import FIGURES, TABLES
from scalerlt.analysis.tables import Table, build_tables, to_csv, to_markdown
from scalerlt.analysis.training import with_training
from scalerlt.analysis.training_figures import build_training_figures
from scalerlt.analysis.training_specs import TRAINING_FIGURES, TRAINING_TABLES
from scalerlt.errors import UserError

MANIFEST = "manifest.json"
PAGE = "report.md"


@dataclass(frozen=True)
class SweepReport:
    """What was written for one sweep.

    Attributes:
        directory: where it stands.
        outputs: every file written, relative to `directory`, by name.
        problems: the files of the sweep that were passed over.
    """

    sweep: str
    directory: Path
    outputs: list[str]
    problems: list[str]


@dataclass(frozen=True)
class Report:
    """What was written, sweep by sweep, and the files under the path that were passed over, one sentence each."""

    sweeps: list[SweepReport]
    problems: list[str]

    @property
    def outputs(self) -> list[Path]:
        """Every file written."""
        return [sweep.directory / name for sweep in self.sweeps for name in sweep.outputs]


def build_report(runs: str | Path, out: str | Path) -> Report:
    """Write tables, figures, page and manifest from the plans and records under `runs`, and from nothing else.

    Args:
        runs: a runs directory, or the directory of one sweep.
        out: the report's directory. For a runs directory it gets one directory per sweep; for one sweep's directory
            it is itself that sweep's. Tables and figures there that an earlier manifest names and this report no
            longer has are removed.

    Raises:
        UserError: there is no sweep, a metric was recorded in two units, or `out` cannot be written to.
    """
    found, out = read_runs(runs), Path(out)
    if not found.sweeps:
        raise UserError(f"no sweep stands in {runs}; a sweep is a directory with plans/ in it")
    found = replace(found, sweeps=[with_training(sweep) for sweep in found.sweeps])
    reports = []
    for sweep in found.sweeps:
        directory = out if sweep.path == Path(runs).resolve() else out / sweep.name
        try:
            reports.append(_build(sweep, directory))
        except OSError as error:
            raise UserError(
                f"{error.filename or directory}: the report cannot be written ({error.strerror})"
            ) from error
    return Report(reports, found.all_problems)


def _build(sweep: SweepResults, directory: Path) -> SweepReport:
    gates = load_gates()
    cells = judged(sweep.cells, gates)
    tables = _tables(cells, sweep.swept)
    contents = {f"tables/{table.name}.md": to_markdown(table) for table in tables}
    contents |= {f"tables/{table.name}.csv": to_csv(table) for table in tables}
    for name in ("tables", "figures"):
        (directory / name).mkdir(parents=True, exist_ok=True)
    outputs: list[str] = []
    with fixed_style():
        pictures = [picture for spec in FIGURES for picture in build_figures(spec, cells, sweep.swept)]
        pictures += [one for spec in TRAINING_FIGURES for one in build_training_figures(spec, cells, sweep.swept)]
        for picture in pictures:
            outputs += [f"figures/{path.name}" for path in save(picture, directory / "figures")]
    contents[PAGE] = render_page(sweep, tables, pictures, describe(gates))
    for name, text in contents.items():
        (directory / name).write_bytes(text.encode())
    outputs = sorted([*outputs, *contents])
    _remove_stale(directory, outputs)
    manifest = _manifest(sweep, directory, outputs)
    (directory / MANIFEST).write_bytes((json.dumps(manifest, indent=1, ensure_ascii=False) + "\n").encode())
    return SweepReport(sweep.name, directory, [*outputs, MANIFEST], sweep.problems)


def judged(cells: Sequence[CellResult], gates: Mapping[str, LearnerGate | None]) -> list[CellResult]:
    """The cells, with the gates' verdicts among the metrics of every actor update that has a record."""
    return [
        replace(cell, metrics={**cell.metrics, **judge(str(cell.axes.get("precision")), cell.metrics, gates)})
        if cell.record is not None and cell.axes.get("experiment") == "actor_update"
        else cell
        for cell in cells
    ]


def _tables(cells: list[CellResult], swept: Sequence[str]) -> list[Table]:
    """All tables, coverage first."""
    tables = [coverage_table(cells)]
    if (unmeasured := unmeasured_table(cells)) is not None:
        tables.append(unmeasured)
    tables += [table for spec in (*TABLES, *TRAINING_TABLES) for table in build_tables(spec, cells, swept)]
    if (overhead := overhead_table(cells)) is not None:
        tables.append(overhead)
    return tables


def _manifest(sweep: SweepResults, directory: Path, outputs: list[str]) -> dict[str, object]:
    return {
        "schema_version": 1,
        "sweep": sweep.name,
        "outputs": {name: _sha256(directory / name) for name in outputs},
        "gates": hashlib.sha256(default_gates_file().read_bytes()).hexdigest(),
        "plans": {name: _sha256(sweep.path / name) for name in sweep.plans},
        "records": {name: _sha256(sweep.path / name) for name, counts in sweep.records.items() if counts},
        "superseded_records": {
            name: _sha256(sweep.path / name) for name, counts in sweep.records.items() if not counts
        },
        **(
            {"series_and_samples": {name: _sha256(sweep.path / name) for name in sweep.sources}}
            if sweep.sources
            else {}
        ),
    }


def _remove_stale(directory: Path, outputs: list[str]) -> None:
    """Remove what an earlier report left here and this one has not: an old table must not look like a new one."""
    try:
        earlier = json.loads((directory / MANIFEST).read_bytes())["outputs"]
    except (OSError, ValueError, KeyError, TypeError):
        return  # no earlier report, or not ours
    for name in set(earlier) - set(outputs):
        place = (directory / name).resolve()
        if place.parent in ((directory / "tables").resolve(), (directory / "figures").resolve()):
            place.unlink(missing_ok=True)


def _sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()
