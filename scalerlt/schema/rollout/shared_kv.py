"""`rollout=shared_kv`: decode tokens stop early, and all loops share one K/V plane."""

from typing import Literal

from scalerlt.schema.registry import config_group
from scalerlt.schema.rollout import SkippedKV
from scalerlt.schema.rollout.last_exited import LastExited


@config_group("rollout", "shared_kv")
class SharedKV(LastExited):
    """As `last_exited`, but the pool holds one K and V of a token in each layer, of the last loop that it ran, which
    tokens after it read in every loop. Another policy than that of the dense model at full depth, too."""

    schedule: Literal["shared_kv"]  # type: ignore[assignment]

    @property
    def skipped_kv(self) -> SkippedKV:
        """Those of the last loop, in every loop."""
        return "shared_kv"
