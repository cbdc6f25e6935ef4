"""`experiment=actor_update`: one learner step: its time, its memory, and the error of its gradient.

A learner step takes all responses of the recorded rollouts, `batch.minibatch_responses` of them per optimizer step.
"""

import copy
from collections.abc import Callable, Sequence

import torch

from scalerlt.experiments.building import (
    build_learner,
    build_model,
    checkpoint_schedule,
    device_of,
    optimizer_settings,
    readout_of,
)
from scalerlt.experiments.calibrating import calibrate_auto, chosen_for, record_choices
from scalerlt.experiments.gradient_bias import compare_policy
from scalerlt.experiments.inputs import repeats
from scalerlt.experiments.io_metrics import TRAFFIC_METHOD, record_bandwidth, record_share, record_traffic
from scalerlt.experiments.learning import (
    advantages_of,
    needs_reference,
    training_responses,
    with_old_logprobs,
    with_reference_logprobs,
)
from scalerlt.experiments.memory_metrics import record_memory, record_parts
from scalerlt.experiments.recorded import recorded_samples
from scalerlt.experiments.replaying import EngineReplay, engine_replay, replays_before_updates, with_replay_logprobs
from scalerlt.experiments.sharing_metrics import record_sharing
from scalerlt.learner.batching import TrainingResponse, minibatches_of
from scalerlt.learner.bias import GradientSpread, gradient_spread
from scalerlt.learner.checkpoint import NoCheckpoint
from scalerlt.learner.checkpoint.schedule import Schedule
from scalerlt.learner.comparison import (
    TWO_UPDATES,
    Learning,
    ScheduleErrors,
    Tolerances,
    learn_twice,
    schedule_errors,
)
from scalerlt.learner.layout import LayoutChoice
from scalerlt.learner.readout import FULL
from scalerlt.learner.step import ActorUpdate, OnPhase, StepResult, no_phase
from scalerlt.measure.breakdown import Standing, break_down
from scalerlt.measure.clock import PhaseTimer, synchronizer, timed
from scalerlt.measure.gradients import ErrorFigures, ErrorReport, Tolerance
from scalerlt.measure.memory import SAVED_METHOD, measure_memory
from scalerlt.numerics.precision import matrix_path, number_format
from scalerlt.records.recorder import Recorder
from scalerlt.records.samples import Sample
from scalerlt.schema import Cell
from scalerlt.schema.experiment.actor_update import ActorUpdate as ActorUpdateExperiment

PHASES = ("forward", "backward", "optimizer")
REPLAY = "replay"
LearnerStep = Callable[[OnPhase], list[StepResult]]


def run(cell: Cell, recorder: Recorder) -> None:
    """Measure one learner step of the cell."""
    with recorder.phase("load"):
        samples = recorded_samples(cell)
        responses = _responses(cell, recorder, samples)
        minibatches = minibatches_of(responses, cell.batch.minibatch_responses)
        prompt_groups: dict[int, list[TrainingResponse]] = {}
        for sample, response in zip(samples, responses, strict=True):
            prompt_groups.setdefault(sample.prompt_group, []).append(response)
        schedule = checkpoint_schedule(cell)
    _measure_cost(cell, recorder, minibatches, schedule)
    schedule = chosen_for(cell, schedule, minibatches)
    with recorder.measuring("reference"):
        compared = _compared(cell, recorder, list(prompt_groups.values()))
        minibatches = minibatches_of([r for group in compared for r in group], cell.batch.minibatch_responses)
        learning, errors, fp64 = _compare_schedule(cell, minibatches, schedule)
        no_replay = cell.rollout.skipped_kv == "shared_kv"
        spread, bias = (gradient_spread(fp64, compared), None) if no_replay else compare_policy(cell, fp64, compared)
    _record_errors(cell, recorder, learning, errors)
    if no_replay:
        for name in ("grad_bias_relative_l2", "grad_bias_max_abs", "grad_bias_cosine"):
            recorder.unsupported(name, f"rollout={cell.rollout.name} with shared K/V has no packed replay")
    else:
        _record_bias(recorder, bias)
    _record_spread(recorder, spread)


def _compared(
    cell: Cell, recorder: Recorder, prompt_groups: list[list[TrainingResponse]]
) -> list[list[TrainingResponse]]:
    """The responses that errors are taken over, by prompt group."""
    count = cell.experiment.reference_responses if isinstance(cell.experiment, ActorUpdateExperiment) else None
    if count is None or count >= max(map(len, prompt_groups)):
        return prompt_groups
    recorder.note(f"loss and errors are those of the first {count} responses of each prompt group")
    return [group[:count] for group in prompt_groups]


def _responses(cell: Cell, recorder: Recorder, samples: list[Sample]) -> list[TrainingResponse]:
    """What is learnt; old and reference log-probs and those of a replay by the engine, all of it in one batch, where
    they are wanted, are of the initial weights."""
    advantages = advantages_of(cell, [s.reward for s in samples], [s.prompt_group for s in samples])
    if advantages is not None:
        recorder.metric(
            "frac_reward_zero_std",
            advantages.frac_reward_zero_std,
            method="share of prompt groups whose rewards are all equal; their advantages are 0",
        )
    responses = with_replay_logprobs(cell, training_responses(samples, advantages), None)
    if cell.logprob.old == "rollout" and not needs_reference(cell) and not replays_before_updates(cell):
        return responses
    policy = build_model(cell, number_format(cell.precision.name).dtype)
    engine = engine_replay(cell, policy)
    responses = with_replay_logprobs(cell, with_old_logprobs(cell, policy, responses, engine), engine)
    return with_reference_logprobs(cell, policy, responses)


def _measure_cost(
    cell: Cell,
    recorder: Recorder,
    minibatches: list[list[TrainingResponse]],
    schedule: Schedule | LayoutChoice,
) -> None:
    """Time and memory; what it builds is gone when it returns."""
    with recorder.phase("load"):
        model = build_model(cell, number_format(cell.precision.name).dtype)
        learner = build_learner(cell, model, schedule=schedule, settings=optimizer_settings(cell))
        engine = engine_replay(cell, model) if replays_before_updates(cell) else None
        calibrate_auto(cell, recorder, learner, schedule, max(minibatches, key=_rows))
    record_choices(cell, recorder, schedule, minibatches)

    def learner_step(on_phase: OnPhase) -> list[StepResult]:
        if engine is not None:
            engine.take_bytes()
        return [learner.step(_replayed(cell, minibatch, engine, on_phase), on_phase) for minibatch in minibatches]

    results, seconds = _measure_time(cell, recorder, learner_step, (*([REPLAY] if engine else []), *PHASES))
    with recorder.measuring("memory"):
        report = measure_memory(learner_step, device=device_of(cell), parameters=model.parameters())
        parts = break_down(learner_step, device=device_of(cell), standing=_standing(learner))
    recorder.metric("saved_bytes", report.saved_bytes, "B", method=SAVED_METHOD)
    record_memory(recorder, report)
    parameter_bytes = sum(parameter.nbytes for parameter in model.parameters())
    optimizer_bytes = learner.optimizer.state_bytes()
    record_parts(recorder, report, parts, standing_bytes=parameter_bytes + optimizer_bytes)
    native = matrix_path(cell.precision.name, device_of(cell))
    recorder.metric("matrix_path", native, method="torch multiplies matrices of this format on this device")
    recorder.metric("parameter_bytes", parameter_bytes, "B")
    recorder.metric("optimizer_bytes", optimizer_bytes, "B", method="moments and fp32 master weights")
    record_sharing(cell, recorder, minibatches, results)
    traffic = [learner.traffic(result) for result in results]
    record_traffic(recorder, "trained", traffic, sum(result.trained_tokens for result in results))
    bandwidth = record_bandwidth(recorder, device_of(cell))
    moved = sum(one.total for one in traffic)
    if engine is not None:
        replayed = engine.take_bytes()  # of the last step, which are those of every step
        recorder.metric("replay_bytes_moved", replayed, "B", method=TRAFFIC_METHOD)
        moved += replayed
    record_share(recorder, moved, seconds, bandwidth, scope="actor_update")


def _replayed(
    cell: Cell, minibatch: list[TrainingResponse], engine: EngineReplay | None, on_phase: OnPhase
) -> list[TrainingResponse]:
    """The responses of an optimizer step, replayed under the weights before it where an engine does that."""
    if engine is None:
        return minibatch
    with on_phase(REPLAY):
        return with_replay_logprobs(cell, minibatch, engine)


def _rows(minibatch: Sequence[TrainingResponse]) -> int:
    return sum(response.rows for response in minibatch if any(response.trained))


def _standing(learner: ActorUpdate) -> Standing:
    model, optimizer = learner.model, learner.optimizer
    moments = [moment for by_name in optimizer.moments().values() for moment in by_name.values()]
    return Standing(
        weights=tuple(model.parameters()),
        optimizer=(*moments, *optimizer.masters.values()),
        heads=(model.lm_head.weight,),
    )


def _measure_time(
    cell: Cell, recorder: Recorder, learner_step: LearnerStep, parts: Sequence[str]
) -> tuple[list[StepResult], list[float]]:
    """What the last repeat did, and the seconds of each; the seconds of each phase of `parts` are recorded."""
    synchronize = synchronizer(device_of(cell))
    timer = PhaseTimer(synchronize)
    phases: list[dict[str, float]] = []
    results: list[StepResult] = []

    def timed_step() -> None:
        results[:] = learner_step(timer.phase)
        phases.append(timer.take())

    with recorder.measuring("warm_up"):
        warm_up = timed(lambda: learner_step(no_phase), synchronize=synchronize, repeats=repeats(cell).warmup)
    with recorder.measuring("time"):
        seconds = timed(timed_step, synchronize=synchronize, repeats=repeats(cell).repeats)

    trained = sum(result.trained_tokens for result in results)
    recorder.metric("warm_up_steps", len(warm_up))
    if warm_up:
        recorder.repeated("warm_up_seconds", warm_up, "s", scope="actor_update")
    recorder.repeated("actor_update_seconds", seconds, "s", scope="actor_update")
    for phase in parts:
        recorder.repeated(f"{phase}_seconds", [taken[phase] for taken in phases], "s", scope=f"actor_update.{phase}")
    rates = [trained / second for second in seconds]
    recorder.repeated("trained_tokens_per_second", rates, "token/s", scope="actor_update")
    recorder.metric("trained_tokens", trained, "token", method="response tokens of one learner step, no padding")
    recorder.metric("prompt_tokens", sum(result.prompt_tokens for result in results), "token")
    recorder.metric("padded_tokens", sum(result.padded_tokens for result in results), "token")
    recorder.metric("microbatches", sum(result.microbatches for result in results))
    recorder.metric("optimizer_steps", len(results))
    if not all(result.updated for result in results):
        recorder.note("an optimizer step of the time pass was left out: its gradient was not finite, or it had none")
    return results, seconds


def _compare_schedule(
    cell: Cell, minibatches: list[list[TrainingResponse]], schedule: Schedule | LayoutChoice
) -> tuple[Learning, ScheduleErrors, ActorUpdate]:
    """The errors of the cell's schedule, and the fp64 learner at the initial weights."""
    initial = build_model(cell, number_format(cell.precision.name).dtype)
    under_schedule, without = (
        learn_twice(
            build_learner(cell, copy.deepcopy(initial), schedule=chosen, settings=TWO_UPDATES, readout=readout),
            minibatches,
        )
        for chosen, readout in ((schedule, readout_of(cell)), (NoCheckpoint(), FULL))
    )
    wide = initial.to(torch.float64)
    fp64 = build_learner(cell, wide, schedule=NoCheckpoint(), settings=TWO_UPDATES, readout=FULL)
    learning = learn_twice(
        build_learner(cell, copy.deepcopy(wide), schedule=NoCheckpoint(), settings=TWO_UPDATES, readout=FULL),
        minibatches,
    )
    return under_schedule, schedule_errors(under_schedule, without, learning, _tolerances(cell)), fp64


def _tolerances(cell: Cell) -> Tolerances:
    gate = getattr(cell.gates, cell.precision.name, None)
    if gate is None:
        return Tolerances(gradient=None, parameter_change=None, moments=None)
    return Tolerances(
        gradient=Tolerance(gate.gradient.abs, gate.gradient.rel),
        parameter_change=Tolerance(gate.parameter_change.abs, gate.parameter_change.rel),
        moments=None if gate.moments is None else Tolerance(gate.moments.abs, gate.moments.rel),
    )


def _record_errors(cell: Cell, recorder: Recorder, learning: Learning, errors: ScheduleErrors) -> None:
    full = "" if cell.checkpoint.readout == "full" else " with readout=full"
    sched = f"against checkpoint=none{full} in the same precision"
    rounding = "against fp64 of the same estimator from the same weights"
    tolerances = _tolerances(cell)
    for name, value in learning.statistics.items():
        recorder.metric(name, value, method="at the initial weights, first optimizer step")

    def elementwise(name: str, figures: ErrorFigures, tolerance: Tolerance | None) -> None:
        if figures.elementwise is None or tolerance is None:
            recorder.not_measured(name, f"no tolerance is declared for precision={cell.precision.name}")
        else:
            recorder.metric(name, figures.elementwise, method=f"abs {tolerance.abs:g} rel {tolerance.rel:g}")

    recorder.metric("loss", learning.loss, method="at the initial weights, first optimizer step")
    recorder.metric("grad_norm", learning.grad_norms[0], method="at the initial weights, first optimizer step")
    if not all(learning.grad_norms):
        recorder.note("a gradient of these rollouts is zero: the two compared updates are weight decay alone")
    recorder.metric("loss_sched_abs", errors.loss_abs, method=sched)
    gradient = errors.gradient.total
    recorder.metric("grad_sched_relative_l2", gradient.relative_l2, method=sched)
    recorder.metric("grad_sched_max_abs", gradient.max_abs, method=sched)
    recorder.metric("grad_sched_cosine", gradient.cosine, method=sched)
    recorder.metric("grad_sched_mismatches", gradient.mismatches, method=sched)
    elementwise("grad_sched_elementwise", gradient, tolerances.gradient)
    for group, figures in errors.gradient.groups.items():
        recorder.metric(f"grad_sched_relative_l2/{group}", figures.relative_l2, method=sched)

    recorder.metric("grad_round_relative_l2", errors.rounding.total.relative_l2, method=rounding)
    recorder.metric("grad_round_max_abs", errors.rounding.total.max_abs, method=rounding)
    recorder.metric("grad_round_cosine", errors.rounding.total.cosine, method=rounding)
    recorder.metric("grad_round_floor_relative_l2", errors.rounding_floor.total.relative_l2, method=rounding)
    for group, figures in errors.rounding.groups.items():
        recorder.metric(f"grad_round_relative_l2/{group}", figures.relative_l2, method=rounding)

    elementwise("update_sched_parameters_elementwise", errors.parameter_change, tolerances.parameter_change)
    elementwise("update_round_parameters_elementwise", errors.change_rounding, tolerances.parameter_change)
    elementwise("update_round_floor_parameters_elementwise", errors.change_rounding_floor, tolerances.parameter_change)
    elementwise("update_sched_exp_avg_elementwise", errors.exp_avg, tolerances.moments)
    elementwise("update_sched_exp_avg_sq_elementwise", errors.exp_avg_sq, tolerances.moments)
    recorder.metric(
        "update_norm",
        errors.update_norm,
        method=f"of the change of all weights by two AdamW updates, lr {TWO_UPDATES.learning_rate:g}, "
        f"eps {TWO_UPDATES.eps:g}, weight decay {TWO_UPDATES.weight_decay:g}",
    )


def _record_bias(recorder: Recorder, bias: ErrorReport | None) -> None:
    if bias is None:
        method = "0 by construction: the rollouts are dense, so every kind of log-probs is the policy that generated"
        recorder.metric("grad_bias_relative_l2", 0.0, method=method)
        recorder.metric("grad_bias_max_abs", 0.0, method=method)
        recorder.metric("grad_bias_cosine", 1.0, method=method)
    else:
        method = (
            "fp64 gradient of the estimator over all responses, against the fp64 policy gradient through the full "
            "replay of the recorded tokens and depths, same weights and advantages"
        )
        recorder.metric("grad_bias_relative_l2", bias.total.relative_l2, method=method)
        recorder.metric("grad_bias_max_abs", bias.total.max_abs, method=method)
        recorder.metric("grad_bias_cosine", bias.total.cosine, method=method)
        for group, figures in bias.groups.items():
            recorder.metric(f"grad_bias_relative_l2/{group}", figures.relative_l2, method=method)


def _record_spread(recorder: Recorder, spread: GradientSpread) -> None:
    if spread.prompt_groups < 2:
        recorder.not_measured("grad_sd_relative", "one prompt group: there is nothing to resample")
    elif spread.norm == 0:
        recorder.not_measured("grad_sd_relative", "the gradient is zero, and the figure is relative to its norm")
    else:
        recorder.metric(
            "grad_sd_relative",
            spread.standard_deviation / spread.norm,
            n=spread.prompt_groups,
            method="root of the expected squared distance of the fp64 estimator's gradient to its mean, over its norm; "
            "bootstrap over the prompt groups of the recorded rollouts, to first order, in closed form",
        )
