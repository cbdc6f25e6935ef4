"""The correctness of a checkpoint schedule: the same learning with and without it, and in fp64.

`grad_sched`: gradient under the schedule against `checkpoint=none` in the same precision.
`grad_round`: either gradient against fp64 of the same estimator from the same (rounded) weights.
After two AdamW updates the parameters' change and both moments are compared too, since an error of a moment shows in
the second update only; the parameters' change also against fp64, since AdamW divides a gradient by its own size and so
makes large changes of the rounding errors of small elements, under any schedule.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from scalerlt.learner.batching import TrainingResponse
from scalerlt.learner.optimizer import OptimizerSettings
from scalerlt.learner.step import ActorUpdate
from scalerlt.measure.gradients import ErrorFigures, ErrorReport, Named, Tolerance, compare, norm

TWO_UPDATES = OptimizerSettings(name="adamw", learning_rate=1e-3, eps=1e-5, weight_decay=0.1)
"""The optimizer of the comparison, whatever the cell's: a small learning rate would hide every error of an update
below an absolute tolerance."""


@dataclass(frozen=True, kw_only=True)
class Learning:
    """What two updates of one learner left.

    Attributes:
        loss: of the first update, at the initial weights.
        gradients: of the first update.
        grad_norms: of both.
        changes: final less initial weights (the masters').
        moments: of the optimizer, by kind and parameter.
        statistics: of the first update, at the initial weights; see `BackwardResult`.
    """

    loss: float
    gradients: dict[str, Tensor | None]
    grad_norms: tuple[float, float]
    changes: dict[str, Tensor]
    moments: dict[str, dict[str, Tensor]]
    statistics: dict[str, float]


@dataclass(frozen=True, kw_only=True)
class Tolerances:
    """What `elementwise` errors are measured in; None where no gate is declared."""

    gradient: Tolerance | None
    parameter_change: Tolerance | None
    moments: Tolerance | None


@dataclass(frozen=True, kw_only=True)
class ScheduleErrors:
    """How far a schedule's learning is from that without checkpoints, and both from fp64.

    Attributes:
        loss_abs: |loss - loss of none|.
        gradient: `grad_sched`.
        rounding: `grad_round` of the schedule.
        rounding_floor: `grad_round` of none.
        parameter_change, exp_avg, exp_avg_sq: after two updates, against none.
        change_rounding: the parameter change of the schedule against that of fp64.
        change_rounding_floor: that of none.
        update_norm: of the schedule's parameter change.
    """

    loss_abs: float
    gradient: ErrorReport
    rounding: ErrorReport
    rounding_floor: ErrorReport
    parameter_change: ErrorFigures
    exp_avg: ErrorFigures
    exp_avg_sq: ErrorFigures
    change_rounding: ErrorFigures
    change_rounding_floor: ErrorFigures
    update_norm: float


def parameter_group(name: str) -> str:
    """The group of a parameter in reports: embedding, attention, mlp, norm, head, or exit_gate."""
    if "embed_tokens" in name:
        return "embedding"
    if "lm_head" in name:
        return "head"
    if "early_exit_gate" in name:
        return "exit_gate"
    if "norm" in name:
        return "norm"
    return "attention" if ".self_attn." in name else "mlp"


def schedule_errors(
    under_schedule: Learning,
    without: Learning,
    fp64: Learning,
    tolerances: Tolerances,
) -> ScheduleErrors:
    """Compare what `learn_twice` left under a schedule, without one, and without one in fp64 from the same weights."""
    return ScheduleErrors(
        loss_abs=abs(under_schedule.loss - without.loss),
        gradient=_compare(under_schedule.gradients, without.gradients, tolerances.gradient),
        rounding=_compare(under_schedule.gradients, fp64.gradients),
        rounding_floor=_compare(without.gradients, fp64.gradients),
        parameter_change=_compare(under_schedule.changes, without.changes, tolerances.parameter_change).total,
        exp_avg=_compare(under_schedule.moments["exp_avg"], without.moments["exp_avg"], tolerances.moments).total,
        exp_avg_sq=_compare(
            under_schedule.moments["exp_avg_sq"], without.moments["exp_avg_sq"], tolerances.moments
        ).total,
        change_rounding=_compare(under_schedule.changes, fp64.changes, tolerances.parameter_change).total,
        change_rounding_floor=_compare(without.changes, fp64.changes, tolerances.parameter_change).total,
        update_norm=norm(under_schedule.changes),
    )


def learn_twice(learner: ActorUpdate, minibatches: Sequence[Sequence[TrainingResponse]]) -> Learning:
    """Two updates, on the first two minibatches, or twice on the only one; the optimizer must not clip."""
    optimizer = learner.optimizer
    initial = {name: master.detach().clone() for name, master in optimizer.masters.items()}
    first = learner.backward(minibatches[0])
    gradients = optimizer.gradients()
    first_norm = optimizer.step()
    second_norm = learner.step(minibatches[1 % len(minibatches)]).grad_norm
    return Learning(
        loss=first.loss,
        gradients=gradients,
        grad_norms=(first_norm, second_norm),
        changes={name: master.detach() - initial[name] for name, master in optimizer.masters.items()},
        moments=optimizer.moments(),
        statistics=first.statistics,
    )


def first_gradient(
    learner: ActorUpdate, minibatch: Sequence[TrainingResponse]
) -> tuple[float, dict[str, Tensor | None]]:
    """The loss and its gradient at the present weights; the gradient stays in the optimizer, no update is made."""
    loss = learner.backward(minibatch).loss
    return loss, learner.optimizer.gradients()


def _compare(a: Named, b: Named, tolerance: Tolerance | None = None) -> ErrorReport:
    return compare(a, b, group=parameter_group, tolerance=tolerance)
