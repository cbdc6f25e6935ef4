"""`checkpoint=auto`: each optimizer step has the schedule that a cost model predicts to be fastest."""

from scalerlt.schema.checkpoint import Checkpoint
from scalerlt.schema.fields import Bytes, PositiveFloat, PositiveInt
from scalerlt.schema.registry import config_group


@config_group("checkpoint", "auto")
class Auto(Checkpoint):
    """The choice among whole sequences and shared prefixes, by measurements of the cell's own learner.

    Attributes:
        wave_responses: of the schedules with waves, as `checkpoint=prefix` has it.
        memory_budget: live bytes of an optimizer step, predicted, that a schedule may not exceed; null is no limit, and
            then only schedules that compute nothing twice are candidates.
        calibration_seconds: how long measuring the candidates should take; the smallest pieces of work are measured in
            any case.
    """

    wave_responses: PositiveInt
    memory_budget: Bytes | None
    calibration_seconds: PositiveFloat
