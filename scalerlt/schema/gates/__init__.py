"""Config group `gates`: tolerances fixed before a run. Data, never inlined; out of the identity."""

from scalerlt.schema.fields import NonNegativeFloat, NonNegativeInt
from scalerlt.schema.registry import config, config_group


@config
class Tolerance:
    """|a - b| <= abs + rel * |b|, element by element."""

    abs: NonNegativeFloat
    rel: NonNegativeFloat


@config
class LearnerGate:
    """The gates of one learner precision; null where none is declared."""

    loss: Tolerance
    gradient: Tolerance
    gradient_relative_l2: NonNegativeFloat
    parameter_change: Tolerance
    moments: Tolerance | None


@config_group("gates")
class Gates:
    """Gates of a learner by precision, where null is none declared, and of replays.

    Attributes:
        replay_mismatches: how many log-probs of an engine's replay may differ in any bit from those of its rollout.
    """

    name: str
    fp64: LearnerGate | None
    fp32: LearnerGate | None
    bf16: LearnerGate | None
    fp16: LearnerGate | None
    replay_mismatches: NonNegativeInt = 0
