"""Cells with a tracker, and attempts at them that never ran, as the worker leaves them."""

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from worker.frozen import freeze, freeze_config, option

from scalerlt.records.cell import FrozenCell
from scalerlt.records.lease import Lease
from scalerlt.records.record import Metric, Record, Verdict
from scalerlt.records.samples import Sample, SamplesHeader, write_samples
from scalerlt.worker.processes import search_path

MOMENT = "2026-01-02T03:04:05.000+00:00"
PROBLEMS = 30


def mirrored_cell(
    sweep: Path,
    probe: str,
    tracker: str = "wandb",
    *,
    timed: bool = True,
    cell_id: str | None = None,
    config: dict[str, Any] | None = None,
    **frozen: Any,
) -> Path:
    """The frozen cell of a probe with a tracker; one that is not timed is followed from its start."""
    cell_file = freeze(sweep, probe, cell_id=cell_id)
    cell = FrozenCell.read(cell_file)
    values = dict(cell.config) | {"tracker": option("tracker", tracker)} | (config or {})
    if not timed:
        target = {"_target_": f"worker.probes.{probe}", "_check_": None}
        values["experiment"] = {**option("experiment", "gsm8k_reward"), **target}
    return freeze_config(cell_file.parent, values, **frozen)


def leave_attempt(
    cell_file: Path,
    steps: Sequence[int],
    verdict: Verdict = Verdict.MEASURED,
    *,
    continues: int | None = None,
    evaluations: Sequence[int] = (),
    metrics: dict[str, Metric] | None = None,
    recorded: bool = True,
) -> Path:
    """Write the next attempt of a cell: a row for each step, samples for each evaluation, a record."""
    number = len(list(cell_file.parent.glob("attempt-*"))) + 1
    attempt = cell_file.parent / f"attempt-{number:03d}"
    (attempt / "samples").mkdir(parents=True)
    Lease.of_this_process().model_copy(update={"started": MOMENT, "pid": 100 + number}).write(attempt / "lease.json")
    facts = {"environment": {"host": "node7"}, "provenance": {"git_revision": "abc123", "git_dirty": False}}
    (attempt / "environment.json").write_text(json.dumps(facts))
    rows = [{"step": step, "samples": 8 * step, "tokens": 64 * step, "seconds": 0.5 * step} for step in steps]
    lines = [json.dumps({**row, "reward": row["step"] / 10, "odd": "NaN"}) for row in rows]
    (attempt / "series.jsonl").write_text("".join(f"{line}\n" for line in lines))
    for step in evaluations:
        header = SamplesHeader(model="tiny_ouro", vocab_size=512, made_by="nobody")
        write_samples(
            attempt / "samples" / f"eval-{step:06d}.jsonl", header, [answer(i, step) for i in range(PROBLEMS)]
        )
    cell = FrozenCell.read(cell_file)
    if recorded:
        Record(
            sweep=cell.sweep,
            cell_id=cell.cell_id,
            axes=cell.axes,
            attempt=number,
            continues=continues,
            verdict=verdict,
            metrics=metrics or {},
            started=MOMENT,
            ended=MOMENT,
            **facts,
        ).write(attempt / "record.json")
    return attempt


def answer(number: int, step: int) -> Sample:
    return Sample(
        problem_id=f"problem-{number:02d}",
        prompt_group=number,
        prompt_tokens=[1, 2],
        response_tokens=[3, 4, 5],
        logprobs=[-0.1, -0.2, -0.3],
        temperature=0,
        finish_reason="stop",
        seed=0,
        weight_version=step,
        reward=float(number % 2),
        exit_depths=[4, 2, 3],
        question=f"{number} + {step}?",
        gold=str(number + step),
        text="x" * 3000 if number == 0 else f"#### {number}",
        extracted=str(number),
    )


def mirror(*attempts: Path, variables: dict[str, str] | None = None) -> list[list[dict[str, Any]]]:
    """Mirror attempts that have ended, as a user does by hand, all at once; what each process said.

    Args:
        variables: of the caller's; by default none of wandb's.
    """
    environment = {**without_wandb(), **(variables or {}), "PYTHONPATH": search_path(), "NETRC": os.devnull}
    running = [
        subprocess.Popen(
            [sys.executable, "-m", "scalerlt.tracking", str(attempt)],
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for attempt in attempts
    ]
    said = []
    for process in running:
        out, err = process.communicate(timeout=280)
        assert out, err
        said.append([json.loads(line) for line in out.splitlines()])
    return said


def without_wandb() -> dict[str, str]:
    """The variables of this process without those of wandb."""
    return {name: value for name, value in os.environ.items() if not name.startswith("WANDB_")}
