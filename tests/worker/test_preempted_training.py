"""A training run that a job had to end goes on as if nothing had been."""

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from experiments.small_training import SMALL
from schema.plain_config import plain_config
from worker.frozen import freeze_config
from worker.job_sweep import FakeSlurm, make_queue, once, records

from scalerlt.models.checkpoint import load_hf
from scalerlt.records.record import Verdict
from scalerlt.records.samples import read_samples
from scalerlt.worker.fork_server import ForkServer
from scalerlt.worker.slurm_job import work_through
from scalerlt.worker.supervisor import Supervisor

CHOSEN = SMALL | {
    "experiment.checkpoint_every": 0,
    "experiment.keep_last": 0,
    "experiment.keep_best": 0,
}
TIMES = ("_s/", "seconds", "per_second", "bandwidth")
"""Parts of the names of columns that time goes into."""


@pytest.fixture(scope="module")
def server() -> Iterator[ForkServer]:
    """In the place of the session's: it has what every optimizer's first step would else import, for seconds."""
    with ForkServer(["torch._dynamo", "worker.training_probes"]) as running:
        yield running


@pytest.fixture(scope="module")
def second_server(server: ForkServer) -> ForkServer:
    """The same: the jobs here have one slot."""
    return server


def freeze_training(sweep: Path, cell_id: str, probe: str, values: dict[str, Any], **options: str) -> Path:
    config = plain_config(CHOSEN | values, experiment="gsm8k_reward", algorithm="grpo", **options)
    config["experiment"]["_target_"] = f"worker.training_probes.{probe}"
    config["device"]["threads"] = 1
    config["resources"] = {"timeout_s": None}
    file = sweep / cell_id / "cell.yaml"
    file.parent.mkdir(parents=True)
    return freeze_config(file.parent, config)


def rows(attempt: Path) -> list[dict[str, Any]]:
    found = [json.loads(line) for line in (attempt / "series.jsonl").read_text().splitlines()]
    return [{key: value for key, value in row.items() if not any(part in key for part in TIMES)} for row in found]


def weights(attempt: Path) -> dict[str, torch.Tensor]:
    return dict(load_hf(attempt / "checkpoints" / "step-000004" / "policy", torch.float32, "cpu").named_parameters())


def test_a_preempted_run_goes_on_bit_for_bit(slurm: FakeSlurm, tmp_path: Path) -> None:
    """With a rollout that stops early, and a learner that replays it."""
    sweep = tmp_path / "sweep"
    options = {"rollout": "last_exited", "logprob": "hybrid"}
    saving = {"experiment.checkpoint_every": 4, "experiment.keep_last": 1}
    queue = make_queue(
        sweep,
        [{"cut": "trains"}, {"whole": "trains"}],
        cells=lambda cell_id, probe: freeze_training(sweep, cell_id, probe, saving, **options),
        signal_delay_s=60,
    )
    (sweep / "cut" / "pause").touch()
    first, second, whole = sweep / "cut" / "attempt-001", sweep / "cut" / "attempt-002", sweep / "whole" / "attempt-001"

    def at_the_second_step() -> bool:
        series = first / "series.jsonl"  # made before its first row is written
        return series.exists() and '"step": 2,' in series.read_text()

    once(at_the_second_step, lambda: os.kill(os.getpid(), signal.SIGUSR2))
    work_through(str(queue))
    assert [record.verdict for record in records(sweep, "cut")] == [Verdict.PREEMPTED]
    assert (records(sweep, "cut")[0].reason or "").endswith("saved after step 2 of 4")
    slurm.starts("77", RESTART_COUNT=1)
    assert work_through(str(queue)) == 0
    ended, (uninterrupted,) = records(sweep, "cut")[1], records(sweep, "whole")
    assert ended.continues == 1
    assert ended.metrics["accuracy"].value == uninterrupted.metrics["accuracy"].value
    assert ended.metrics["train_tokens"].value == uninterrupted.metrics["train_tokens"].value
    assert rows(first) + rows(second) == rows(whole)
    assert any(row.get("grad_norm", 0) > 0 for row in rows(second)), "there was something to learn"
    ours, theirs = weights(second), weights(whole)
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs)
    for step in (3, 4):
        name = f"samples/step-{step:06d}.jsonl"
        assert read_samples(second / name).samples == read_samples(whole / name).samples


def test_what_was_to_keep_no_checkpoint_keeps_the_one_that_it_goes_on_from(slurm: FakeSlurm, tmp_path: Path) -> None:
    sweep = tmp_path / "sweep"
    cells = {"cells": lambda cell_id, probe: freeze_training(sweep, cell_id, probe, {"experiment.evaluate_every": 4})}
    queue = make_queue(sweep, [{"a": "trains"}], **cells, signal_delay_s=60)
    (sweep / "a" / "pause").touch()
    attempt = sweep / "a" / "attempt-001"
    once(lambda: (attempt / "series.jsonl").exists(), lambda: os.kill(os.getpid(), signal.SIGUSR2))
    work_through(str(queue))
    assert [path.name for path in (attempt / "checkpoints").iterdir()] in (["step-000001"], ["step-000002"])


def test_a_run_that_dies_while_it_saves_goes_on_from_the_newest_whole_checkpoint(
    supervisor: Supervisor, tmp_path: Path
) -> None:
    values = {"experiment.checkpoint_every": 1, "experiment.keep_last": 9}
    cell_file = freeze_training(tmp_path / "sweep", "a", "dies_while_saving", values)
    killed = supervisor.run(cell_file)
    assert killed.verdict is Verdict.KILLED and "SIGKILL" in (killed.reason or "")
    checkpoints = cell_file.parent / "attempt-001" / "checkpoints"
    assert any("step-000003" in path.name for path in checkpoints.iterdir()), "a part of it is there"
    again = supervisor.run(cell_file)
    assert (again.verdict, again.continues) == (Verdict.MEASURED, 1)
    assert "goes on from step 2 of attempt 1" in again.notes
    assert [row["step"] for row in rows(cell_file.parent / "attempt-002") if "reward" in row] == [3, 4]
