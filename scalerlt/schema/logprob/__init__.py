"""Config group `logprob`: how the learner evaluates the sampled tokens."""

from typing import TYPE_CHECKING, Annotated, Literal

from scalerlt.schema.fields import IdentityDefault
from scalerlt.schema.registry import config_group

if TYPE_CHECKING:
    from scalerlt.schema.cell import Cell
    from scalerlt.schema.machine import Machine


@config_group("logprob")
class Logprob:
    """`dense`: every token at full depth, teacher-forced in one causal pass. `replay`: the rollout's own schedule, from
    recorded tokens and exit depths. `hybrid`: the value of replay with the gradient of dense.

    Attributes:
        old: where the log-probs come from that ratios are taken against: the rollout's record, or evaluated again
            before the first update on them.
        replay: how the value of a replay is evaluated. `packed`: by the learner, parallel over positions. `engine`: by
            the rollout engine's own steps, forced to the recorded tokens, depths and order of requests, under the
            learner's present weights; never from recorded log-probs. `recorded`: it is the recorded log-prob, whatever
            the weights have become, so that its ratio to the rollout is always 1: a baseline that shows what is lost.
    """

    name: str
    old: Annotated[Literal["rollout", "dense", "replay"], IdentityDefault("rollout")] = "rollout"
    replay: Annotated[Literal["packed", "engine", "recorded"], IdentityDefault("packed")] = "packed"

    def extra_passes(self, cell: "Cell") -> int:
        """Forward passes for values alone in a learner step of the cell, an engine's replay among them."""
        match self.name:
            case "hybrid" if self.replay == "packed":
                return int(cell.rollout.skipped_kv != "deferred_fill")  # whose replay is the dense pass
            case "hybrid":
                return int(self.replay == "engine")
            case "replay":
                return int(self.replay == "engine")
        return 0

    def supports(self, cell: "Cell", machine: "Machine") -> str | None:
        """Why the cell cannot use these log-probs, or None."""
        if self.old != "rollout" and cell.algorithm.name != "grpo":
            return (
                f"logprob.old={self.old}: algorithm={cell.algorithm.name} takes no ratio to old log-probs; use rollout"
            )
        return self._recorded_fault() or self._engine_fault(cell) or self._shared_kv_fault(cell)

    def _recorded_fault(self) -> str | None:
        if self.replay != "recorded":
            return None
        if self.name != "hybrid":
            return (
                f"logprob.replay=recorded: logprob={self.name} has no value that could be the recorded one; use "
                "logprob=hybrid"
            )
        if self.old == "replay":
            return (
                "logprob.replay=recorded: logprob.old=replay would be the recorded log-probs again; use "
                "logprob.old=rollout"
            )
        return None

    def _engine_fault(self, cell: "Cell") -> str | None:
        if self.replay != "engine":
            return None
        if self.name == "dense" and self.old != "replay":
            return (
                "logprob.replay=engine: logprob=dense replays nothing; use logprob=hybrid, logprob=replay or "
                "logprob.old=replay"
            )
        if cell.rollout.engine.name != "native":
            return (
                f"logprob.replay=engine: rollout/engine={cell.rollout.engine.name} takes no depths to be forced to; "
                "use rollout/engine=native"
            )
        return None

    def _shared_kv_fault(self, cell: "Cell") -> str | None:
        """What would need a packed replay of `shared_kv`, whose loops read what the tokens before wrote last, one token
        after the other."""
        if cell.rollout.skipped_kv != "shared_kv":
            return None
        has_none = f"rollout={cell.rollout.name} with shared K/V has no packed replay"
        if self.name == "replay":
            return f"logprob=replay: {has_none} to differentiate; use logprob=hybrid with logprob.replay=engine"
        if self.name == "hybrid" and self.replay == "packed":
            return f"logprob.replay=packed: {has_none}; use logprob.replay=engine"
        if self.old == "replay" and self.replay != "engine":
            return f"logprob.old=replay: {has_none}; use logprob.replay=engine"
        kl_coef: float = getattr(cell.algorithm, "kl_coef", 0.0)
        if self.name == "hybrid" and kl_coef:
            return (
                f"algorithm.kl_coef={kl_coef:g}: the reference policy's log-probs are those of a packed replay, and "
                f"{has_none}; use 0, or logprob=dense"
            )
        if getattr(cell.experiment, "grad_bias_every", 0.0):
            return (
                "experiment.grad_bias_every: grad_bias is taken against the gradient of the packed replay, and "
                f"{has_none}; use 0"
            )
        return None
