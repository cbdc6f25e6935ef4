"""`rollout=trace`: the depths of decode tokens are given, and no exit gate is run."""

import math
from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import field_validator

from scalerlt.schema.fields import IdentityDefault, UnitInterval
from scalerlt.schema.registry import config_group
from scalerlt.schema.rollout import Rollout, SkippedKV

if TYPE_CHECKING:
    from scalerlt.schema.cell import Cell
    from scalerlt.schema.machine import Machine


@config_group("rollout", "trace")
class Trace(Rollout):
    """Depths are drawn for every request and position beforehand: the same work for any weights.

    Attributes:
        depth_shares: the share of decode tokens at each depth 1 .. K; they sum to 1.
        kv: what stands for the K/V of loops that are left out, as under the rollout schedule of that name.
    """

    schedule: Literal["trace"]
    depth_shares: list[UnitInterval]
    kv: Annotated[SkippedKV, IdentityDefault("last_exited")] = "last_exited"

    @property
    def skipped_kv(self) -> SkippedKV:
        """What is asked for."""
        return self.kv

    @field_validator("depth_shares")
    @classmethod
    def _check_shares(cls, shares: list[float]) -> list[float]:
        if not math.isclose(sum(shares), 1.0, abs_tol=1e-6):
            raise ValueError(f"the shares sum to {sum(shares):g}, not to 1")
        return shares

    def supports(self, cell: "Cell", machine: "Machine") -> str | None:
        """Why the depths cannot be given in the cell, or None."""
        if cell.experiment.name in ("gsm8k_eval", "gsm8k_reward"):
            return (
                f"rollout=trace gives depths whatever the policy says: experiment={cell.experiment.name} would judge "
                "the depths and not the policy; use experiment=rollout_throughput"
            )
        if len(self.depth_shares) != cell.model.total_ut_steps:
            return (
                f"rollout.depth_shares has {len(self.depth_shares)} shares and model.total_ut_steps="
                f"{cell.model.total_ut_steps} depths; give one for each"
            )
        return Rollout.supports(self, cell, machine)
