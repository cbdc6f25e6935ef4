"""The definitions of figures: what a file specs/figures/NAME.yaml says, and how they are loaded."""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BeforeValidator, Field, StringConstraints

from scalerlt.analysis.spec_files import nearest, read_spec, spec_files, validate
from scalerlt.analysis.venues import Venue, Width
from scalerlt.errors import UserError
from scalerlt.records.base import Part

Reach = Literal["zero", "fit", "log"]
"""What an axis of amounts covers: from zero; what is drawn; or powers of ten where the amounts span more than one
decade, else from zero."""
FigureEstimator = Literal["median", "mean", "geometric_mean"]
"""What stands for the cohorts of a cell. From five cohorts on the means have a Student t interval (that of the
geometric mean is taken on logarithms); the median has none."""


def _several(value: object) -> object:
    return (value,) if isinstance(value, str) else value


Text = Annotated[str, StringConstraints(min_length=1)]
Names = Annotated[tuple[Text, ...], BeforeValidator(_several)]


class Amount(Part):
    """One axis of amounts, from a metric of the records.

    Attributes:
        header: what people read beside it; the unit is added.
        better: which end is the good one, where a front is drawn.
    """

    metric: Text
    header: Text
    reach: Reach = "zero"
    better: Literal["lower", "higher"] = "lower"


class Panel(Part):
    """One panel of curves.

    Attributes:
        column: of the series.
        kind: of the rows that hold it.
        header: what people read beside it.
    """

    column: Text
    kind: Literal["train", "eval"]
    header: Text
    reach: Reach = "fit"


class Across(Part):
    """The column of the series along which curves run, and what people read below it."""

    column: Text
    header: Text


class FigureSpec(Part):
    """What all figures say of themselves.

    Attributes:
        name: of the file, of the definition and of the figures drawn.
        experiment: the one, or those, whose cells it shows.
        sweeps: only in the reports of these; of all, when there are none.
        label: what LaTeX refers to it by; `fig:NAME` if it is left out.
        order: figures stand in the report in this order, then by name.
        width: of a column or of the page; a figure that would be unreadable in a column takes the page.
        venue: whose columns those are.
    """

    name: Text
    experiment: Annotated[Names, Field(min_length=1)]
    sweeps: Names = ()
    caption: Text
    label: str | None = None
    order: int = 100
    width: Width = "column"
    venue: Venue = "icml"


class CellFigure(FigureSpec):
    """A figure of cells' metrics, one for each combination of the axes that it does not draw.

    Attributes:
        series: axis of the colours.
    """

    x: Text
    series: Text
    columns: Annotated[tuple[Amount, ...], Field(min_length=1)]
    estimator: FigureEstimator = "mean"


class BarsFigure(CellFigure):
    """A panel per column; bars over the values of the axis `x`."""

    kind: Literal["bars"]


class LinesFigure(CellFigure):
    """A panel per column; lines over the numbers of the axis `x`.

    Attributes:
        header: what people read below it; the axis' own name if it is left out.
    """

    kind: Literal["lines"]
    header: Text | None = None
    reach: Reach = "log"


class TradeoffFigure(CellFigure):
    """The second column over the first: a marker per value of `x`, and the front that no cell is better than.

    Attributes:
        gate: a verdict among the metrics; cells of which it is not PASS are marked, and stand on no front.
    """

    kind: Literal["tradeoff"]
    columns: Annotated[tuple[Amount, ...], Field(min_length=2, max_length=2)]
    gate: Text | None = None


class TrainingFigure(FigureSpec):
    """A figure of the configurations of reinforcement learning.

    Attributes:
        rows: the axes that always name a configuration; others join them where they vary.
    """

    rows: Annotated[Names, Field(min_length=1)]


class CurvesFigure(TrainingFigure):
    """Columns of the series over training: a line per seed, and from five seeds on their mean and its interval."""

    kind: Literal["curves"]
    x: Across
    panels: Annotated[tuple[Panel, ...], Field(min_length=1)]


class DepthsFigure(TrainingFigure):
    """Shares of the exit depths over training, a panel per configuration."""

    kind: Literal["depths"]


class PhasesFigure(TrainingFigure):
    """Shares of the training time by phase, a bar per configuration."""

    kind: Literal["phases"]


Figures = BarsFigure | LinesFigure | TradeoffFigure | CurvesFigure | DepthsFigure | PhasesFigure
KINDS: dict[str, type[Figures]] = {
    "bars": BarsFigure,
    "lines": LinesFigure,
    "tradeoff": TradeoffFigure,
    "curves": CurvesFigure,
    "depths": DepthsFigure,
    "phases": PhasesFigure,
}


def load_figures(directories: Sequence[Path] = ()) -> list[Figures]:
    """The shipped figures and those in the `figures/` of each directory, in the order of the report.

    A figure of a directory takes the place of an earlier one of its name.

    Raises:
        UserError: a file is not the definition of a figure; the message names the file, the key, and what would be
            right.
    """
    specs: list[Figures] = []
    for file in spec_files("figures", directories):
        content = read_spec(file)
        kind = str(content.get("kind"))
        if kind not in KINDS:
            raise UserError(f"{file}: kind is {content.get('kind')!r}; {nearest(kind, KINDS)}")
        specs.append(validate(KINDS[kind], content, file))
    return sorted(specs, key=lambda spec: (spec.order, spec.name))
