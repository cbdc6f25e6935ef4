"""`rollout=deferred_fill`: decode tokens are read out early, their deeper loops run later."""

from typing import Literal

from scalerlt.schema.registry import config_group
from scalerlt.schema.rollout import SkippedKV
from scalerlt.schema.rollout.last_exited import LastExited


@config_group("rollout", "deferred_fill")
class DeferredFill(LastExited):
    """A decode token is read out once its exit gate has put enough probability on the loops so far; its deeper loops
    run in one batch with the first later token of its sequence that goes so deep, so that every K/V that is read is
    that of the dense model."""

    schedule: Literal["deferred_fill"]  # type: ignore[assignment]

    @property
    def skipped_kv(self) -> SkippedKV:
        """The deeper loops' own, later."""
        return "deferred_fill"
