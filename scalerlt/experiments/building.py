"""From a cell's configuration to the model and the learner that it asks for."""

from collections.abc import Callable
from dataclasses import fields, replace
from pkgutil import resolve_name
from typing import Any

import torch

from scalerlt.errors import UserError
from scalerlt.experiments.inputs import differences, model_config, weights_path
from scalerlt.learner.checkpoint.schedule import Schedule
from scalerlt.learner.correction import Correction
from scalerlt.learner.grpo import Grpo as GrpoObjective
from scalerlt.learner.layout import LayoutChoice
from scalerlt.learner.logprobs import LogprobKind, ReplayKV
from scalerlt.learner.objective import Objective
from scalerlt.learner.optimizer import ActorOptimizer, OptimizerSettings, freeze_exit_gate
from scalerlt.learner.readout import FULL, Readout, TiledReadout
from scalerlt.learner.rltt import Rltt as RlttObjective
from scalerlt.learner.step import ActorUpdate, PolicyGradient
from scalerlt.models.checkpoint import build, load_hf
from scalerlt.models.ouro import OuroForCausalLM
from scalerlt.rollout.engine import OnPhase as RolloutPhase
from scalerlt.rollout.engine import RolloutEngine
from scalerlt.rollout.exit_rule import ExitRule
from scalerlt.rollout.request import Request
from scalerlt.rollout.vllm.offline import OfflineSettings
from scalerlt.schema import Cell
from scalerlt.schema.algorithm.grpo import Grpo
from scalerlt.schema.algorithm.rltt import Rltt
from scalerlt.schema.checkpoint import Checkpoint
from scalerlt.schema.correction import NoCorrection
from scalerlt.schema.optimizer.adamw import AdamW
from scalerlt.schema.optimizer.sgd import Sgd
from scalerlt.schema.rollout.delayed_exit import DelayedExit
from scalerlt.schema.rollout.last_exited import LastExited


def device_of(cell: Cell) -> torch.device:
    """Where the cell runs."""
    return torch.device(cell.device.type)


def build_model(cell: Cell, dtype: torch.dtype) -> OuroForCausalLM:
    """The cell's model on its device: its checkpoint, or random weights from `init_seed`.

    Raises:
        UserError: the checkpoint is broken, or is not of the shape that the cell was planned with.
    """
    config, path = model_config(cell), weights_path(cell)
    if path is None:
        return build(config, dtype=dtype, device=device_of(cell), seed=cell.model.init_seed)
    model = load_hf(path, dtype, device_of(cell))
    if different := differences(model.config, config):
        raise UserError(f"model.weights={path} is not model={cell.model.name}: {'; '.join(different)}")
    return model


def build_learner(
    cell: Cell,
    model: OuroForCausalLM,
    *,
    schedule: Schedule | LayoutChoice,
    settings: OptimizerSettings,
    objective: Objective | None = None,
    logprob: LogprobKind | None = None,
    readout: Readout | None = None,
) -> ActorUpdate:
    """A learner of `model`, whose exit gate it freezes, with the cell's batch sizes, and with its objective, kind of
    log-probs and readout unless others are given."""
    freeze_exit_gate(model)
    return ActorUpdate(
        model,
        ActorOptimizer(model, settings),
        schedule=schedule,
        reduction=cell.algorithm.reduction,
        temperature=cell.rollout.temperature,
        microbatch_tokens=cell.batch.microbatch_tokens,
        objective=objective or objective_of(cell),
        logprob=logprob or logprob_kind(cell),
        kv=replay_kv(cell),
        readout=readout or readout_of(cell),
        correction=correction_of(cell) if objective is None else None,
    )


def objective_of(cell: Cell) -> Objective:
    """The cell's objective."""
    match cell.algorithm:
        case Grpo() as chosen:
            return GrpoObjective(clip_low=chosen.clip_low, clip_high=chosen.clip_high, kl_coef=chosen.kl_coef)
        case Rltt() as chosen:
            alpha = chosen.alpha if chosen.credit == "progressive" else None
            return RlttObjective(alpha=alpha, kl_coef=chosen.kl_coef)
    if cell.algorithm.name != "policy_gradient":
        raise UserError(
            f"algorithm={cell.algorithm.name} is not known to the learner; use policy_gradient, grpo or rltt"
        )
    return PolicyGradient()


def correction_of(cell: Cell) -> Correction | None:
    """The cell's correction; None: none."""
    if isinstance(cell.correction, NoCorrection):
        return None
    own = {field.name: getattr(cell.correction, field.name) for field in fields(cell.correction)}
    correction: Correction = resolve_name(cell.correction.target)(
        **{name: value for name, value in own.items() if name not in ("name", "target")}
    )
    return correction


def logprob_kind(cell: Cell) -> LogprobKind:
    """How the cell's learner evaluates sampled tokens."""
    match cell.logprob.name:
        case "dense" | "replay" | "hybrid" as kind:
            return kind
    raise UserError(f"logprob={cell.logprob.name} is not known to the learner; use dense, replay or hybrid")


def replay_kv(cell: Cell) -> ReplayKV:
    """What the learner's packed replay takes for the K/V of loops that a token left out.

    Of `shared_kv` there is none: nothing that a learner runs for such a cell is a packed replay (`Logprob.supports`).
    """
    return "deferred_fill" if cell.rollout.skipped_kv == "deferred_fill" else "last_exited"


def readout_of(cell: Cell) -> Readout:
    """How the cell's learner makes log-probs of hidden states."""
    return FULL if cell.checkpoint.readout == "full" else TiledReadout(cell.checkpoint.readout_tile)


def checkpoint_schedule(cell: Cell) -> Schedule | LayoutChoice:
    """The cell's activation checkpoint schedule: over whole sequences, or one that shares prefixes, or the choice among
    them.

    It is made with what its own schema declares beside the fields that all schedules have.
    """
    common = {field.name for field in fields(Checkpoint)}
    own = {field.name: getattr(cell.checkpoint, field.name) for field in fields(cell.checkpoint)}
    options = {name: value for name, value in own.items() if name not in common}
    schedule: Schedule | LayoutChoice = resolve_name(cell.checkpoint.target)(**options)
    return schedule


def build_engine(
    cell: Cell,
    model: OuroForCausalLM,
    *,
    on_phase: RolloutPhase | None = None,
    on_first_token: Callable[[Request], None] | None = None,
    full_depth: bool = False,
    concurrency: int | None = None,
) -> RolloutEngine:
    """The cell's rollout engine over `model`.

    Args:
        on_phase, on_first_token: as `NativeEngine` takes them.
        full_depth: no token stops early, and each loop has K/V of its own.
        concurrency: `batch.rollout_concurrency` by default.
    """
    match cell.rollout.engine.name:
        case "vllm":
            options = vllm_options(cell)
        case "hf":
            options = {}
        case _:
            options = native_options(cell, full_depth=full_depth)
    engine: RolloutEngine = resolve_name(cell.rollout.engine.target)(
        model,
        concurrency=concurrency or cell.batch.rollout_concurrency,
        on_phase=on_phase,
        on_first_token=on_first_token,
        **options,
    )
    return engine


def native_options(cell: Cell, *, full_depth: bool) -> dict[str, Any]:
    """What `NativeEngine` takes of the cell's configuration."""
    return {
        "exit_rule": None if full_depth else exit_rule(cell),
        "kv": "last_exited" if full_depth else cell.rollout.skipped_kv,
        "refill": cell.rollout.engine.refill,
        "shared_prefill": cell.rollout.engine.shared_prefill,
        "deterministic": cell.rollout.deterministic,
        "kv_cache_tokens": cell.rollout.engine.kv_cache_tokens,
        "captured_graphs": cell.rollout.engine.captured_graphs,
    }


def vllm_options(cell: Cell) -> dict[str, Any]:
    """What `VllmEngine` takes of it; it has full depth alone."""
    chosen = cell.rollout.engine
    settings = OfflineSettings(
        prefix_caching=chosen.shared_prefill,
        kv_cache_tokens=chosen.kv_cache_tokens,
        max_model_len=chosen.max_model_len,
        gpu_memory_utilization=chosen.gpu_memory_utilization,
        enforce_eager=chosen.enforce_eager,
        sleep=chosen.sleep,
    )
    return {"settings": settings}


def exit_rule(cell: Cell) -> ExitRule | None:
    """When the cell's decode tokens stop; None: never early."""
    match cell.rollout:
        case LastExited() as chosen:
            delay = 1 if isinstance(chosen, DelayedExit) else 0
            return ExitRule(chosen.exit_threshold, chosen.min_loops, chosen.max_loops, delay)
    return None


def optimizer_settings(cell: Cell) -> OptimizerSettings:
    """The cell's optimizer."""
    chosen = cell.optimizer
    common = OptimizerSettings(
        name="sgd",
        learning_rate=chosen.learning_rate,
        weight_decay=chosen.weight_decay,
        max_grad_norm=chosen.max_grad_norm,
    )
    match chosen:
        case AdamW():
            return replace(common, name="adamw", betas=(chosen.beta1, chosen.beta2), eps=chosen.eps)
        case Sgd():
            return replace(common, momentum=chosen.momentum)
    raise UserError(f"optimizer={chosen.name} is not known to the learner; use adamw or sgd")
