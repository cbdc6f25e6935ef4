"""Rules: what is ruled out stays in the plan with its reason, and a rule that cannot be meant is an error."""

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from scalerlt.errors import RequestErrors
from scalerlt.planning import launcher
from scalerlt.planning.hydra_bridge import CONF, compose
from scalerlt.planning.plan import freeze, make_plan
from scalerlt.planning.request import Request
from scalerlt.planning.resolve import resolve, resolve_all
from scalerlt.planning.rules import Condition, Span, lookup
from scalerlt.records.plan import Plan
from scalerlt.schema.machine import Machine

CPU = Machine(gpus=0, gpu_reason="none here", cpus=2)
DEFAULT_ROLLOUTS = yaml.safe_load((CONF / "task" / "arithmetic.yaml").read_text())["rollouts"]


@pytest.fixture(autouse=True)
def on_a_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launcher, "this_machine", lambda: CPU)


def request_of(directory: Path, text: str, *overrides: str) -> Request:
    file = directory / "mine.yaml"
    file.write_text(text)
    return compose([f"+sweeps={file}", *overrides])


def plan_of(request: Request) -> Plan:
    return make_plan(request, resolve_all(request.cells, CPU), {})


def test_what_is_ruled_out_stays_in_its_place_with_its_reason(tmp_path: Path) -> None:
    """All keys have to match; values, lists and spans; the first rule that matches gives the reason."""
    text = """
grid: {precision: [fp32, bf16, fp16], batch.microbatch_tokens: [512, 1024, 4096], checkpoint: [none, layer]}
rules:
- skip: {precision: fp16, device: cpu}
  reason: half precision has no kernels on a CPU
- skip: {batch.microbatch_tokens: {min: 1024}, precision: [bf16, fp16], checkpoint: none}
  reason: would not fit
"""
    request = request_of(tmp_path, text)
    assert request.warnings == []
    plan = plan_of(request)
    assert [cell.order for cell in plan.cells] == list(range(18))
    seen = [
        (cell.axes["precision"], cell.axes["batch.microbatch_tokens"], cell.axes["checkpoint"], cell.reason)
        for cell in plan.cells
    ]
    expected = []
    for precision in ("fp32", "bf16", "fp16"):
        for tokens in (512, 1024, 4096):
            for checkpoint in ("none", "layer"):
                reason = None
                if precision == "fp16":
                    reason = "half precision has no kernels on a CPU"
                elif precision == "bf16" and tokens >= 1024 and checkpoint == "none":
                    reason = "would not fit"
                expected.append((precision, tokens, checkpoint, reason))
    assert seen == expected
    assert {cell.state for cell in plan.cells if cell.reason} == {"skipped"}

    sweep, _ = freeze(plan, resolve_all(request.cells, CPU), tmp_path / "runs")
    assert {cell.path.name for cell in sweep.cells()} == {cell.cell_id for cell in plan.cells if not cell.reason}

    without = plan_of(request_of(tmp_path, text.split("rules:")[0]))
    assert [cell.cell_id for cell in without.cells] == [cell.cell_id for cell in plan.cells], (
        "a valid cell keeps its name"
    )
    assert [cell.axes for cell in without.cells] == [cell.axes for cell in plan.cells]


def test_a_combination_that_is_ruled_out_need_not_be_valid(tmp_path: Path) -> None:
    """16 responses cannot be cut into minibatches of 3; without the rule the sweep is refused."""
    grid = "grid: {batch.minibatch_responses: [3, 16], seed: [0, 1]}\n"
    rule = "rules: [{skip: {batch.minibatch_responses: 3}, reason: does not divide}]\n"
    plan = plan_of(request_of(tmp_path, grid + rule))
    assert [(cell.state, cell.axes["batch.minibatch_responses"], cell.axes["seed"]) for cell in plan.cells] == [
        ("skipped", 3, 0),
        ("skipped", 3, 1),
        ("planned", 16, 0),
        ("planned", 16, 1),
    ]
    invalid = [cell.cell_id for cell in plan.cells[:2]]
    assert len(set(invalid)) == 2 and all(name.startswith("invalid-") for name in invalid)
    assert plan.cells[0].axes["batch"] == "small" and plan.cells[0].axes["experiment"] == "rollout_throughput"
    different = {key for cell in plan.cells for key, value in cell.axes.items() if value != plan.cells[3].axes.get(key)}
    assert different == {"batch.minibatch_responses", "seed"}, "it adds no columns to tables"
    assert set(plan.cells[0].axes) == set(plan.cells[2].axes)
    again = plan_of(request_of(tmp_path, grid + rule))
    assert [cell.cell_id for cell in again.cells] == [cell.cell_id for cell in plan.cells]
    with pytest.raises(RequestErrors, match="minibatch_responses=3 does not divide"):
        plan_of(request_of(tmp_path, grid))


@pytest.mark.parametrize(
    ("rule", "said"),
    [
        ("{precison: fp16}", "precison is not a configuration key; did you mean precision?"),
        ("{precision: fp61}", "precision=fp61: precision has no such option; did you mean fp16 or fp64?"),
        ("{batch.grup_size: 4}", "batch.grup_size is not a configuration key; did you mean batch.group_size?"),
        ("{rollout/engine: vllmm}", "rollout.engine=vllmm: rollout.engine has no such option"),
        ("{runs_dir: runs}", "runs_dir is not a configuration key"),
        ("{seed: '1'}", "the rule of `skip: seed='1'` matches no cell"),
        ("{seed: {min: 5}}", "the rule of `skip: seed from 5` matches no cell"),
        ("{precision: bf16, seed: 1}", "the rule of `skip: precision='bf16', seed=1` matches no cell"),
    ],
)
def test_a_rule_that_cannot_be_meant_is_an_error(tmp_path: Path, rule: str, said: str) -> None:
    text = "list: [{precision: fp32, seed: 1}, {precision: bf16, seed: 2}]\nrules: [{skip: RULE, reason: r}]"
    text = text.replace("RULE", rule)
    with pytest.raises(RequestErrors) as caught:
        request_of(tmp_path, text)
    assert said in "\n".join(caught.value.problems)


def test_a_rule_that_matches_nothing_is_a_warning_where_the_command_line_narrows(tmp_path: Path) -> None:
    text = """
grid: {precision: [fp32, bf16]}
rules: [{skip: {precision: bf16}, reason: r}]
resources: [{where: {precision: bf16}, set: {timeout_s: 5.0}}]
"""
    request = request_of(tmp_path, text, "precision=fp32")
    assert len(request.cells) == 1 and not request.ruled_out
    assert request.warnings == [
        "sweep mine: the rule of `skip: precision='bf16'` matches no cell",
        "sweep mine: the resources of `where: precision='bf16'` matches no cell",
    ]
    with pytest.raises(RequestErrors, match=r"rule of .* matches no cell"):  # where records go narrows nothing
        request_of(tmp_path, text.replace("[fp32, bf16]", "fp32"), "runs_dir=elsewhere")


def test_a_rule_for_gpus_is_no_mistake_where_there_is_none(tmp_path: Path) -> None:
    text = """
grid: {seed: [0, 1]}
rules:
- {skip: {device: cuda, seed: 1}, reason: r}
- {skip: {device: cpu, seed: 0}, reason: r}
"""
    request = request_of(tmp_path, text)
    assert [cell.axes["seed"] for cell in request.ruled_out] == [0], "device=auto is a CPU here"
    with pytest.raises(RequestErrors, match="device='cuda', seed=1` matches no cell"):
        request_of(tmp_path, text.replace("seed: [0, 1]", "device: cpu, seed: [0, 1]"))


def test_resources_are_given_to_the_cells_that_match_and_are_no_part_of_the_identity(tmp_path: Path) -> None:
    text = """
grid: {batch: [small, medium, large]}
resources:
- {where: {batch: [medium, large]}, set: {timeout_s: 3600.0}}
- {where: {batch: large}, set: {timeout_s: 7200.0}}
"""
    cells = resolve_all(request_of(tmp_path, text).cells, CPU)
    assert [cell.cell.resources.timeout_s for cell in cells] == [1800.0, 3600.0, 7200.0]
    plain = resolve_all(request_of(tmp_path, text.split("resources:")[0]).cells, CPU)
    assert [cell.identity for cell in cells] == [cell.identity for cell in plain]
    given = resolve_all(request_of(tmp_path, text, "resources.timeout_s=60.0").cells, CPU)
    assert [cell.cell.resources.timeout_s for cell in given] == [60.0] * 3, "the command line has the last word"
    with pytest.raises(RequestErrors, match=r"resources\.timeout_s='soon'"):
        resolve_all(request_of(tmp_path, text.replace("7200.0", "soon")).cells, CPU)


def test_every_cell_may_be_ruled_out(tmp_path: Path) -> None:
    plan = plan_of(request_of(tmp_path, "grid: {seed: [0, 1]}\nrules: [{skip: {seed: {max: 1}}, reason: r}]"))
    assert [cell.state for cell in plan.cells] == ["skipped", "skipped"]
    assert plan.sweep == "mine"


CONFIG: dict[str, Any] = {"a": {"name": "x", "n": 3, "inner": {"name": "y", "flag": True}, "none": None}, "s": 1}


@pytest.mark.parametrize(
    ("key", "found"),
    [
        ("a", (True, "x")),
        ("a.n", (True, 3)),
        ("a.inner", (True, "y")),
        ("a.inner.flag", (True, True)),
        ("a.none", (True, None)),
        ("s", (True, 1)),
        ("b", (False, None)),
        ("a.n.m", (False, None)),
        ("s.t", (False, None)),
    ],
)
def test_what_a_key_finds(key: str, found: tuple[bool, Any]) -> None:
    assert lookup(CONFIG, key) == found


@given(st.integers(-5, 5), st.one_of(st.none(), st.integers(-5, 5)), st.one_of(st.none(), st.integers(-5, 5)))
def test_a_span_holds_its_ends(value: int, low: int | None, high: int | None) -> None:
    inside = value in range(-5 if low is None else low, 6 if high is None else high + 1)
    assert Condition("s", Span(low, high)).holds({"s": value}) == inside


def test_truth_values_are_no_numbers() -> None:
    assert Condition("s", (1,)).holds({"s": 1}) and Condition("s", (1,)).holds({"s": 1.0})
    assert not Condition("s", (1,)).holds({"s": True}) and not Condition("s", (False,)).holds({"s": 0})
    assert not Condition("s", Span(0, 2)).holds({"s": True})
    assert Condition("s", (None,)).holds({"s": None}) and not Condition("t", (None,)).holds({"s": None})


@pytest.mark.parametrize(
    ("values", "skip"), [("resources.timeout_s: [100, 200]", "100"), ("rollout.temperature: [1, 1.0]", "1")]
)
def test_a_rule_does_not_hide_that_a_sweep_names_a_cell_twice(tmp_path: Path, values: str, skip: str) -> None:
    key = values.partition(":")[0]
    request = request_of(tmp_path, f"grid: {{{values}, seed: 0}}\nrules: [{{skip: {{{key}: {skip}}}, reason: r}}]")
    with pytest.raises(RequestErrors, match="are the same cell"):
        plan_of(request)


@pytest.mark.parametrize(
    ("key", "wrong", "right"),
    [
        ("batch.minibatch_responses", 48, 16),
        ("batch.group_size", "many", 4),
        ("rollout.temperature", -1, 1),
        ("model.head_dim", 3, 16),
        ("task.rollouts", "nowhere", DEFAULT_ROLLOUTS),
        ("prompt.template", "none", "{question}"),
        ("device.threads", 0, 1),
        ("seed", -1, 1),
        ("model.weights", "nowhere", None),
    ],
)
@pytest.mark.parametrize("experiment", ["actor_update", "rollout_throughput"])
def test_an_invalid_combination_has_the_axes_that_it_would_have_as_a_cell(
    tmp_path: Path, key: str, wrong: Any, right: Any, experiment: str
) -> None:
    """Against a valid cell beside it, typed: 1 and 1.0 would be two values of a table."""
    definition = {
        "grid": {"experiment": experiment, "logprob": "dense", key: [wrong, right]},
        "rules": [{"skip": {key: wrong}, "reason": "r"}],
    }
    request = request_of(tmp_path, yaml.safe_dump(definition))
    (ruled_out,) = request.ruled_out
    assert ruled_out.cell_id.startswith("invalid-")
    valid = resolve(request.cells[0], CPU, {}).axes
    assert list(ruled_out.axes) == list(valid)
    assert {name for name in valid if json.dumps(valid[name]) != json.dumps(ruled_out.axes[name])} == {key}
    assert ruled_out.axes[key] == ("sha256:missing" if wrong == "nowhere" else wrong)


def test_the_name_of_an_invalid_combination_is_the_digest_of_its_configuration(tmp_path: Path) -> None:
    text = "grid: {batch.minibatch_responses: 3}\nrules: [{skip: {batch.minibatch_responses: 3}, reason: r}]"
    request = request_of(tmp_path, text)
    config = compose(["batch.minibatch_responses=16"]).cells[0].config
    config = {**config, "batch": {**config["batch"], "minibatch_responses": 3}}
    content = {key: value for key, value in config.items() if key not in ("resources", "runs_dir", "retry")}
    content.pop("max_gpu_hours", None)
    digest = hashlib.sha256(json.dumps(content, sort_keys=True, separators=(",", ":")).encode()).hexdigest()
    assert request.ruled_out[0].cell_id == f"invalid-{digest[:10]}"
    assert yaml.safe_load(text)["rules"][0]["reason"] == request.ruled_out[0].reason
