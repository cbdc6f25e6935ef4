"""From a cell's configuration to the model and the learner that it asks for."""

from dataclasses import replace
from pkgutil import resolve_name

import torch

from scalerlt.errors import UserError
from scalerlt.experiments.inputs import differences, model_config, weights_path
from scalerlt.learner.optimizer import ActorOptimizer, OptimizerSettings, freeze_exit_gate
from scalerlt.learner.step import ActorUpdate
from scalerlt.models.checkpoint import build, load_hf
from scalerlt.models.ouro import OuroForCausalLM, Schedule
from scalerlt.schema import Cell
from scalerlt.schema.optimizer.adamw import AdamW
from scalerlt.schema.optimizer.sgd import Sgd


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
    cell: Cell, model: OuroForCausalLM, *, schedule: Schedule, settings: OptimizerSettings
) -> ActorUpdate:
    """A learner of `model`, whose exit gate it freezes, with the cell's objective and batch sizes."""
    freeze_exit_gate(model)
    return ActorUpdate(
        model,
        ActorOptimizer(model, settings),
        schedule=schedule,
        reduction=cell.algorithm.reduction,
        temperature=cell.rollout.temperature,
        microbatch_tokens=cell.batch.microbatch_tokens,
    )


def checkpoint_schedule(cell: Cell) -> Schedule:
    """The cell's activation checkpoint schedule."""
    schedule: Schedule = resolve_name(cell.checkpoint.target)()
    return schedule


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
