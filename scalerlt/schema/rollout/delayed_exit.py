"""`rollout=delayed_exit`: as `last_exited`, one loop later."""

from typing import Literal

from scalerlt.schema.registry import config_group
from scalerlt.schema.rollout.last_exited import LastExited


@config_group("rollout", "delayed_exit")
class DelayedExit(LastExited):
    """A decode token runs one loop more after that in which its exit gate would stop it, so that an engine may begin
    the next loop before it has read the gate. With `min_loops` 2 no token is stopped by the gate before loop 3."""

    schedule: Literal["delayed_exit"]  # type: ignore[assignment]
