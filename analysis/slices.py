"""What one figure shows: its rows, and what stands for each amount of each row."""

from dataclasses import dataclass

from matplotlib.figure import Figure

from scalerlt.analysis.drawing import legible
from scalerlt.analysis.estimates import Estimate
from scalerlt.analysis.figure_spec import BarsFigure, LinesFigure, TradeoffFigure
from scalerlt.analysis.rows import Row
from scalerlt.analysis.tables import label_text
from scalerlt.records.base import Scalar


@dataclass(frozen=True)
class Drawn:
    """A drawn figure, its caption, and the cells that it shows, with the axes that are the same in all of them."""

    part: Row
    caption: str
    figure: Figure


@dataclass(frozen=True)
class Slice:
    """The configurations of one figure.

    Attributes:
        along: the axes along the figure's `x`.
        series: all series of the report, each with the look of its place here.
        units: of each column, as people read it.
        rows: the configurations.
        places: of each row what stands for each column, in its unit.
        verdicts: of each row the word of the figure's gate, where it has one.
    """

    spec: BarsFigure | LinesFigure | TradeoffFigure
    along: list[str]
    series: list[Scalar]
    units: list[str]
    rows: list[Row]
    places: list[list[Estimate]]
    verdicts: list[str]

    @property
    def categories(self) -> list[tuple[str, ...]]:
        """The values along the figure's `x`, in the order of the rows."""
        return list(dict.fromkeys(self.category(row) for row in self.rows))

    def category(self, row: Row) -> tuple[str, ...]:
        """A row's values along the figure's `x`."""
        return tuple(_name(row.labels[axis]) for axis in self.along)

    def present(self) -> list[int]:
        """The series, by their place in `series`, that have a row here."""
        return sorted({self.series_of(row) for row in self.rows})

    def series_of(self, row: Row) -> int:
        """The place of a row's series in `series`."""
        return self.series.index(row.labels[self.spec.series])

    def series_text(self, series: int) -> str:
        """What the legend calls a series."""
        return _name(self.series[series])

    def header(self, column: int) -> str:
        """What a column shows, and its unit."""
        unit = self.units[column]
        return legible(self.spec.columns[column].header + (f" ({unit})" if unit else ""))

    def reach(self, column: int) -> list[float]:
        """All amounts that are drawn of a column."""
        return [amount for places in self.places for amount in places[column].reach()]


def _name(value: Scalar) -> str:
    """The value of an axis; an empty text in quotes, so that there is something to see."""
    return label_text(value) or '""'


def shown_in(part: Row) -> list[str]:
    """A sentence with what is the same in all cells of a figure, and another in the next one."""
    held = ", ".join(f"{axis} {label_text(label)}" for axis, label in part.labels.items())
    return [f"Shown: {held}."] if held else []
