"""Config group `rollout`: how responses are generated."""

from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import Field

from scalerlt.schema.fields import Flag, IdentityDefault, NonNegativeFloat, NonNegativeInt, PositiveInt, Target
from scalerlt.schema.registry import config, config_group
from scalerlt.schema.rollout.other_engines import hf_fault, vllm_fault

if TYPE_CHECKING:
    from scalerlt.schema.cell import Cell
    from scalerlt.schema.machine import Machine


SkippedKV = Literal["last_exited", "deferred_fill", "shared_kv"]
"""As `scalerlt.rollout.recurrence` explains them."""


@config
class Engine:
    """The program that generates: `rollout/engine=native`, `vllm`, or `plain` and `hf`, with which they are compared.

    Attributes:
        shared_prefill: run a prompt once for those of its responses that are admitted together; of vLLM its prefix
            cache, which serves whole blocks of a prompt and all requests of one rollout.
        refill: whether a token that has stopped makes place for the next at once, beside tokens at other loops, or
            waits until all that started with it have stopped.
        kv_cache_tokens: positions that the K/V pool holds; null: as many as `batch.rollout_concurrency` requests need.
            Requests wait until all that they may need is free; vLLM takes them on and runs some again if need be.
        captured_graphs: whether our engine runs the loops of decode tokens as captured CUDA graphs, but for attention.
        max_model_len: positions that vLLM lets a sequence have; null: those of the model.
        gpu_memory_utilization: share of a GPU's memory that vLLM takes in all.
        enforce_eager: whether vLLM runs without compiling the model and without CUDA graphs; on a CPU it always does.
        sleep: whether vLLM gives back its memory on the GPU between two rollouts.
    """

    name: str
    target: Target = Field(alias="_target_")
    shared_prefill: Annotated[Flag, IdentityDefault(False)] = False
    refill: Annotated[Flag, IdentityDefault(True)] = True
    kv_cache_tokens: Annotated[PositiveInt | None, IdentityDefault(None)] = None
    captured_graphs: Annotated[Flag, IdentityDefault(False)] = False
    max_model_len: Annotated[PositiveInt | None, IdentityDefault(None)] = None
    gpu_memory_utilization: Annotated[float, Field(gt=0, le=1), IdentityDefault(0.9)] = 0.9
    enforce_eager: Annotated[Flag, IdentityDefault(False)] = False
    sleep: Annotated[Flag, IdentityDefault(False)] = False


@config
class Rollout:
    """What all rollout schedules share.

    Attributes:
        temperature: divides the logits; 0 is greedy.
        top_k: draw from so many most probable tokens; 0: from all.
        top_p: draw from the fewest most probable tokens whose probabilities sum to at least this; 1: from all.
        max_new_tokens: the longest response.
        ignore_eos: generate exactly `max_new_tokens` (fixed work) instead of stopping at the end of text.
        deterministic: the outcome of a request does not depend, to the bit, on the others, nor on concurrency; slower.
        precision: of the weights that a training run's engine is given, to which they are rounded when they are
            published; null: that of the learner.
    """

    name: str
    schedule: str
    engine: Engine
    temperature: NonNegativeFloat
    top_k: Annotated[NonNegativeInt, IdentityDefault(0)] = 0
    top_p: Annotated[float, Field(gt=0, le=1), IdentityDefault(1.0)] = 1.0
    max_new_tokens: PositiveInt
    ignore_eos: Flag
    deterministic: Annotated[Flag, IdentityDefault(False)] = False
    precision: Annotated[Literal["fp32", "bf16", "fp16"] | None, IdentityDefault(None)] = None

    @property
    def skipped_kv(self) -> SkippedKV:
        """What later tokens read in place of the K/V of loops that a token left out."""
        return "last_exited"

    def supports(self, cell: "Cell", machine: "Machine") -> str | None:
        """Why responses cannot be generated so in the cell, or None."""
        if (self.top_k or self.top_p < 1) and cell.experiment.name == "gsm8k_reward":
            return (
                f"rollout.top_k={self.top_k}, rollout.top_p={self.top_p:g}: the learner's log-probs are of the whole "
                "vocabulary; train with top_k=0 and top_p=1"
            )
        return self._engine_fault(cell) or self._precision_fault(cell)

    def _engine_fault(self, cell: "Cell") -> str | None:
        match self.engine.name:
            case "vllm":
                return vllm_fault(cell)
            case "hf":
                return hf_fault(cell)
            case "plain":
                return self._plain_fault(cell)
        if self.engine.captured_graphs and cell.device.type != "cuda":
            return f"rollout.engine.captured_graphs=true: device={cell.device.type} has no CUDA graphs; use false"
        return None

    def _plain_fault(self, cell: "Cell") -> str | None:
        """Why the engine that others are compared with does not serve."""
        if cell.experiment.name != "rollout_throughput":
            return (
                "rollout/engine=plain answers one request after the other, to be compared with: use "
                "experiment=rollout_throughput, or rollout/engine=native"
            )
        if self.schedule != "dense":
            return f"rollout/engine=plain runs every token at full depth; use rollout=dense instead of {self.name}"
        if self.deterministic or self.engine.shared_prefill:
            return (
                "rollout/engine=plain has no batch: use rollout.deterministic=false and "
                "rollout.engine.shared_prefill=false"
            )
        return None

    def _precision_fault(self, cell: "Cell") -> str | None:
        if self.precision is None:
            return None
        if cell.experiment.name != "gsm8k_reward":
            return (
                f"rollout.precision={self.precision}: experiment={cell.experiment.name} has one copy of the weights; "
                "use precision"
            )
        return None


@config_group("rollout")
class DenseRollout(Rollout):
    """Every token runs all K loops."""

    schedule: Literal["dense"]
