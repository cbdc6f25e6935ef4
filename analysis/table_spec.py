"""The definitions of tables: what a file specs/tables/NAME.yaml says, and how they are loaded."""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Literal, Self, get_args

from pydantic import BeforeValidator, Field, FiniteFloat, StringConstraints, model_validator

from scalerlt.analysis.formatting import SCALES
from scalerlt.analysis.ratios import RatioEstimator
from scalerlt.analysis.seeds import Over
from scalerlt.analysis.spec_files import read_spec, spec_files, validate
from scalerlt.errors import RequestErrors, UserError
from scalerlt.records.base import Part, Scalar

Estimator = Literal[Over, "interquartile_mean", RatioEstimator, "paired_accuracy"]
RATIOS: tuple[str, ...] = get_args(RatioEstimator)
COMPARING = (*RATIOS, "paired_accuracy")
"""Estimators that set a row against its baseline."""
WITH_INTERVAL = ("interquartile_mean", *COMPARING)
"""Estimators whose entry has an interval."""
OF_THE_SWEEP = ("coverage", "unmeasured", "overhead")
"""Tables about the sweep itself. The program makes them: their rows are no configurations."""

_UNITS = tuple(dict.fromkeys(step.unit for steps in SCALES.values() for step in steps))


def _several(value: object) -> object:
    return (value,) if isinstance(value, str) else value


Text = Annotated[str, StringConstraints(min_length=1)]
Names = Annotated[tuple[Text, ...], BeforeValidator(_several)]


class Column(Part):
    """One figure of a table.

    Attributes:
        metric: name of the metric; `name/*` stands for every recorded `name/<part>`.
        header: what people read above it; a part's name follows it where there are parts.
        form: `number`; `error` is always scientific; `one_minus` is 1 - value, scientific, for values close to 1;
            `count` is a number of cells, which always exists.
        unit: what people read it in, where that is not left to the program: one that the recorded unit is known to
            have (KiB, ms), or any with `scale`.
        scale: the recorded value times this is in `unit`.
        estimator: how the cells of a row become one entry.
        over: what the sample is: cohorts (each seed in each cohort), or seeds, the cells of one of which are averaged.
        spread: whether the range of the repeats is part of the CSV.
        device: the kind of device that has such a figure, where it is only one.
        ratio: which way a ratio is taken; row/baseline by default.
        per: a metric of the row by which the ratio and its interval are divided, such as the most that it can be.
        follows: a metric with which this one is expected to fall below the baseline's: where that falls and this does
            not, a footnote says so.
        margin: of non-inferiority, in points; by default the one that so many problems can carry.
        correction: of the p-values of the column's rows.
    """

    metric: Text
    header: str
    form: Literal["number", "error", "one_minus", "count"] = "number"
    unit: Text | None = None
    scale: FiniteFloat | None = None
    estimator: Estimator = "median"
    over: Literal["cohort", "seed"] = "cohort"
    spread: bool = False
    device: Literal["cpu", "cuda"] | None = None
    ratio: Literal["row/baseline", "baseline/row"] | None = None
    per: Text | None = None
    follows: Text | None = None
    margin: Annotated[FiniteFloat, Field(ge=0)] | None = None
    correction: Literal["holm"] | None = None

    @property
    def has_interval(self) -> bool:
        """Whether an entry is an estimate with its interval."""
        return self.estimator in WITH_INTERVAL

    @property
    def compares(self) -> bool:
        """Whether an entry sets the row against its baseline."""
        return self.estimator in COMPARING

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.scale is not None and self.unit is None:
            raise ValueError("scale takes a unit: what is the figure in, once it is multiplied?")
        if self.unit is not None and self.scale is None and self.unit not in _UNITS:
            raise ValueError(f"unit {self.unit!r} takes a scale; known without one are {', '.join(_UNITS)}")
        if self.ratio is not None and self.estimator not in RATIOS:
            raise ValueError(f"ratio goes with an estimator of ratios: {', '.join(RATIOS)}")
        if self.per is not None and (self.estimator not in RATIOS or self.correction is not None):
            raise ValueError(f"per goes with an estimator of ratios ({', '.join(RATIOS)}) and without correction")
        if self.follows is not None and self.estimator != "median":
            raise ValueError("follows goes with the estimator median")
        if self.margin is not None and self.estimator != "paired_accuracy":
            raise ValueError("margin goes with the estimator paired_accuracy")
        if self.correction is not None and not self.compares:
            raise ValueError(f"correction goes with an estimator that compares: {', '.join(COMPARING)}")
        if self.has_interval and (self.spread or self.form != "number" or (self.compares and self.unit is not None)):
            raise ValueError(f"{self.estimator} goes with neither spread nor form, and a comparison has no unit")
        return self


class TableSpec(Part):
    """A table with a row per configuration.

    Attributes:
        name: of the file, of the definition and of the table.
        experiment: whose cells are its rows; one or several.
        sweeps: only in the reports of these; of all, when there are none.
        rows: the axes that always name a row; others join them where they vary.
        baseline: the arm that comparing columns compare with: an axis and its value (several, where they go together).
        gates: verdicts under which each row's figures stand; where one is not PASS, the row is marked.
        label: what LaTeX refers to it by; `tab:NAME` if it is left out.
        per_device: one table per kind of device instead of one for all.
        order: tables stand in the report in this order, then by name.
    """

    name: Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]*$")]
    experiment: Annotated[Names, Field(min_length=1)]
    sweeps: Names = ()
    caption: Text
    label: Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9:_.-]+$")] | None = None
    order: int = 1000
    rows: Names
    per_device: bool = False
    baseline: Annotated[dict[str, Scalar], Field(min_length=1)] | None = None
    gates: Names = ()
    columns: Annotated[tuple[Column, ...], Field(min_length=1)]

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.name in OF_THE_SWEEP:
            raise ValueError(f"name is {self.name}, a table about the sweep itself; choose another")
        comparing = [column.header for column in self.columns if column.compares or column.follows]
        if comparing and self.baseline is None:
            raise ValueError(f"baseline is missing: column {comparing[0]!r} compares with it")
        if self.baseline is not None and not comparing:
            raise ValueError(f"baseline is given, but no column's estimator compares: {', '.join(COMPARING)}")
        named = [(column.metric, column.estimator, column.per) for column in self.columns]
        if twice := next((one for one in named if named.count(one) > 1), None):
            raise ValueError(f"columns has {twice[0]} with the estimator {twice[1]} twice")
        if not self.per_device and (only := [column.header for column in self.columns if column.device]):
            raise ValueError(f"column {only[0]!r} is of one device, which takes per_device: true")
        return self


def load_tables(directories: Sequence[Path] = ()) -> list[TableSpec]:
    """The shipped tables and those in the `tables/` of each directory, in the order of the report.

    A table of a directory takes the place of an earlier one of its name.

    Raises:
        UserError: a file is not the definition of a table; the message names the file, the key, and what would be
            right, for every fault of every file.
    """
    specs: list[TableSpec] = []
    faults: list[str] = []
    for file in spec_files("tables", directories):
        try:
            specs.append(validate(TableSpec, read_spec(file), file))
        except UserError as error:
            faults += str(error).splitlines()
    if faults:
        raise RequestErrors(faults)
    return sorted(specs, key=lambda spec: (spec.order, spec.name))
