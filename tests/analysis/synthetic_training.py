"""Reinforcement learning that never ran: records, series and samples as the worker leaves them."""

import itertools
import json
import random
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from synthetic_runs import Axes, SyntheticSweep, cell_axes, cell_id, planned

from scalerlt.analysis.figure_spec import load_figures
from scalerlt.analysis.figures import Picture
from scalerlt.analysis.figures import pictures as build_pictures
from scalerlt.analysis.reading import SweepResults, read_runs
from scalerlt.analysis.training import with_training
from scalerlt.records.base import finite
from scalerlt.records.record import Metric, Verdict
from scalerlt.records.samples import Sample, SamplesHeader, write_samples

STEPS, EVERY, PROBLEMS = 6, 3, 200
HEADER = SamplesHeader(model="tiny_ouro", vocab_size=512, made_by="nobody")
Row = dict[str, Any]
Counts = tuple[int, int, int, int]
"""Problems that are right before and after, after only, before only, and never."""


def training_axes(seed: int = 0, rollout: str = "dense", logprob: str = "dense", rewards: str = "graded") -> Axes:
    return {
        **cell_axes("gsm8k_reward", "fp32", "small", seed=seed),
        "experiment.steps": STEPS,
        "experiment.rewards": rewards,
        "rollout": rollout,
        "rollout.schedule": rollout,
        "logprob": logprob,
        "algorithm": "grpo",
    }


def series(axes: Axes, gain: float, steps: int = STEPS) -> list[Row]:
    """The rows of a run whose accuracy rises from 0.4 by `gain` in a straight line."""
    noise = random.Random(repr(sorted(axes.items(), key=str)))
    deferred = axes["rollout"] != "dense"
    rows: list[Row] = []
    samples, tokens, seconds = 0, 0, 0.0
    for step in range(steps + 1):
        accuracy = 0.4 + gain * step / steps
        if step:
            spent = noise.uniform(0.9, 1.1)
            samples, tokens, seconds = samples + 16, tokens + noise.randint(90, 110), seconds + spent
            depths = {4: 10, 3: 20, 2: 60 + step} if deferred else {4: 90}
            difference = (2e-2 if axes["logprob"] == "dense" else 3e-7) if deferred else 1e-7
            rows.append(
                {
                    "step": step,
                    "samples": samples,
                    "tokens": tokens,
                    "seconds": seconds,
                    "reward": accuracy + noise.uniform(-0.05, 0.05),
                    **{f"loop/exit_depth_hist_{depth}": count for depth, count in depths.items()},
                    "loop/exit_depth_mean": sum(d * n for d, n in depths.items()) / sum(depths.values()),
                    "train_rollout_logprob_abs_diff": difference * noise.uniform(0.8, 1.2),
                    "train_rollout_logprob_abs_diff_max": difference * (5 + step),
                    "rollout_corr/kl": difference**2,
                    "rollout_corr/k3_kl": difference**2 / 2,
                    "rollout_corr/rollout_is_p99": 1 + difference,
                    "rollout_corr/rollout_is_eff_sample_size": 1 - difference,
                    "actor/pg_clipfrac": difference,
                    "timing_s/generate": 0.5 * spent,
                    "timing_s/reward": 0.001 * spent,
                    "timing_s/old_log_prob": 0.049 * spent,
                    "timing_s/update_actor": 0.3 * spent,
                    "timing_s/publish": 0.05 * spent,
                    **({"loop/depth_match_fraction": 1 - 0.01 * step} if deferred else {}),
                }
            )
        if step % EVERY == 0 or step == steps:
            totals = {"step": step, "samples": samples, "tokens": tokens, "seconds": seconds}
            rows.append({**totals, "accuracy": accuracy, "accuracy_standard_error": 0.03})
    return rows


def write_series(attempt: Path, rows: Iterable[Row]) -> None:
    attempt.mkdir(parents=True, exist_ok=True)
    lines = [json.dumps(finite(row), allow_nan=False) + "\n" for row in rows]
    (attempt / "series.jsonl").write_text("".join(lines), encoding="utf-8")


def sample(problem: int, right: bool, **more: Any) -> Sample:
    values: dict[str, Any] = {
        "problem_id": f"arithmetic/test/{problem:04d}",
        "prompt_group": problem,
        "prompt_tokens": [5, 6],
        "response_tokens": [7, 8 if right else 9],
        "logprobs": [-0.5, -0.25],
        "temperature": 0.0,
        "finish_reason": "stop",
        "seed": problem,
        "weight_version": 0,
        "reward": float(right),
        "question": f"What is {problem} + 1?",
        "gold": str(problem + 1),
        "text": f"#### {problem + (1 if right else 2)}",
        "extracted": str(problem + (1 if right else 2)),
        "strict": "correct" if right else "wrong",
        "flexible": "correct" if right else "wrong",
        **more,
    }
    return Sample(**values)


def write_answers(attempt: Path, step: int, right: Sequence[bool], kind: str = "eval", **more: Any) -> Path:
    path = attempt / "samples" / f"{kind}-{step:06d}.jsonl"
    path.parent.mkdir(parents=True, exist_ok=True)
    write_samples(path, HEADER, [sample(number, one, **more) for number, one in enumerate(right)])
    return path


def answers_before(counts: Counts) -> list[bool]:
    both, gained, lost, neither = counts
    return [True] * both + [False] * gained + [True] * lost + [False] * neither


def answers_after(counts: Counts) -> list[bool]:
    both, gained, lost, neither = counts
    return [True] * (both + gained) + [False] * (lost + neither)


def outcome(axes: Axes, counts: Counts, rows: Sequence[Row]) -> dict[str, Metric]:
    both, gained, lost, _ = counts
    n = sum(counts)
    trained = [row for row in rows if "reward" in row][-1]
    return {
        "accuracy_before": Metric(value=(both + lost) / n, unit="fraction", n=n),
        "accuracy": Metric(value=(both + gained) / n, unit="fraction", n=n),
        "accuracy_gain": Metric(value=(both + gained) / n - (both + lost) / n, unit="fraction", n=n),
        "steps": Metric(value=trained["step"], unit="step"),
        "train_samples": Metric(value=trained["samples"], unit="response"),
        "train_tokens": Metric(value=trained["tokens"], unit="token"),
        "train_seconds": Metric(value=trained["seconds"], unit="s", scope="rl_step"),
    }


def write_training(sweep: SyntheticSweep, axes: Axes, counts: Counts, **more: Any) -> Path:
    """A measured cell in one attempt; returns the attempt's directory."""
    rows = series(axes, (counts[1] - counts[2]) / sum(counts))
    record = sweep.record(axes, edit=lambda metrics: metrics.update(outcome(axes, counts, rows)), **more)
    write_series(record.parent, rows)
    write_answers(record.parent, 0, answers_before(counts))
    write_answers(record.parent, STEPS, answers_after(counts))
    return record.parent


def arms() -> list[tuple[str, str, str]]:
    learnt = itertools.product(("dense", "last_exited"), ("dense", "hybrid"), ("graded",))
    return [*learnt, ("dense", "dense", "shuffled")]


def write_reward_gain(path: Path, seeds: int = 5) -> SyntheticSweep:
    """Five arms, the last the control; one seed of the second arm ran out of memory, the third arm never started."""
    sweep = SyntheticSweep(path)
    cells = [[training_axes(seed, *arm) for seed in range(seeds)] for arm in arms()]
    sweep.plan(
        [planned(axes) for arm in cells for axes in arm], swept=["rollout", "logprob", "experiment.rewards", "seed"]
    )
    for number, arm in enumerate(cells):
        for seed, axes in enumerate(arm):
            if number == 2:
                continue
            if (number, seed) == (1, 0):
                attempt = sweep.record(axes, Verdict.OOM, reason="MemoryError while it ran `train`").parent
                write_series(attempt, series(axes, 0.1)[:5])
                continue
            gained = 10 if number == 4 else 36 + 2 * seed - 3 * number
            write_training(sweep, axes, (70, gained, 10, PROBLEMS - 80 - gained))
    return sweep


def attempt_directory(sweep: SyntheticSweep, axes: Axes, number: int) -> Path:
    return sweep.path / cell_id(axes) / f"attempt-{number:03d}"


def read(sweep: SyntheticSweep) -> SweepResults:
    return with_training(read_runs(sweep.path).sweeps[0])


def pictures(sweep: SweepResults, name: str) -> dict[str, Picture]:
    [spec] = [spec for spec in load_figures() if spec.name == name]
    return {one.name: one for one in build_pictures([spec], sweep.cells, sweep.swept)}
