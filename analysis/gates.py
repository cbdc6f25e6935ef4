"""Gates: does a learner under a checkpoint schedule compute what the same learner without one computes, and does an
engine repeat its own rollout?

The tolerances are data (`conf/gates/default.yaml`), fixed before a run. The verdicts are computed here from the
recorded metrics alone, so that a change of tolerance never needs a new measurement, except for the elementwise metrics:
they are max |a - b| / (abs + rel |b|), name their tolerance in their `method`, and hold for that tolerance only.
"""

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from functools import cache
from importlib.resources import files
from importlib.resources.abc import Traversable
from typing import Annotated, Any

import yaml
from pydantic import Field

from scalerlt.analysis.marks import MEASURED
from scalerlt.records.base import Part
from scalerlt.records.record import Metric

NonNegative = Annotated[float, Field(ge=0, allow_inf_nan=False)]


class GateVerdict(StrEnum):
    """What a gate says."""

    PASS = "PASS"
    FAIL = "FAIL"
    NOT_RESOLVED = "NOT_RESOLVED"


class Tolerance(Part):
    """|a - b| <= abs + rel |b|, element by element."""

    abs: NonNegative
    rel: NonNegative

    def __str__(self) -> str:
        return f"abs {self.abs:g} rel {self.rel:g}"


class LearnerGate(Part):
    """The gates of one learner precision. `moments` is None where no gate for them is declared."""

    loss: Tolerance
    gradient: Tolerance
    gradient_relative_l2: NonNegative
    parameter_change: Tolerance
    moments: Tolerance | None


class Gates(Part):
    """All that is declared.

    Attributes:
        learner: by precision; None where a precision has no gate.
        replay_mismatches: how many log-probs of an engine's replay may differ in any bit from those of its rollout.
    """

    learner: dict[str, LearnerGate | None]
    replay_mismatches: Annotated[int, Field(ge=0)] = 0


@dataclass(frozen=True)
class Finding:
    """The verdict of one gate, and why it is not a PASS."""

    verdict: GateVerdict
    reason: str | None = None


PARTS = ("loss", "gradient", "gradient_relative_l2", "parameter_change", "moments")
MOMENTS = ("update_sched_exp_avg_elementwise", "update_sched_exp_avg_sq_elementwise")
FLOOR_COUNTS = ("fp32",)
"""Precisions whose bound on the relative L2 error gives way to the measured floor of checkpoint=none."""
ALLOWED = "gate/gradient_relative_l2/allowed"


def default_gates_file() -> Traversable:
    """The shipped gates."""
    return files("scalerlt") / "conf" / "gates" / "default.yaml"


@cache
def load_gates() -> Gates:
    """The shipped gates."""
    return gates_from(yaml.safe_load(default_gates_file().read_text(encoding="utf-8")))


def gates_from(content: Any) -> Gates:
    """The gates of a configuration's `gates`. Raises ValueError where they are none."""
    if not isinstance(content, Mapping):
        raise ValueError(f"gates are by precision, not {content!r}")
    declared = {key: value for key, value in content.items() if key not in ("name", "_target_")}
    replay = {key: declared.pop(key) for key in ("replay_mismatches",) if key in declared}
    return Gates(learner=declared, **replay)


def describe(gates: Gates) -> list[str]:
    """One line per precision: its tolerances; and one for replays."""
    lines = []
    for precision, gate in gates.learner.items():
        if gate is None:
            lines.append(f"{precision}: none declared")
            continue
        tolerances = [
            f"{name.replace('_', ' ')} {'none declared' if tolerance is None else tolerance}"
            for name, tolerance in (
                ("loss", gate.loss),
                ("gradient", gate.gradient),
                ("parameter_change", gate.parameter_change),
                ("moments", gate.moments),
            )
        ]
        floor = ", or the measured floor of checkpoint=none if larger" if precision in FLOOR_COUNTS else ""
        tolerances.insert(2, f"gradient rel. L2 {gate.gradient_relative_l2:g}{floor}")
        lines.append(f"{precision}: {'; '.join(tolerances)}")
    return [*lines, f"engine replay against its rollout: {gates.replay_mismatches} log-probs may differ in any bit"]


def judge(precision: str, metrics: Mapping[str, Metric], gates: Gates) -> dict[str, Metric]:
    """The gates of one `actor_update` cell, as metrics.

    Args:
        precision: the learner's precision, by which the tolerances are chosen.
        metrics: the cell's recorded metrics.

    Returns:
        `gate`, the verdict over all (FAIL before NOT_RESOLVED before PASS), `gate/<part>` of each of the PARTS, and
        `gate/gradient_relative_l2/allowed`, the bound that held.
    """
    gate = gates.learner.get(precision)
    if gate is None:
        reason = f"no gate is declared for precision {precision}"
        unresolved = _metric(Finding(GateVerdict.NOT_RESOLVED, reason))
        parts = {f"gate/{part}": unresolved for part in PARTS}
        return {"gate": unresolved, **parts, ALLOWED: Metric(status="not_measured", reason=reason)}
    bound, origin = _relative_l2_bound(precision, gate, metrics)
    findings = {
        "loss": _loss(gate.loss, metrics),
        "gradient": _elementwise(("grad_sched_elementwise",), gate.gradient, metrics),
        "gradient_relative_l2": _within("grad_sched_relative_l2", metrics, bound),
        "parameter_change": _elementwise(("update_sched_parameters_elementwise",), gate.parameter_change, metrics),
    }
    undeclared = Metric(status="not_measured", reason=f"no gate on the moments is declared for precision {precision}")
    found = {"gate/moments": undeclared}
    if gate.moments is not None:
        findings["moments"] = _elementwise(MOMENTS, gate.moments, metrics)
    found |= {f"gate/{part}": _metric(finding) for part, finding in findings.items()}
    return {"gate": _metric(_worst(findings)), **found, ALLOWED: Metric(value=bound, reason=origin)}


def judge_replay(metrics: Mapping[str, Metric], gates: Gates) -> dict[str, Metric]:
    """The gate of a rollout that its engine replayed, as the metric `gate/replay`; of one that was not, nothing."""
    if "replay_tokens" not in metrics:
        return {}
    return {"gate/replay": _metric(_within("replay_mismatches/engine", metrics, gates.replay_mismatches))}


def _loss(tolerance: Tolerance, metrics: Mapping[str, Metric]) -> Finding:
    """|a - b| <= abs + rel |b|, where only a and |a - b| are recorded: |b| is at least |a| - |a - b|."""
    try:
        difference, loss = _number("loss_sched_abs", metrics), _number("loss", metrics)
    except _NoNumber as missing:
        return Finding(GateVerdict.NOT_RESOLVED, str(missing))
    return _within("loss_sched_abs", metrics, tolerance.abs + tolerance.rel * max(abs(loss) - difference, 0.0))


def _elementwise(names: tuple[str, ...], tolerance: Tolerance, metrics: Mapping[str, Metric]) -> Finding:
    """The worst finding of metrics that are the largest |a - b| in units of the tolerance."""
    findings = {}
    for name in names:
        findings[name] = _within(name, metrics, 1.0)
        recorded = _recorded_tolerance(metrics[name]) if name in metrics else None
        if findings[name].verdict is not GateVerdict.NOT_RESOLVED and recorded != str(tolerance):
            found = f"under {recorded}" if recorded else "without its tolerance"
            findings[name] = Finding(GateVerdict.NOT_RESOLVED, f"{name} was recorded {found}, the gate is {tolerance}")
    return _worst(findings, named=False)


def _recorded_tolerance(metric: Metric) -> str | None:
    """The tolerance that a method names, spelled as %g spells numbers."""
    found = re.search(r"\babs ([-+.\de]+) rel ([-+.\de]+)", metric.method or "")
    try:
        return str(Tolerance(abs=float(found[1]), rel=float(found[2]))) if found else None
    except ValueError:
        return None


def _relative_l2_bound(precision: str, gate: LearnerGate, metrics: Mapping[str, Metric]) -> tuple[float, str | None]:
    """The bound that holds, and what it comes from where that is not the declared value."""
    declared = gate.gradient_relative_l2
    if precision not in FLOOR_COUNTS:
        return declared, None
    try:
        floor = _number("grad_round_floor_relative_l2", metrics)
    except _NoNumber:
        return declared, None
    if declared < floor < math.inf:
        return floor, f"the measured floor of checkpoint=none, larger than the declared {declared:g}"
    return declared, None


def _within(name: str, metrics: Mapping[str, Metric], bound: float) -> Finding:
    try:
        value = _number(name, metrics)
    except _NoNumber as missing:
        return Finding(GateVerdict.NOT_RESOLVED, str(missing))
    if value <= bound:
        return Finding(GateVerdict.PASS)
    return Finding(GateVerdict.FAIL, f"{name} {value:g} is not within {bound:g}")  # NaN too


class _NoNumber(Exception):
    """A gate needs a figure that was not measured."""


def _number(name: str, metrics: Mapping[str, Metric]) -> float:
    metric = metrics.get(name)
    if metric is None:
        raise _NoNumber(f"{name} is not recorded")
    if metric.status != MEASURED:
        raise _NoNumber(f"{name} is {metric.status}" + (f": {metric.reason}" if metric.reason else ""))
    if isinstance(metric.value, str | bool | None):
        raise _NoNumber(f"{name} is no number: {metric.value}")
    return float(metric.value)


def _worst(findings: Mapping[str, Finding], named: bool = True) -> Finding:
    for verdict in (GateVerdict.FAIL, GateVerdict.NOT_RESOLVED):
        reasons = [
            f"{name}: {finding.reason}" if named else f"{finding.reason}"
            for name, finding in findings.items()
            if finding.verdict is verdict
        ]
        if reasons:
            return Finding(verdict, "; ".join(reasons))
    return Finding(GateVerdict.PASS)


def _metric(finding: Finding) -> Metric:
    return Metric(value=finding.verdict.value, reason=finding.reason)
