"""What the comparisons of a plan can show, known before any of them is run.

Arms are compared that differ in one swept key, cohort by cohort; accuracies over the same problems. A plan whose n
cannot show what it is made for is better changed before it has cost anything.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, variance
from typing import Literal

from scalerlt.planning.arms import arm_axes
from scalerlt.planning.cost import Earlier, beside_the_repetition
from scalerlt.planning.workload import GSM8K_TEST_PROBLEMS
from scalerlt.power import detectable_margin, detectable_ratio
from scalerlt.records.base import Scalar
from scalerlt.records.plan import PlannedCell
from scalerlt.schema.cell import SCALAR_KEYS

DISCORDANCE = 0.1
"""Assumed share of problems that only one of two policies solves."""
DEVIATION = 0.05
"""Assumed standard deviation of a cohort's log ratio of times, where no records tell it: some five percent."""
TIMES = {"rollout_throughput": "rollout_seconds", "actor_update": "actor_update_seconds"}
"""The time that an experiment's ratios are of."""
PROBLEMS = {"gsm8k_eval": "experiment.problems", "gsm8k_reward": "experiment.eval_problems"}


@dataclass(frozen=True)
class Margin:
    """What a number of alike comparisons can detect, at 80 % power and two-sided 95 %.

    Attributes:
        experiment, key: what is compared: arms that differ in `key`.
        arms: their values.
        comparisons: how many have these arms and this n.
        kind: `accuracy`: a difference in points, over problems; `ratio`: of times, over cohorts.
        n: problems, or cohorts that all arms have.
        detectable: the smallest difference, in points, or ratio above 1; None where n allows no interval.
        assumption: what it rests on.
    """

    experiment: str
    key: str
    arms: tuple[str, ...]
    comparisons: int
    kind: Literal["accuracy", "ratio"]
    n: int
    detectable: float | None
    assumption: str


def margins(
    cells: Iterable[PlannedCell], compared: Mapping[str, Iterable[str]], earlier: Sequence[Earlier]
) -> list[Margin]:
    """The margins of a plan's comparisons, those with the same arms and n together.

    Args:
        cells: of the plan; those that are ruled out take no part.
        compared: the keys in which arms differ, each with all keys that vary with it.
        earlier: records that may tell how far times scatter.
    """
    found: dict[tuple[str, str, tuple[str, ...], Literal["accuracy", "ratio"], int], int] = {}
    listed = [cell for cell in cells if cell.state == "planned"]
    for key, bound in compared.items():
        name = _dotted(key)
        varying = {_dotted(one) for one in bound} | {name}
        if varying <= set(SCALAR_KEYS):
            continue
        own = arm_axes((cell.axes for cell in listed), varying)
        arms: dict[tuple[tuple[str, Scalar], ...], dict[str, set[str]]] = {}
        for cell in listed:
            beside = tuple(item for item in beside_the_repetition(cell.axes) if item[0] not in own)
            arms.setdefault(beside, {}).setdefault(str(cell.axes.get(name)), set()).add(_cohort(cell.axes))
        for beside, cohorts in arms.items():
            if len(cohorts) < 2:
                continue
            shared = dict(beside)
            kind, n = _n(shared, len(set.intersection(*cohorts.values())))
            case = (str(shared.get("experiment", "experiments")), name, tuple(cohorts), kind, n)
            found[case] = found.get(case, 0) + 1
    return [_margin(*case, comparisons, earlier) for case, comparisons in found.items()]


def _n(axes: dict[str, Scalar], cohorts: int) -> tuple[Literal["accuracy", "ratio"], int]:
    problems = PROBLEMS.get(str(axes.get("experiment")))
    if problems is None:
        return "ratio", cohorts
    return "accuracy", int(axes.get(problems) or GSM8K_TEST_PROBLEMS)


def _margin(
    experiment: str,
    key: str,
    arms: tuple[str, ...],
    kind: Literal["accuracy", "ratio"],
    n: int,
    comparisons: int,
    earlier: Sequence[Earlier],
) -> Margin:
    if kind == "accuracy":
        points = detectable_margin(n, discordance=DISCORDANCE)
        detectable = None if points is None else 100 * points
        assumption = f"{DISCORDANCE:.0%} of the problems are solved by one of the two policies alone"
    else:
        deviation, source = _deviation(TIMES.get(experiment), experiment, earlier)
        detectable = detectable_ratio(n, deviation=deviation)
        assumption = f"standard deviation of a cohort's log ratio {deviation:.2g}, {source}"
    return Margin(experiment, key, arms, comparisons, kind, n, detectable, assumption)


def _deviation(metric: str | None, experiment: str, earlier: Sequence[Earlier]) -> tuple[float, str]:
    """Of a cohort's log ratio: the square root of twice the variance of one arm's log time between its cohorts, which
    pairing can only make smaller; pooled over the settings that were measured in several cohorts."""
    alike: dict[tuple[tuple[str, Scalar], ...], dict[str, list[float]]] = {}
    for _, record in earlier:
        value = record.metrics[metric].value if metric in record.metrics else None
        if record.axes.get("experiment") == experiment and isinstance(value, float) and value > 0:
            cohorts = alike.setdefault(beside_the_repetition(record.axes), {})
            cohorts.setdefault(_cohort(record.axes), []).append(math.log(value))
    samples = [[fmean(values) for values in cohorts.values()] for cohorts in alike.values() if len(cohorts) > 1]
    if not samples:
        return DEVIATION, "assumed: no records in several cohorts"
    freedom = sum(len(sample) - 1 for sample in samples)
    pooled = sum((len(sample) - 1) * variance(sample) for sample in samples) / freedom
    return math.sqrt(2 * pooled), f"from {sum(map(len, samples))} cohorts of earlier records"


def _cohort(axes: Mapping[str, Scalar]) -> str:
    """An independent repetition: its seed and its number."""
    return f"{axes.get('seed')}/{axes.get('cohort')}"


def _dotted(key: str) -> str:
    return key.replace("/", ".")
