"""Whether a reader's own definitions find what they name: a misspelt metric is no reason to show nothing in silence."""

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from scalerlt.analysis.figure_spec import CellFigure, Figures
from scalerlt.analysis.reading import CellResult
from scalerlt.analysis.spec_files import nearest
from scalerlt.analysis.table_spec import TableSpec
from scalerlt.analysis.tables import label_text


def unmatched(
    tables: Iterable[TableSpec], figures: Iterable[Figures], directories: Sequence[Path], cells: Sequence[CellResult]
) -> list[str]:
    """What the definitions in `directories` name and no cell has, one sentence each with the nearest name there is.

    The shipped definitions are for every sweep and may find nothing.
    """
    said: list[str] = []
    for folder, specs in (("tables", list(tables)), ("figures", list(figures))):
        own = {file.stem: file for directory in directories for file in (directory / folder).glob("*.yaml")}
        for spec in specs:
            if spec.name in own:
                said += [f"{own[spec.name]}: {problem}" for problem in _problems(spec, cells)]
    return said


def _hint(wrong: str, names: Iterable[str]) -> str:
    hint = nearest(wrong, names)
    return f"; {hint}" if hint.startswith("did you mean") else ""


def _problems(spec: TableSpec | Figures, cells: Sequence[CellResult]) -> Iterator[str]:
    experiments = {str(cell.axes.get("experiment")) for cell in cells}
    for experiment in spec.experiment:
        if experiment not in experiments:
            yield f"no cell is of experiment {experiment}{_hint(experiment, experiments)}"
    cells = [cell for cell in cells if cell.axes.get("experiment") in spec.experiment]
    if not cells:
        return
    axes = {axis for cell in cells for axis in cell.axes}
    named = (spec.x, spec.series) if isinstance(spec, CellFigure) else spec.rows
    baseline = (spec.baseline or {}) if isinstance(spec, TableSpec) else {}
    for axis in dict.fromkeys([*named, *baseline]):
        if axis not in axes:
            yield f"no cell has an axis {axis}{_hint(axis, axes)}"
    for axis, value in baseline.items():
        values = {label_text(cell.axes[axis]) for cell in cells if axis in cell.axes}
        if values and label_text(value) not in values:
            yield f"baseline: no cell has {axis}={label_text(value)}{_hint(label_text(value), values)}"
    if isinstance(spec, TableSpec | CellFigure):
        metrics = {metric for cell in cells for metric in cell.metrics}
        wanted = [column.metric for column in spec.columns]
        if isinstance(spec, TableSpec):
            wanted += [metric for column in spec.columns for metric in (column.per, column.follows) if metric]
        for metric in dict.fromkeys(wanted):
            found = (
                any(name.startswith(metric[:-1]) for name in metrics) if metric.endswith("/*") else metric in metrics
            )
            if metrics and not found and not metric.startswith("gate"):  # verdicts are computed from the others
                yield f"no cell has recorded a metric {metric}{_hint(metric, metrics)}"
