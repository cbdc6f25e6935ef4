"""`gsm8k_reward` that can be stopped at a step of its own, or dies while it saves."""

import os
import signal
import time
from pathlib import Path
from typing import Any

from experiments.small_training import reward_of_the_text

from scalerlt.experiments import gsm8k_reward, resume
from scalerlt.experiments.answers import Answer
from scalerlt.experiments.gsm8k_reward import Training
from scalerlt.measure import bandwidth
from scalerlt.records.recorder import Recorder
from scalerlt.schema import Cell


def trains(cell: Cell, recorder: Recorder) -> None:
    """Where `pause` lies beside the cell, the second step is followed by nothing until the cell is asked to end."""
    step = Training.train_step

    def train_step(training: Training) -> None:
        step(training)
        while training.step == 2 and (recorder.attempt.parent / "pause").exists() and not recorder.preempted:
            time.sleep(0.02)

    Training.train_step = train_step  # type: ignore[method-assign]
    _run(cell, recorder)


def dies_while_saving(cell: Cell, recorder: Recorder) -> None:
    """The first attempt is killed when half of its third checkpoint is written."""
    save = resume.save_hf

    def save_hf(model: Any, path: Path) -> None:
        save(model, path)
        if recorder.attempt.name == "attempt-001" and "step-000003" in path.parent.name:
            weights = path / "model.safetensors"
            weights.write_bytes(weights.read_bytes()[:1000])
            os.kill(os.getpid(), signal.SIGKILL)

    resume.save_hf = save_hf
    _run(cell, recorder)


def _run(cell: Cell, recorder: Recorder) -> None:
    Answer.reward = property(reward_of_the_text)  # type: ignore[assignment]
    bandwidth.COPIED_BYTES = {"cpu": 2**16}
    gsm8k_reward.run(cell, recorder)
