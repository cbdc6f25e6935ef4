"""The report of a sweep: tables, figures, one page that shows them all, and a manifest of what was made from what.

The same records and plans give the same bytes: nothing of the time, the place or the machine of building enters, files
are read in the order of their names, and text is written as UTF-8 with plain line ends.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from scalerlt.analysis.coverage import coverage_table, overhead_table, unmeasured_table
from scalerlt.analysis.figure_spec import Figures, load_figures
from scalerlt.analysis.figures import pictures as draw_pictures
from scalerlt.analysis.gates import describe, load_gates
from scalerlt.analysis.judging import judged
from scalerlt.analysis.latex import preamble, to_latex
from scalerlt.analysis.manifest import MANIFEST, manifest, outputs_of, sha256
from scalerlt.analysis.reading import SweepResults, no_cycle_search, read_runs
from scalerlt.analysis.report_html import render_html
from scalerlt.analysis.report_markdown import render_markdown
from scalerlt.analysis.saving import start_saving
from scalerlt.analysis.spec_files import spec_files
from scalerlt.analysis.spec_matches import unmatched
from scalerlt.analysis.table_spec import TableSpec, load_tables
from scalerlt.analysis.tables import Table, build_all, to_csv, to_markdown
from scalerlt.analysis.training import with_training
from scalerlt.errors import RequestErrors, UserError

MARKDOWN, PAGE = "report.md", "report.html"


@dataclass(frozen=True)
class Definitions:
    """What tables and figures there are, and the digests of the files that say so, by name (`tables/NAME.yaml`)."""

    tables: Sequence[TableSpec]
    figures: Sequence[Figures]
    digests: dict[str, str]


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


def build_report(runs: str | Path, out: str | Path, specs: str | Path | None = None) -> Report:
    """Write tables, figures, page and manifest from the plans and records under `runs`, and from nothing else.

    Args:
        runs: a runs directory, or the directory of one sweep.
        out: the report's directory. For a runs directory it gets one directory per sweep; for one sweep's directory
            it is itself that sweep's. Tables and figures there that an earlier manifest names and this report no
            longer has are removed.
        specs: a directory with definitions of further tables and figures in `tables/` and `figures/`; one that has
            the name of a shipped one takes its place.

    Raises:
        UserError: there is no sweep, a definition is wrong, a metric was recorded in two units, or `out` cannot be
            written to.
    """
    directories = [] if specs is None else [Path(specs)]
    with no_cycle_search():
        return _build_report(Path(runs), Path(out), directories)


def _build_report(runs: Path, out: Path, directories: Sequence[Path]) -> Report:
    definitions = _definitions(directories)
    found = read_runs(runs)
    if not found.sweeps:
        raise UserError(f"no sweep stands in {runs}; a sweep is a directory with plans/ in it")
    found = replace(found, sweeps=[with_training(sweep) for sweep in found.sweeps])
    reports = []
    for sweep in found.sweeps:
        directory = out if sweep.path == runs.resolve() else out / sweep.name
        try:
            reports.append(_build(sweep, directory, definitions))
        except OSError as error:
            raise UserError(
                f"{error.filename or directory}: the report cannot be written ({error.strerror})"
            ) from error
    cells = [cell for sweep in found.sweeps for cell in sweep.cells]
    said = unmatched(definitions.tables, definitions.figures, directories, cells) if directories else []
    return Report(reports, [*found.all_problems, *said])


def _definitions(directories: Sequence[Path]) -> Definitions:
    for directory in directories:
        if directory.is_dir() and not any((directory / kind).is_dir() for kind in ("tables", "figures")):
            raise UserError(f"{directory} holds neither tables/ nor figures/, where definitions stand")
    digests = {
        f"{kind}/{file.name}": sha256(file.read_bytes())
        for kind in ("tables", "figures")
        for file in spec_files(kind, directories)
    }
    faults: list[str] = []
    tables: list[TableSpec] = []
    figures: list[Figures] = []
    try:
        tables = load_tables(directories)
    except UserError as error:
        faults += str(error).splitlines()
    try:
        figures = load_figures(directories)
    except UserError as error:
        faults += str(error).splitlines()
    if faults:
        raise RequestErrors(faults)
    return Definitions(tables, figures, digests)


def _build(sweep: SweepResults, directory: Path, definitions: Definitions) -> SweepReport:
    sweep = replace(sweep, cells=judged(sweep.cells, sweep.path))
    for name in ("tables", "figures"):
        (directory / name).mkdir(parents=True, exist_ok=True)
    pictures = draw_pictures(definitions.figures, sweep.cells, sweep.swept)
    saved = start_saving(pictures, directory / "figures")
    tables = _tables(definitions.tables, sweep)
    gates = describe(load_gates())
    written = {
        "tables/preamble.tex": preamble(),
        **{f"tables/{table.name}.md": to_markdown(table) for table in tables},
        **{f"tables/{table.name}.csv": to_csv(table) for table in tables},
        **{f"tables/{table.name}.tex": to_latex(table) for table in tables},
        MARKDOWN: render_markdown(sweep, tables, pictures, gates),
    }
    outputs = {f"figures/{path.name}": path.read_bytes() for path in saved()}
    images = {picture.name: outputs[f"figures/{picture.name}.png"] for picture in pictures}
    written[PAGE] = render_html(sweep, tables, pictures, images, gates)
    outputs |= {name: text.encode() for name, text in written.items()}
    for name in written:
        (directory / name).write_bytes(outputs[name])
    _remove_stale(directory, outputs)
    text = manifest(sweep, outputs, tables, pictures, definitions.digests)
    (directory / MANIFEST).write_bytes(text.encode())
    return SweepReport(sweep.name, directory, [*sorted(outputs), MANIFEST], sweep.problems)


def _tables(specs: Sequence[TableSpec], sweep: SweepResults) -> list[Table]:
    """All tables, coverage first."""
    about = [coverage_table(sweep.cells), unmeasured_table(sweep.cells)]
    tables = [*about, *build_all(specs, sweep.cells, sweep.swept), overhead_table(sweep.cells)]
    return [table for table in tables if table is not None]


def _remove_stale(directory: Path, outputs: Collection[str]) -> None:
    """Remove what an earlier report left here and this one has not: an old table must not look like a new one."""
    for name in set(outputs_of(directory)) - set(outputs):
        place = (directory / name).resolve()
        if place.parent in ((directory / "tables").resolve(), (directory / "figures").resolve()):
            place.unlink(missing_ok=True)
