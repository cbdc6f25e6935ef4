"""`experiment=report_speed`: how long a user waits for a report."""

from typing import ClassVar

from scalerlt.schema.experiment import Experiment
from scalerlt.schema.fields import PositiveInt
from scalerlt.schema.registry import config_group


@config_group("experiment", "report_speed")
class ReportSpeed(Experiment):
    """Reads a generated sweep, as `load_runs` does, and builds its report.

    Attributes:
        records: how many the sweep has.
        figures: metrics of each measured record.
        repeats: how often each is done, each time by a fresh interpreter.
    """

    timed: ClassVar[bool] = True
    records: PositiveInt
    figures: PositiveInt
    repeats: PositiveInt
