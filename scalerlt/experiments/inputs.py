"""What a cell works on, from its configuration: problems and the model's shape. No torch."""

from pathlib import Path

from scalerlt.errors import UserError
from scalerlt.models.config import OuroConfig
from scalerlt.schema import Cell
from scalerlt.schema.experiment import RepeatedExperiment
from scalerlt.schema.fields import resolve_path
from scalerlt.schema.task import RecordedTask
from scalerlt.schema.task.arithmetic import Arithmetic
from scalerlt.schema.task.gsm8k import Gsm8k
from scalerlt.schema.task.random_rollouts import RandomRollouts
from scalerlt.tasks.arithmetic import arithmetic
from scalerlt.tasks.gsm8k import gsm8k
from scalerlt.tasks.problem import Problem


def repeats(cell: Cell) -> RepeatedExperiment:
    """How often the cell's experiment repeats its work."""
    if not isinstance(cell.experiment, RepeatedExperiment):
        raise UserError(f"experiment={cell.experiment.name} repeats nothing: it has no warmup and no repeats")
    return cell.experiment


def problems(cell: Cell, count: int | None, split: str | None = None, seed: int | None = None) -> list[Problem]:
    """The first `count` problems of the cell's task.

    Args:
        count: None for all that the split has (gsm8k).
        split: another than the task's own.
        seed: another order of the generated problems than `task.problem_seed` gives.

    Raises:
        UserError: the task has no problems, too few, or its files are broken.
    """
    match cell.task:
        case Arithmetic() as task:
            if count is None:
                raise UserError("task=arithmetic generates problems without end; say how many")
            order = task.problem_seed if seed is None else seed
            return arithmetic(split or task.split, task.difficulty, order, count)
        case Gsm8k(path=str(path)) as task:
            return gsm8k(resolve_path(path), split or task.split, count, task.allow_other_digest)
        case RandomRollouts():
            raise UserError(
                "task=random_rollouts has no problems to answer: it is what experiment=actor_update learns from; use "
                "arithmetic or gsm8k, or random_tokens for rollout_throughput"
            )
        case task:
            raise UserError(f"task={task.name} has no problems to answer; use arithmetic or gsm8k")


def examples(cell: Cell) -> list[Problem]:
    """The worked examples of the cell's prompt: the last problems of the training split's first hundred."""
    return problems(cell, 100, "train", seed=0)[100 - cell.prompt.shots :] if cell.prompt.shots else []


def model_config(cell: Cell) -> OuroConfig:
    """The shape of the cell's model."""
    return OuroConfig(**{name: getattr(cell.model, name) for name in OuroConfig.__dataclass_fields__})


_FREE = ("initializer_range", "max_position_embeddings", "bos_token_id", "eos_token_id", "pad_token_id")
"""Fields in which a checkpoint may differ from the configuration: they change no weight and no forward pass.

Positions are rotary: another most of them is another limit on lengths and nothing else.
"""


def differences(stored: OuroConfig, configured: OuroConfig) -> list[str]:
    """How a checkpoint's shape differs from the configured model's, one sentence per field."""
    pairs = {field: (getattr(stored, field), getattr(configured, field)) for field in OuroConfig.__dataclass_fields__}
    return [
        f"{field} is {there} there, and model.{field}={here}"
        for field, (there, here) in pairs.items()
        if there != here and field not in _FREE
    ]


def weights_path(cell: Cell) -> Path | None:
    """The directory of the cell's checkpoint, or None for random weights."""
    return None if cell.model.weights is None else resolve_path(cell.model.weights)


def rollouts_path(task: RecordedTask) -> Path:
    """The file of recorded rollouts."""
    return resolve_path(task.rollouts)
