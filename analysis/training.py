"""What the tables and figures of reinforcement learning are made of: figures of a cell from its series and samples.

They join the recorded metrics of a `gsm8k_reward` cell:

gain: held-out accuracy after training less that before it, in percentage points.
gain_lower: lower end of its 95 % interval, paired by problem.
eval_problems: held-out problems behind both.
train_mean/<column>, train_max/<column>: a column of the series over the training steps.
time_share/<phase>: share of the training time, with `other` for what no phase covers.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from scalerlt.analysis.accuracy import paired_accuracy
from scalerlt.analysis.answers import with_answers
from scalerlt.analysis.marks import MEASURED
from scalerlt.analysis.reading import CellResult, SweepResults
from scalerlt.analysis.rows import is_number
from scalerlt.analysis.samples import SampleFile, sample_files
from scalerlt.analysis.series import SERIES_FILE, SeriesRow, Stretch, kind_of, stretches
from scalerlt.errors import UserError
from scalerlt.records.record import Metric
from scalerlt.records.samples import read_samples
from scalerlt.records.store import CellDirectory

TIMING, SHARE = "timing_s/", "time_share/"
PAIRED = "lower end of Newcombe's two-sided 95 % score interval for paired proportions (method 10), by problem"
UNITS = {
    "train_rollout_logprob_abs_diff": "nat",
    "train_rollout_logprob_abs_diff_max": "nat",
    "rollout_corr/kl": "nat",
    "rollout_corr/k3_kl": "nat",
    "first_update/train_rollout_logprob_abs_diff": "nat",
    "first_update/train_rollout_logprob_abs_diff_max": "nat",
    "entropy": "nat",
    "loop/exit_depth_mean": "loop",
}


def with_training(sweep: SweepResults) -> SweepResults:
    """The sweep, its `gsm8k_reward` and `gsm8k_eval` cells with their series and the figures made of them.

    What was read for them stands in `sources`, what could not be read in `problems`.
    """
    cells: list[CellResult] = []
    sources: list[str] = []
    problems: list[str] = []
    for cell in sweep.cells:
        match cell.axes.get("experiment"):
            case "gsm8k_reward":
                cells.append(_trained(cell, sweep.path, sources, problems))
            case "gsm8k_eval":
                cells.append(_evaluated(with_answers(cell, sweep.path, sources, problems)))
            case _:
                cells.append(cell)
    return replace(sweep, cells=cells, sources=sorted(sources), problems=[*sweep.problems, *problems])


def _trained(cell: CellResult, sweep: Path, sources: list[str], problems: list[str]) -> CellResult:
    parts = stretches(CellDirectory(sweep / cell.cell_id))
    for part in parts:
        file = part.attempt.path / SERIES_FILE
        if file.is_file():
            sources.append(str(file.relative_to(sweep)))
        problems += [f"{file.relative_to(sweep)}: {problem}" for problem in part.problems]
    rows = [row for part in parts for row in part.rows]
    train = [row for row in rows if kind_of(row) == "train"]
    metrics = {**_over_steps(train), **_time_shares(train)}
    if cell.state == MEASURED:
        metrics |= _gain(cell, parts, sweep, sources)
    if cell.axes.get("rollout.schedule") == "dense":
        reason = "in a dense rollout no token stops early, so there is no depth to match"
        metrics["train_mean/loop/depth_match_fraction"] = Metric(status="unsupported", reason=reason)
        if (accuracy := cell.metrics.get("accuracy")) is not None:
            metrics["accuracy/full_depth"] = _at_full_depth(accuracy)
    return replace(cell, series=tuple(rows), metrics={**cell.metrics, **metrics})


def _over_steps(rows: Sequence[SeriesRow]) -> dict[str, Metric]:
    """The mean of every column over the rows that have it, and of every maximum the largest."""
    metrics: dict[str, Metric] = {}
    for column in dict.fromkeys(column for row in rows for column in row):
        values = [float(value) for row in rows if is_number(value := row.get(column))]
        if not values:
            continue
        unit = UNITS.get(column, "")
        steps = f"{len(values)} of {len(rows)} training steps"
        metrics[f"train_mean/{column}"] = Metric(value=sum(values) / len(values), unit=unit, method=steps)
        if column.endswith("_max"):
            largest = math.nan if any(map(math.isnan, values)) else max(values)
            metrics[f"train_max/{column}"] = Metric(value=largest, unit=unit, method=steps)
    return metrics


def _time_shares(rows: Sequence[SeriesRow]) -> dict[str, Metric]:
    seconds: dict[str, float] = {}
    for row in rows:
        for column, value in row.items():
            if column.startswith(TIMING) and is_number(value):
                phase = column.removeprefix(TIMING)
                seconds[phase] = seconds.get(phase, 0.0) + value
    timed = math.fsum(seconds.values())
    total = rows[-1].get("seconds") if rows else None
    if not timed or not is_number(total):
        return {}
    seconds["other"] = max(total - timed, 0.0)
    return {f"{SHARE}{phase}": Metric(value=spent / max(total, timed)) for phase, spent in seconds.items()}


def _gain(cell: CellResult, parts: Sequence[Stretch], sweep: Path, sources: list[str]) -> dict[str, Metric]:
    """The gain as recorded, and its lower bound from the samples of both evaluations."""
    gain, accuracy = cell.metrics.get("accuracy_gain"), cell.metrics.get("accuracy")
    metrics: dict[str, Metric] = {}
    if accuracy is not None and accuracy.n is not None:
        metrics["eval_problems"] = Metric(value=accuracy.n, unit="problem")
    if gain is None or not is_number(gain.value):
        return metrics
    points = 100 * gain.value
    metrics["gain"] = Metric(value=points, unit="point", method=gain.method)
    evaluations = {file.step: file for file in sample_files(parts) if file.kind == "eval"}
    last = cell.axes.get("experiment.steps")
    missing = [str(step) for step in (0, last) if step not in evaluations]
    if missing or not isinstance(last, int):
        reason = f"there are no samples of the evaluation at step {' and '.join(missing)}"
        return {**metrics, "gain_lower": Metric(status="not_measured", reason=reason)}
    files = evaluations[0], evaluations[last]
    sources += [str(file.path.relative_to(sweep)) for file in files]
    return {**metrics, "gain_lower": _lower_bound(*files, points)}


def _lower_bound(before: SampleFile, after: SampleFile, points: float) -> Metric:
    def unpaired(reason: str) -> Metric:
        return Metric(status="not_measured", unit="point", reason=reason)

    try:
        samples = [read_samples(file.path).samples for file in (before, after)]
    except UserError as error:
        return unpaired(str(error).removeprefix(f"samples file {before.path.parent}/"))
    first, last = ({sample.problem_id: sample.reward > 0 for sample in found} for found in samples)
    if first.keys() != last.keys() or not first:
        return unpaired("the evaluations before and after training are not of the same problems")
    if not len(samples[0]) == len(samples[1]) == len(first):
        return unpaired("a problem has more than one answer")
    pairs = [(first[problem], last[problem]) for problem in first]
    gained, lost = pairs.count((False, True)), pairs.count((True, False))
    if not math.isclose(100 * (gained - lost) / len(pairs), points, abs_tol=1e-6):
        return unpaired(f"the samples show a gain of {100 * (gained - lost) / len(pairs):g} points, not {points:g}")
    compared = paired_accuracy([early for early, _ in pairs], [late for _, late in pairs])
    if compared.low is None:
        return unpaired(str(compared.note))
    return Metric(value=100 * compared.low, unit="point", method=PAIRED)


def _evaluated(cell: CellResult) -> CellResult:
    """An evaluation whose rollout runs at full depth anyway has its figures there, too."""
    if cell.axes.get("rollout.schedule") != "dense":
        return cell
    at_full_depth: Mapping[str, Metric] = {
        f"{name}/full_depth": _at_full_depth(metric)
        for name, metric in cell.metrics.items()
        if not name.endswith("/full_depth")
    }
    return replace(cell, metrics={**at_full_depth, **cell.metrics})


def _at_full_depth(metric: Metric) -> Metric:
    return metric.model_copy(update={"reason": "the rollout's own schedule is full depth"})
