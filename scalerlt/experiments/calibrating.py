"""`checkpoint=auto` in a cell: it is calibrated before anything is measured, and what it chose stands in the record."""

from collections import Counter
from collections.abc import Sequence

from scalerlt.experiments.building import logprob_kind
from scalerlt.experiments.learning import needs_reference
from scalerlt.learner.auto import AutoLayout, Choice
from scalerlt.learner.batching import TrainingResponse
from scalerlt.learner.calibration import calibrate, probes_of
from scalerlt.learner.checkpoint.schedule import Schedule
from scalerlt.learner.layout import LayoutChoice
from scalerlt.learner.step import ActorUpdate
from scalerlt.learner.work import BYTES_FEATURES, SECONDS_FEATURES
from scalerlt.records.recorder import Recorder
from scalerlt.schema import Cell

FIT = "least squares of relative errors, none below 0"
PREDICTED = "by the fitted cost model, from lengths alone"


def calibrate_auto(
    cell: Cell,
    recorder: Recorder,
    learner: ActorUpdate,
    schedule: Schedule | LayoutChoice,
    responses: Sequence[TrainingResponse],
) -> None:
    """Calibrate `checkpoint=auto`, unless it goes on by an earlier attempt's measurements, and record its cost model;
    nothing for other schedules.

    Args:
        learner: of the cell, without gradients; it stays as it is.
        schedule: the learner's.
        responses: of an optimizer step, or such as will be learnt.
    """
    if not isinstance(schedule, AutoLayout):
        return
    if schedule.costs is not None:
        reason = "the cost model is that of the attempt which this one continues"
        recorder.not_measured("auto_calibration_seconds", reason, "s")
    elif not any(any(response.trained) for response in responses):
        recorder.not_measured("auto_calibration_seconds", "no response has a token to learn", "s")
        return
    else:
        found = calibrate(learner, schedule, probes_of(responses, cell.batch.microbatch_tokens))
        recorder.metric(
            "auto_calibration_seconds", found.seconds, "s", method="in the load phase, outside all that is measured"
        )
        for name, error in found.errors.items():
            method = "largest relative error of predicted seconds at the probes that they were fitted to"
            recorder.metric(f"auto_fit_error/{name}", error, n=found.probes[name], method=method)
    assert schedule.costs is not None
    for metric, unit, coefficients, features in (
        ("auto_coefficient", "s", schedule.costs.seconds, SECONDS_FEATURES),
        ("auto_bytes_coefficient", "B", schedule.costs.bytes, BYTES_FEATURES),
    ):
        for name, values in coefficients.items():
            for feature, value in zip(features, values, strict=True):
                recorder.metric(f"{metric}/{name}/{feature}", value, unit, method=f"per {feature}; {FIT}")


def record_choices(
    cell: Cell,
    recorder: Recorder,
    schedule: Schedule | LayoutChoice,
    minibatches: Sequence[Sequence[TrainingResponse]],
) -> None:
    """Record what `checkpoint=auto` chooses for the optimizer steps of a learner step, and what it predicted for each
    candidate; nothing for other schedules."""
    if not isinstance(schedule, AutoLayout):
        return
    choices = _choices(cell, schedule, minibatches)
    _record_steps(recorder, Counter(choice.name for choice in choices), sum(not choice.fits for choice in choices))
    for name in schedule.candidates if choices else ():
        recorder.metric(
            f"auto_predicted_seconds/{name}",
            sum(choice.seconds[name] for choice in choices),
            "s",
            scope="actor_update",
            method=f"{PREDICTED}; forward and backward passes, without the optimizer",
        )
        if schedule.memory_budget is not None:
            most = max(choice.bytes[name] for choice in choices)
            recorder.metric(f"auto_predicted_bytes/{name}", most, "B", method=f"{PREDICTED}; live peak")


def chosen_for(
    cell: Cell, schedule: Schedule | LayoutChoice, minibatches: Sequence[Sequence[TrainingResponse]]
) -> Schedule | LayoutChoice:
    """What runs these optimizer steps: of `checkpoint=auto` the layout that it chooses for all of them, so that errors
    which are taken over fewer responses are those of what was timed; itself where it chooses several."""
    if not isinstance(schedule, AutoLayout):
        return schedule
    names = {choice.name for choice in _choices(cell, schedule, minibatches)}
    return schedule.candidates[names.pop()].layout if len(names) == 1 else schedule


def _choices(cell: Cell, auto: AutoLayout, minibatches: Sequence[Sequence[TrainingResponse]]) -> list[Choice]:
    learnt = [[response for response in minibatch if any(response.trained)] for minibatch in minibatches]
    return [auto.choose(one, cell.batch.microbatch_tokens) for one in learnt if one]


def chosen_steps(schedule: Schedule | LayoutChoice) -> Counter[str]:
    """Optimizer steps so far by what `checkpoint=auto` chose for them; none for other schedules."""
    return Counter(schedule.steps) if isinstance(schedule, AutoLayout) else Counter()


def record_chosen(recorder: Recorder, schedule: Schedule | LayoutChoice) -> None:
    """Record what `checkpoint=auto` chose for the optimizer steps of a run; nothing for other schedules."""
    if isinstance(schedule, AutoLayout):
        _record_steps(recorder, schedule.steps, schedule.over_budget)


def _record_steps(recorder: Recorder, steps: Counter[str], over_budget: int) -> None:
    if not steps:
        recorder.not_measured("auto_choice", "no response had a token to learn")
        return
    recorder.metric("auto_choice", " + ".join(name for name, _ in steps.most_common()), method="most frequent first")
    for name, count in steps.items():
        recorder.metric(f"auto_optimizer_steps/{name}", count)
    if over_budget:
        recorder.note(
            f"checkpoint=auto: no candidate was predicted to keep to checkpoint.memory_budget in {over_budget} of "
            f"{steps.total()} optimizer steps; the one of the least bytes was chosen"
        )


def expected_responses(cell: Cell, prompts: Sequence[Sequence[int]]) -> list[TrainingResponse]:
    """An optimizer step before anything was generated: prompts with responses as long as the rollout allows, run
    through all loops. Tokens and log-probs are made up, since no time depends on them."""
    full = cell.model.total_ut_steps if logprob_kind(cell) != "dense" else None
    count, length = cell.batch.minibatch_responses, cell.rollout.max_new_tokens
    return [
        TrainingResponse(
            prompt_tokens=list(prompts[index // cell.batch.group_size % len(prompts)]),
            response_tokens=[place % cell.model.vocab_size for place in range(length)],
            advantage=1.0,
            exit_depths=None if full is None else [full] * length,
            rollout_logprobs=[-1.0] * length,
            ref_logprobs=[-1.0] * length if needs_reference(cell) else None,
            replay_logprobs=None if cell.logprob.replay == "packed" else [-1.0] * length,
        )
        for index in range(count)
    ]
