"""Saving a run's policy and state, and taking a run up where an earlier attempt had saved it."""

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from scalerlt.learner.auto import AutoLayout
from scalerlt.learner.training_state import SavedPolicy, prune, save, whole
from scalerlt.models.checkpoint import save_hf
from scalerlt.records.store import CellDirectory

if TYPE_CHECKING:
    from scalerlt.experiments.gsm8k_reward import Training

SCORE = "accuracy"


def save_policy(training: "Training", keep_last: int | None = None) -> SavedPolicy:
    """Write a checkpoint of the run as it stands, and delete those that need not be kept.

    Args:
        keep_last: how many of the newest are kept; None: as many as the experiment says.
    """
    policy, step = training.policy, training.step

    def write(path: Path) -> None:
        save_hf(policy.model, path)
        policy.tokenizer.save(path)

    state = {
        "optimizer": policy.learner.optimizer.state(),
        "random": {"torch": torch.get_rng_state()},
        "totals": asdict(training.totals),
        "older": policy.served.older(),
        "auto": policy.schedule.state() if isinstance(policy.schedule, AutoLayout) else {},
        "accuracies": {str(at): value for at, value in training.accuracies.items()},
        "full_depth": {str(at): value for at, value in training.full_depth.items()},
    }
    facts = {
        SCORE: training.accuracies.get(step),
        "weight_version": policy.served.newest,
        "data_cursor": step * training.cell.batch.prompts_per_step,
    }
    directory = training.recorder.attempt / "checkpoints"
    directory.mkdir(exist_ok=True)
    saved = save(directory, step, policy=write, state=state, facts=facts)
    if keep_last is None:
        keep_last = training.experiment.keep_last
    prune(directory, keep_last=keep_last, keep_best=training.experiment.keep_best, score=SCORE)
    return saved


def take_up(training: "Training") -> None:
    """Go on from the newest whole checkpoint of this cell's earlier attempts, if there is one.

    Weights, with a lag also those of older versions, optimizer, counters, weight version and what `checkpoint=auto`
    chooses by are as they were, and every random number is a function of seed, step and index, so the next update is
    that of a run which was never interrupted.
    """
    attempts = {
        attempt.path / "checkpoints": attempt.number
        for attempt in CellDirectory(training.recorder.attempt.parent).attempts()
        if attempt.path != training.recorder.attempt
    }
    saved = whole(attempts)
    if not saved:
        return
    newest = saved[-1]
    state = newest.state()
    training.policy.restore(newest, state["optimizer"], state.get("older", {}))
    if isinstance(training.policy.schedule, AutoLayout):
        training.policy.schedule.restore(state["auto"])
    torch.set_rng_state(state["random"]["torch"])
    training.step = newest.step
    for name, value in state["totals"].items():
        setattr(training.totals, name, value)
    training.accuracies = {int(at): value for at, value in state["accuracies"].items()}
    training.full_depth = {int(at): value for at, value in state.get("full_depth", {}).items()}
    training.recorder.continues(attempts[newest.path.parent])
    training.recorder.note(f"goes on from step {newest.step} of attempt {attempts[newest.path.parent]}")
