"""Writes the directory of a sweep that never ran: plan and records as the worker leaves them, from a seed.

It is what `experiment=report_speed` reads, and a large input for tests: about half rollouts and half actor updates over
models, precisions, batches, schedules and cohorts, with a few cells of every fate.
"""

import itertools
import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from scalerlt.records.base import Scalar
from scalerlt.records.plan import Plan, PlannedCell
from scalerlt.records.record import Verdict

Axes = dict[str, Scalar]
Figures = dict[str, dict[str, Any]]

MODELS = ("tiny_ouro", "ouro_1.4b")
BYTES = {"fp64": 8, "fp32": 4, "bf16": 2, "fp16": 2}
BATCHES = {"tiny": 2, "small": 4, "medium": 8, "large": 16, "huge": 32}
CHECKPOINTS = {"none": 1.0, "layer": 0.4, "loop": 0.25, "boundary": 0.15, "selective": 0.6}
DEPTHS = (4, 3, 2, 1, 0)
"""Loops of a decode token; 0 stands for the dense schedule."""
ENDS = (Verdict.OOM, Verdict.TIMEOUT, Verdict.KILLED, Verdict.FAILED, Verdict.LOST, Verdict.PREEMPTED)
UNMEASURED, NEVER_STARTED = 0.03, 0.01
"""Shares of the cells that ended without a number, and of those that were never started."""


def generate_sweep(path: Path, records: int, *, metrics: int = 40, seed: int = 0) -> None:
    """Write `path`/plans/001.json and the records of its cells; the same bytes for the same arguments.

    Args:
        path: the sweep's directory, which must not exist.
        records: how many; the plan has all combinations of the axes, with as many cohorts as that takes.
        metrics: figures of each measured record.
    """
    chance = random.Random(seed)
    planned: list[PlannedCell] = []
    run: list[PlannedCell] = []
    for order, axes in enumerate(_axes()):
        planned.append(_planned(axes, order))
        if planned[-1].state == "planned" and chance.random() >= NEVER_STARTED:
            run.append(planned[-1])
        if len(run) == records:
            break
    plan = Plan(
        sweep=path.name,
        created="2026-11-29T12:00:00.000+00:00",
        overrides=[],
        swept=["experiment", "model", "precision", "batch", "checkpoint", "rollout"],
        cells=planned,
    )
    (path / "plans").mkdir(parents=True)
    (path / "plans" / "001.json").write_text(plan.to_json(), encoding="utf-8")
    for cell in run:
        attempt = path / cell.cell_id / "attempt-001"
        attempt.mkdir(parents=True)
        text = json.dumps(_record(path.name, cell, metrics, chance), indent=1)
        (attempt / "record.json").write_text(text + "\n", encoding="utf-8")


def _axes() -> Iterator[Axes]:
    for cohort in itertools.count():
        for model, precision, batch in itertools.product(MODELS, BYTES, BATCHES):
            common: Axes = {
                "model": model,
                "precision": precision,
                "batch": batch,
                "batch.prompts_per_step": BATCHES[batch],
                "batch.group_size": BATCHES[batch],
                "device": "cpu",
                "device.type": "cpu",
                "device.threads": 1,
                "seed": cohort,
                "cohort": cohort,
            }
            for checkpoint, depth in zip(CHECKPOINTS, DEPTHS, strict=True):
                yield {"experiment": "actor_update", **common, "checkpoint": checkpoint, "rollout": "dense"}
                schedule = f"last_exited_{depth}" if depth else "dense"
                yield {"experiment": "rollout_throughput", **common, "checkpoint": "none", "rollout": schedule}


def _planned(axes: Axes, order: int) -> PlannedCell:
    words = [axes[key] for key in ("experiment", "model", "precision", "batch", "checkpoint", "rollout")]
    cell_id = "-".join(map(str, words)).replace("_", "") + f"-{order:08x}"
    if axes["batch"] == "huge" and axes["precision"] == "fp16":
        reason = "precision=fp16 is not implemented for huge batches"
        return PlannedCell(cell_id=cell_id, axes=axes, order=order, state="unsupported", reason=reason)
    if axes["batch"] == "huge" and axes["precision"] == "fp64":
        reason = "ruled out by the sweep: huge batches in fp64"
        return PlannedCell(cell_id=cell_id, axes=axes, order=order, state="skipped", reason=reason)
    return PlannedCell(cell_id=cell_id, axes=axes, order=order)


def _record(sweep: str, cell: PlannedCell, metrics: int, chance: random.Random) -> dict[str, Any]:
    verdict = chance.choice(ENDS) if chance.random() < UNMEASURED else Verdict.MEASURED
    measured = verdict is Verdict.MEASURED
    make = _rollout if cell.axes["experiment"] == "rollout_throughput" else _update
    figures = make(cell.axes, chance) if measured else {}
    for number in range(metrics - len(figures) if measured else 0):
        figures[f"live_peak_bytes/part_{number:02d}"] = _bytes(chance.uniform(1e6, 1e9))
    return {
        "schema_version": 1,
        "sweep": sweep,
        "cell_id": cell.cell_id,
        "axes": cell.axes,
        "attempt": 1,
        "verdict": verdict.value,
        "reason": None if measured else f"{verdict.value}, as the generator chose",
        "passes": ["warm_up", "time", "memory", "reference"],
        "metrics": figures,
        "plan": "001.json",
        "order": cell.order,
        "start": "fork",
        "started": "2026-11-29T12:00:01.000+00:00",
        "ended": "2026-11-29T12:00:09.000+00:00",
        "overhead_seconds": round(chance.uniform(0.1, 0.4), 3),
        "provenance": {
            "git_revision": "0123456789abcdef0123456789abcdef01234567",
            "git_dirty": False,
            "packages": {"torch": "2.13.0", "numpy": "2.4.1"},
        },
        "environment": {"host": f"node-{cell.order % 2}", "cpu": "Generated Processor", "cpus": 2},
    }


def _rollout(axes: Axes, chance: random.Random) -> Figures:
    responses = BATCHES[str(axes["batch"])] ** 2
    depth = int(str(axes["rollout"])[-1]) if axes["rollout"] != "dense" else 4
    tokens = 64 * responses
    rate = 400.0 * responses**0.7 / BYTES[str(axes["precision"])] * (5 - depth)
    seconds = [tokens / rate * chance.uniform(0.95, 1.05) for _ in range(5)]
    return {
        "tokens_per_second": _timed([tokens / second for second in seconds], "token/s", "rollout"),
        "decode_tokens_per_second": _timed([1.1 * tokens / second for second in seconds], "token/s", "decode"),
        "rollout_seconds": _timed(seconds, "s", "rollout"),
        "prefill_seconds": _timed([0.1 * second for second in seconds], "s", "prefill"),
        "decode_seconds": _timed([0.9 * second for second in seconds], "s", "decode"),
        "generated_tokens": {"value": tokens, "unit": "token"},
        "prompt_tokens": {"value": 20 * responses, "unit": "token"},
        "padded_tokens": {"value": 0, "unit": "token"},
        "recurrent_rows": {"value": tokens * depth, "unit": "row"},
        "mean_executed_depth": {"value": float(depth), "unit": "loop"},
        "logprob_error_learner": {"value": chance.uniform(1e-7, 1e-6), "unit": "nat"},
        "logprob_error_fp64": {"value": chance.uniform(1e-7, 1e-6), "unit": "nat"},
        "kv_cache_bytes": _bytes(65536 * responses),
        **_memory(100_000 * responses * BYTES[str(axes["precision"])]),
    }


def _update(axes: Axes, chance: random.Random) -> Figures:
    responses, width = BATCHES[str(axes["batch"])] ** 2, BYTES[str(axes["precision"])]
    kept = CHECKPOINTS[str(axes["checkpoint"])]
    seconds = [0.005 * responses * width * (1.4 - 0.4 * kept) * chance.uniform(0.95, 1.05) for _ in range(5)]
    error = 0.0 if axes["checkpoint"] == "none" else chance.uniform(1e-8, 1e-6)
    return {
        "actor_update_seconds": _timed(seconds, "s", "actor_update"),
        "forward_seconds": _timed([0.3 * second for second in seconds], "s", "actor_update.forward"),
        "backward_seconds": _timed([0.65 * second for second in seconds], "s", "actor_update.backward"),
        "optimizer_seconds": _timed([0.05 * second for second in seconds], "s", "actor_update.optimizer"),
        "trained_tokens": {"value": 64 * responses, "unit": "token"},
        "saved_bytes": _bytes(400_000 * responses * width * kept),
        "parameter_bytes": _bytes(1_234_567 * width),
        "optimizer_bytes": _bytes(1_234_567 * 8),
        **{
            name: {"value": error * scale, "method": method}
            for name, scale, method in (
                ("loss_sched_abs", 0.1, None),
                ("grad_sched_relative_l2", 1.0, None),
                ("grad_sched_max_abs", 0.3, None),
                ("grad_sched_elementwise", 1e6, "abs 1e-05 rel 8e-05"),
                ("grad_round_relative_l2", 9.0, None),
                ("update_sched_parameters_elementwise", 1e5, "abs 2e-06 rel 8e-05"),
            )
        },
        **_memory(400_000 * responses * width * (kept + 0.2)),
    }


def _memory(live: float) -> Figures:
    shares = {"": 1.0, "/forward": 0.8, "/backward": 1.0, "/optimizer": 0.3}
    absent = {"status": "unsupported", "unit": "B", "reason": "the device is no cuda device"}
    return {
        **{f"live_peak_bytes{part}": _bytes(live * share) for part, share in shares.items()},
        "rss_baseline_bytes": _bytes(2**28),
        "rss_peak_bytes": _bytes(3 * live + 2**28),
        "cuda_peak_allocated_bytes": absent,
        "cuda_peak_reserved_bytes": absent,
    }


def _bytes(value: float) -> dict[str, Any]:
    return {"value": int(value), "unit": "B", "method": "allocator events"}


def _timed(values: list[float], unit: str, scope: str) -> dict[str, Any]:
    middle, ends = sorted(values)[len(values) // 2], {"minimum": min(values), "maximum": max(values)}
    spread = {**ends, "standard_deviation": 0.02 * middle}
    return {"value": middle, "unit": unit, "n": len(values), "values": values, "spread": spread, "scope": scope}
