"""`experiment=rollout_throughput`: how fast the engine generates, in how much memory, and whether it is right."""

from typing import Annotated

from scalerlt.schema.experiment import RepeatedExperiment
from scalerlt.schema.fields import Flag, IdentityDefault, PositiveInt
from scalerlt.schema.registry import config_group


@config_group("experiment", "rollout_throughput")
class RolloutThroughput(RepeatedExperiment):
    """Measures a rollout.

    Attributes:
        memory: whether the memory passes run: three more rollouts, of which one follows every operation and takes
            several times as long.
        replay: whether the rollout is replayed, by the engine and by the learner's packed pass, timed side by side.
        company: whether the same requests are generated once more in another order and fewer slots, and what comes out
            otherwise is counted.
        reference_requests: how many of the first requests the log-probs are compared over, with the learner's and with
            fp64; None: all. Where a rollout takes half a minute, the comparison would take longer.
    """

    memory: Annotated[Flag, IdentityDefault(True)] = True
    replay: Annotated[Flag, IdentityDefault(False)] = False
    company: Annotated[Flag, IdentityDefault(False)] = False
    reference_requests: Annotated[PositiveInt | None, IdentityDefault(None)] = None
