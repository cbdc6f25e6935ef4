import math
from importlib.resources import files
from typing import Any

import pytest
import yaml
from synthetic_runs import cell_axes, figures

from scalerlt.analysis.gates import LearnerGate, describe, judge, judge_replay, load_gates
from scalerlt.records.record import Metric

GATES = load_gates()


def update(precision: str = "fp32", **changed: float | None) -> dict[str, Metric]:
    """The metrics of an update that passes, with some values changed, or taken out where they are None."""
    metrics = figures(cell_axes("actor_update", precision, "small", "layer"))
    for name, value in changed.items():
        if value is None:
            del metrics[name]
        else:
            metrics[name] = metrics[name].model_copy(update={"value": value})
    return metrics


def verdict(precision: str, metrics: dict[str, Metric], part: str = "gate") -> tuple[object, str | None]:
    found = judge(precision, metrics, GATES)[part]
    return found.value, found.reason


def test_the_shipped_tolerances_are_the_published_ones() -> None:
    fp32, bf16, fp64 = (GATES.learner[name] for name in ("fp32", "bf16", "fp64"))
    assert fp32 is not None
    assert bf16 is not None
    assert fp64 is not None
    assert (fp32.loss.abs, fp32.loss.rel) == (2e-6, 2e-6)
    assert (fp32.gradient.abs, fp32.gradient.rel) == (1e-5, 8e-5)
    assert fp32.gradient_relative_l2 == 2e-6
    assert (fp32.parameter_change.abs, fp32.parameter_change.rel) == (2e-6, 8e-5)
    assert fp32.moments is not None
    assert (fp32.moments.abs, fp32.moments.rel) == (1e-6, 8e-5)
    assert (bf16.loss.abs, bf16.gradient.abs, bf16.gradient.rel) == (3e-3, 3e-3, 4e-2)
    assert (bf16.gradient_relative_l2, bf16.parameter_change.abs, bf16.parameter_change.rel) == (2.5e-2, 2e-4, 8e-2)
    assert bf16.moments is None
    assert fp64 == LearnerGate.model_validate(
        {
            "loss": {"abs": 1e-12, "rel": 1e-12},
            "gradient": {"abs": 1e-12, "rel": 1e-12},
            "gradient_relative_l2": 1e-12,
            "parameter_change": {"abs": 1e-12, "rel": 1e-12},
            "moments": {"abs": 1e-12, "rel": 1e-12},
        }
    )
    assert GATES.learner["fp16"] is None


def test_every_tolerance_is_a_number_for_any_yaml_reader() -> None:
    content = yaml.safe_load((files("scalerlt") / "conf/gates/default.yaml").read_text())

    def leaves(part: object) -> list[object]:
        return [leaf for entry in part.values() for leaf in leaves(entry)] if isinstance(part, dict) else [part]

    assert content.pop("name") == "default"
    assert content.pop("replay_mismatches") == 0
    assert {type(leaf) for leaf in leaves(content)} == {float, type(None)}


def test_a_good_update_passes() -> None:
    assert verdict("fp32", update()) == ("PASS", None)
    assert verdict("bf16", update("bf16")) == ("PASS", None)
    assert verdict("bf16", update("bf16"), "gate/moments")[0] is None


@pytest.mark.parametrize(
    ("metric", "part", "edge"),
    [
        ("grad_sched_elementwise", "gradient", 1.0),
        ("grad_sched_relative_l2", "gradient_relative_l2", 2e-6),
        ("update_sched_parameters_elementwise", "parameter_change", 1.0),
        ("update_sched_exp_avg_elementwise", "moments", 1.0),
        ("update_sched_exp_avg_sq_elementwise", "moments", 1.0),
    ],
)
def test_each_gate_fails_just_beyond_its_edge(metric: str, part: str, edge: float) -> None:
    assert verdict("fp32", update(**{metric: edge}), f"gate/{part}") == ("PASS", None)
    above = update(**{metric: math.nextafter(edge, math.inf)})
    word, reason = verdict("fp32", above)
    assert word == "FAIL"
    assert reason is not None
    assert reason.startswith(f"{part}: {metric}")
    others = {name: found.value for name, found in judge("fp32", above, GATES).items() if found.value == "FAIL"}
    assert set(others) == {"gate", f"gate/{part}"}


def test_the_loss_is_judged_without_favour_where_only_the_difference_is_known() -> None:
    difference = 3e-6
    reference = (difference - 2e-6) / 2e-6  # of a loss b this size, abs + rel |b| is the difference
    assert (
        verdict("fp32", update(loss_sched_abs=difference, loss=reference + difference + 1e-9), "gate/loss")[0] == "PASS"
    )
    assert (
        verdict("fp32", update(loss_sched_abs=difference, loss=reference + difference - 1e-6), "gate/loss")[0] == "FAIL"
    )
    assert (
        verdict("fp32", update(loss_sched_abs=difference, loss=-reference - difference - 1e-9), "gate/loss")[0]
        == "PASS"
    )


def test_a_nan_is_no_pass() -> None:
    for name in ("grad_sched_relative_l2", "grad_sched_elementwise", "loss_sched_abs"):
        assert verdict("fp32", update(**{name: math.nan}))[0] == "FAIL"


def test_the_measured_floor_raises_the_bound_in_fp32_alone_and_says_so() -> None:
    metrics = update(grad_sched_relative_l2=4e-6, grad_round_floor_relative_l2=5e-6)
    assert verdict("fp32", metrics) == ("PASS", None)
    allowed = judge("fp32", metrics, GATES)["gate/gradient_relative_l2/allowed"]
    assert allowed.value == 5e-6
    assert allowed.reason is not None
    assert "floor" in allowed.reason
    assert verdict("fp32", update(grad_sched_relative_l2=4e-6, grad_round_floor_relative_l2=1e-6))[0] == "FAIL"
    assert verdict("fp32", update(grad_sched_relative_l2=4e-6, grad_round_floor_relative_l2=math.inf))[0] == "FAIL"
    assert verdict("bf16", update("bf16", grad_sched_relative_l2=0.026, grad_round_floor_relative_l2=0.5))[0] == "FAIL"


def test_another_recorded_tolerance_decides_nothing() -> None:
    metrics = update()
    metrics["grad_sched_elementwise"] = Metric(value=0.1, method="abs 0.001 rel 0.1")
    word, reason = verdict("fp32", metrics)
    assert word == "NOT_RESOLVED"
    assert reason is not None
    assert "abs 0.001 rel 0.1" in reason
    assert "abs 1e-05 rel 8e-05" in reason
    metrics["grad_sched_elementwise"] = Metric(value=0.1)
    assert verdict("fp32", metrics)[0] == "NOT_RESOLVED"
    metrics["grad_sched_elementwise"] = Metric(
        value=0.1, method="max of |a-b|, abs 0.00001 rel 8e-5"
    )  # the same numbers
    assert verdict("fp32", metrics)[0] == "PASS"


def test_what_is_not_measured_is_not_resolved_unless_something_fails() -> None:
    assert verdict("fp32", update(grad_sched_relative_l2=None)) == (
        "NOT_RESOLVED",
        "gradient_relative_l2: grad_sched_relative_l2 is not recorded",
    )
    metrics = update(update_sched_parameters_elementwise=2.0)
    metrics["loss"] = Metric(status="unsupported", reason="emulated")
    assert verdict("fp32", metrics, "gate/loss") == ("NOT_RESOLVED", "loss is unsupported: emulated")
    assert verdict("fp32", metrics)[0] == "FAIL"


@pytest.mark.parametrize("precision", ["fp16", "int4"])
def test_without_a_declared_gate_nothing_passes(precision: str) -> None:
    found = judge(precision, update("fp32"), GATES)
    assert {name for name, metric in found.items() if metric.value == "NOT_RESOLVED"} == {
        "gate",
        "gate/loss",
        "gate/gradient",
        "gate/gradient_relative_l2",
        "gate/parameter_change",
        "gate/moments",
    }
    assert precision in (found["gate"].reason or "")


def test_a_replay_is_judged_bit_for_bit() -> None:
    def said(**metrics: Metric) -> tuple[Any, str | None]:
        replay = {name.replace("_of_engine", "/engine"): metric for name, metric in metrics.items()}
        found = judge_replay({"replay_tokens": Metric(value=7), **replay}, GATES)["gate/replay"]
        return found.value, found.reason

    assert said(replay_mismatches_of_engine=Metric(value=0)) == ("PASS", None)
    assert said(replay_mismatches_of_engine=Metric(value=1)) == (
        "FAIL",
        "replay_mismatches/engine 1 is not within 0",
    )
    word, reason = said(replay_mismatches_of_engine=Metric(status="unsupported", reason="no such thing"))
    assert (word, reason) == ("NOT_RESOLVED", "replay_mismatches/engine is unsupported: no such thing")
    assert judge_replay({"replay_mismatches/engine": Metric(value=0)}, GATES) == {}


def test_the_tolerances_are_told() -> None:
    lines = describe(GATES)
    assert lines[1].startswith(
        "fp32: loss abs 2e-06 rel 2e-06; gradient abs 1e-05 rel 8e-05; gradient rel. L2 2e-06, or"
    )
    assert "moments none declared" in lines[2]
    assert lines[3:] == [
        "fp16: none declared",
        "engine replay against its rollout: 0 log-probs may differ in any bit",
    ]
