"""`checkpoint=auto`: the work that it counts, the choice that it makes, and its calibration."""

import copy
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from learner.prefix_cases import (
    CANDIDATES,
    ESTIMATORS,
    forced,
    gradients,
    group,
    largest_difference,
    make_learner,
    none_learner,
    step_responses,
)
from learner.test_prefix_counts import K, L, learner_of, responses_of

from scalerlt.learner import calibration
from scalerlt.learner.auto import KEEPS, MARGIN, AutoLayout, CostModel, decide
from scalerlt.learner.batching import TrainingResponse
from scalerlt.learner.calibration import Probe, calibrate, cut, probes_of
from scalerlt.learner.work import SECONDS_FEATURES, prompts_of
from scalerlt.measure.memory import live_bytes
from scalerlt.measure.saved_tensors import SavedTensors


def only(chooser: AutoLayout, *names: str) -> AutoLayout:
    """With fewer candidates, to save time."""
    chooser.candidates = {name: chooser.candidates[name] for name in names}
    return chooser


def auto(budget: int | str | None = "1GiB", waves: int = 3, seconds: float = 0.1) -> AutoLayout:
    return AutoLayout(waves, budget, seconds)


def costs(seconds: dict[str, dict[str, float]]) -> CostModel:
    """Coefficients by feature; those that are not named are 0."""
    found = {name: tuple(of.get(feature, 0.0) for feature in SECONDS_FEATURES) for name, of in seconds.items()}
    return CostModel(found, {})


@settings(max_examples=12, deadline=None)
@given(
    shapes=st.lists(
        st.tuples(st.integers(1, 9), st.lists(st.integers(1, 7), min_size=1, max_size=5)), min_size=1, max_size=3
    ),
    waves=st.integers(1, 4),
    tokens=st.integers(1, 40),
    name=st.sampled_from(CANDIDATES),
)
def test_the_counted_work_is_what_runs(shapes, waves: int, tokens: int, name: str) -> None:
    """Rows, passes and labels of every candidate, against a step that is run."""
    chooser = auto(waves=waves)
    responses = [
        replace(response, prompt_tokens=[index, *response.prompt_tokens[1:]])
        for index, (prompt, lengths) in enumerate(shapes)
        for response in responses_of(prompt, lengths)
    ]
    candidate = chooser.candidates[name]
    result = learner_of(candidate.layout, tokens=tokens).backward(responses)
    works = chooser.works(prompts_of(responses), tokens)
    passes, prompts, rows, again, _, labels = candidate.seconds_features(works)
    assert (rows + again) * K * L == result.runs.token_calls
    assert passes == result.microbatches
    assert labels == result.trained_tokens == sum(sum(lengths) for _, lengths in shapes)
    assert prompts == (len(shapes) if candidate.split == "waves" else 0)


def test_pairs_and_largest_passes_by_hand() -> None:
    """P = 4, T = 5, 3, 1: whole sequences of 8, 6 and 4 rows; responses with 4, 2 and 0 rows."""
    works = auto(waves=2).works(prompts_of(responses_of(4, [1, 5, 3])), 1000)
    whole, waves, packed = works["whole"], works["waves"], works["packed"]
    assert whole.pairs == 3 * 36
    assert (whole.largest_rows, whole.largest_labels, whole.largest_prompt) == (18, 9, 0)
    assert waves.pairs == 10 + (6 * 4 + 2 * 10)
    assert (waves.passes, waves.largest_prompt, waves.largest_rows, waves.largest_labels) == (2, 4, 6, 8)
    assert packed.pairs == 10 + 6 * 4 + 2 * 10
    assert (packed.passes, packed.rows, packed.largest_rows) == (1, 10, 10)
    short = auto().works(prompts_of(responses_of(4, [1, 5, 3])), 10)["packed"]
    assert (short.passes, short.rows, short.largest_rows) == (2, 14, 8), "6 padded response tokens beside the prompt"
    assert whole.bytes_features(together=True) == (18, 9, 0, 1)
    assert waves.bytes_features(together=True) == (10, 8, 0, 1)
    assert waves.bytes_features(together=False) == (6, 8, 4, 1)


EQUAL = dict.fromkeys(CANDIDATES, 1.0)
FEWER = {**dict.fromkeys(CANDIDATES, 5), "none": 9, "layer": 9, "loop": 9}
"""Rows where prompts are shared."""


def test_without_a_budget_the_fastest_is_chosen_beyond_the_margin() -> None:
    assert decide(FEWER, {"none": 1.0, "prefix": 0.8, "packed_shared": 0.9}, {}, None) == ("prefix", True)
    assert decide(FEWER, {"none": 1.0, "prefix": 1 - MARGIN / 2, "packed_shared": 1.1}, {}, None) == ("none", True)
    assert decide(FEWER, {"none": 1.0, "prefix": 1 - 2 * MARGIN, "packed_shared": 1.1}, {}, None) == ("prefix", True)


def test_a_budget_leaves_out_what_exceeds_it() -> None:
    seconds = {**EQUAL, "none": 0.5, "packed_shared": 0.6, "streamed": 0.7, "layer": 0.8}
    nbytes = {**EQUAL, "none": 9.0, "packed_shared": 8.0, "prefix": 8.0, "layer": 2.0}
    assert decide(FEWER, seconds, nbytes, 9) == ("none", True)
    assert decide(FEWER, seconds, nbytes, 8) == ("packed_shared", True)
    assert decide(FEWER, seconds, nbytes, 7) == ("streamed", True)
    assert decide(FEWER, {**seconds, "streamed": 0.9}, nbytes, 7) == ("layer", True)
    assert decide(FEWER, {**seconds, "streamed": 0.9}, nbytes, 1)[0] == "streamed"


def test_where_nothing_fits_the_least_bytes_are_chosen() -> None:
    assert decide(FEWER, EQUAL, {**dict.fromkeys(CANDIDATES, 5.0), "loop": 4.0}, 3) == ("loop", False)


@pytest.mark.parametrize(("again", "kept"), KEEPS.items())
def test_what_computes_again_is_chosen_only_where_what_keeps_does_not_fit(again: str, kept: str) -> None:
    """A calibration in which it happened to be faster does not matter."""
    seconds = {**EQUAL, again: 0.1}
    assert decide(FEWER, seconds, EQUAL, 1)[0] == "none"
    assert decide(FEWER, seconds, {**EQUAL, kept: 2.0}, 1)[0] == again


def test_what_runs_no_fewer_rows_is_not_chosen_beside_none() -> None:
    seconds = {**EQUAL, "packed_shared": 0.1, "prefix": 0.2}
    rows = dict.fromkeys(CANDIDATES, 9)
    assert decide(rows, seconds, {}, None) == ("none", True)
    assert decide({**rows, "prefix": 8}, seconds, {}, None) == ("prefix", True)
    assert decide(rows, seconds, {**EQUAL, "none": 2.0}, 1) == ("packed_shared", True)


def test_one_response_per_short_prompt_is_not_shared() -> None:
    """P4 D16 G1, under costs as this kind of machine has them; P256 D8 G32 under the same is."""
    chooser = AutoLayout(32, None, 1.0)
    per_row = {"row": 3e-5, "label": 5e-6}
    chooser.costs = costs(
        {
            "none": {"pass": 8e-3, **per_row},
            "packed_shared": {"pass": 10e-3, **per_row},
            "prefix": {"pass": 8e-3, "prompt": 8e-3, **per_row},
        }
    )
    assert set(chooser.candidates) == {"none", "packed_shared", "prefix"}
    assert chooser.choose(responses_of(4, [16]), 4096).name == "none"
    shared = chooser.choose(responses_of(256, [8] * 32), 4096)
    assert shared.name == "packed_shared"
    rows, labels = 256 + 32 * 7, 32 * 8
    assert shared.seconds["packed_shared"] == pytest.approx(10e-3 + rows * 3e-5 + labels * 5e-6)
    assert chooser.chosen([], 4096) is chooser.candidates["none"].layout
    assert chooser.steps.total() == 0
    assert chooser.chosen(responses_of(4, [16]), 4096) is chooser.candidates["none"].layout
    assert chooser.steps == {"none": 1}


def test_nothing_is_chosen_before_a_calibration() -> None:
    with pytest.raises(RuntimeError, match="calibrate it"):
        make_learner(auto()).backward(step_responses(31))


@pytest.mark.parametrize("name", CANDIDATES)
@pytest.mark.parametrize("estimator", ["hybrid", "rltt"])
def test_whatever_it_chooses_gradients_are_those_of_whole_sequences(name: str, estimator: str) -> None:
    responses = step_responses(35)
    chooser = forced(name)
    learner = make_learner(chooser, **ESTIMATORS[estimator])
    expected = none_learner(**ESTIMATORS[estimator])
    assert largest_difference(gradients(learner, responses), gradients(expected, responses)) < 1e-12
    assert chooser.steps == {name: 1}
    counted = learner.backward(responses).runs
    alone = make_learner(chooser.candidates[name].layout, **ESTIMATORS[estimator]).backward(responses).runs
    assert counted == alone


def test_probes_differ_in_every_length_and_end_with_the_whole_step() -> None:
    responses = [*group(31, 40, [20] * 8), *group(32, 12, [4] * 3)]
    probes = probes_of(responses, 5000)
    assert probes[-1] == Probe(tuple(responses), 5000)
    assert [probe.rows for probe in probes] == sorted(probe.rows for probe in probes)
    shapes = [
        (len(probe.responses), len(probe.responses[0].prompt_tokens), len(probe.responses[0].response_tokens))
        for probe in probes
    ]
    assert {(1, 10, 5), (1, 40, 20), (8, 10, 5), (8, 10, 20), (8, 40, 5), (2, 40, 20), (8, 40, 20)} <= set(shapes)
    assert any(probe.tokens == 80 for probe in probes), "in two waves"
    work = [auto(waves=32).works(prompts_of(probe.responses), probe.tokens)["waves"] for probe in probes]
    assert {one.passes for one in work} == {1, 2}


def test_probes_of_the_smallest_step() -> None:
    assert len(probes_of(responses_of(1, [1]), 10)) == 1
    with pytest.raises(ValueError, match="nothing to calibrate"):
        probes_of([replace(response, mask=[False] * 2) for response in responses_of(3, [2, 2])], 10)


def test_a_cut_response_keeps_what_belongs_to_its_tokens() -> None:
    response = replace(group(31, 8, (6,))[0], mask=[False, False, False, True, True, True])
    found = cut(response, 0.5, 0.5)
    assert (list(found.prompt_tokens), list(found.response_tokens)) == (
        list(response.prompt_tokens)[:4],
        list(response.response_tokens)[:3],
    )
    assert found.mask == [False, False, True], "one of them is trained"
    assert response.exit_depths is not None
    assert found.exit_depths == response.exit_depths[:3]
    assert found.rollout_logprobs is not None and found.ref_logprobs is not None
    assert cut(response, 1.0, 1.0) == response


class Ticks:
    """A clock that tells a time of its own for what is between two readings."""

    def __init__(self, step: float) -> None:
        self.now, self._step = 0.0, step

    def __call__(self) -> float:
        self.now += self._step
        return self.now


@pytest.fixture
def _saved_for_live(monkeypatch: pytest.MonkeyPatch) -> None:
    """Bytes that are quick to count: those that autograd keeps."""

    def saved_bytes(run: Callable[[], object], device: torch.device) -> int:
        with SavedTensors() as saved:
            run()
        return saved.peak_bytes

    monkeypatch.setattr(calibration, "live_bytes", saved_bytes)


@pytest.mark.usefixtures("_saved_for_live")
@pytest.mark.parametrize(("dtype", "budget"), [(torch.float32, "1GiB"), (torch.bfloat16, None)])
def test_a_calibration_leaves_the_learner_as_it_was(dtype: torch.dtype, budget: str | None) -> None:
    """Weights, moments and random state bit for bit, no gradients; and later steps as if it had not been."""
    responses = step_responses(31)
    chooser = auto(budget)
    learner = make_learner(chooser, dtype, **ESTIMATORS["grpo hybrid"])
    plain = make_learner(chooser.candidates["none"].layout, dtype, **ESTIMATORS["grpo hybrid"])
    plain.step(responses)
    learner.laid_out(chooser.candidates["none"].layout, 1000).step(responses)  # so that there are moments
    before, random = copy.deepcopy((learner.model.state_dict(), learner.optimizer.state())), torch.get_rng_state()
    found = calibrate(learner, chooser, probes_of(responses, 1000), Ticks(0.001))
    after = (learner.model.state_dict(), learner.optimizer.state())
    assert torch.equal(torch.get_rng_state(), random)
    for name, weight in before[0].items():
        assert torch.equal(after[0][name], weight)
    for index, moments in before[1]["torch"]["state"].items():
        for name, value in moments.items():
            assert torch.equal(after[1]["torch"]["state"][index][name], value)
    assert all(gradient is None for gradient in learner.optimizer.gradients().values())
    assert all(parameter.grad is None for parameter in learner.model.parameters())
    assert found.costs is chooser.costs
    assert set(found.probes) == set(found.costs.seconds) == set(chooser.candidates)
    assert set(found.costs.bytes) == (set() if budget is None else set(CANDIDATES))
    again = learner.laid_out(chooser.candidates["none"].layout, 1000)
    assert again.step(responses).loss == plain.step(responses).loss


def test_a_calibration_refuses_to_lose_gradients() -> None:
    learner = make_learner(auto())
    learner.laid_out(auto().candidates["none"].layout, 1000).backward(step_responses(31))
    with pytest.raises(ValueError, match="before it has gradients"):
        calibrate(learner, auto(), probes_of(step_responses(31), 1000))


def test_a_calibration_ends_in_time_and_measures_the_first_probes_in_any_case() -> None:
    probes = probes_of(responses_of(12, [8] * 6), 1000)
    patient, hasty = AutoLayout(3, None, 1000.0), AutoLayout(3, None, 1e-6)
    learner = learner_of(patient.candidates["none"].layout)
    found = calibrate(learner, patient, probes, Ticks(5.0))
    assert set(found.probes.values()) == {len(probes)}
    assert found.seconds < 1000
    assert set(calibrate(learner, hasty, probes, Ticks(5.0)).probes.values()) == {2}


def test_predicted_bytes_hold_for_other_shapes() -> None:
    """Fitted at small probes: at most a tenth below what a larger step then takes, on a model of the published shape;
    counted by the allocator."""
    chooser = only(auto("1GiB", waves=32), "none", "packed_shared", "prefix", "streamed")
    learner = learner_of(chooser.candidates["none"].layout)
    calibrate(learner, chooser, probes_of(responses_of(12, [6] * 8), 1000), Ticks(3.0))
    larger = responses_of(20, [9] * 12)
    expected = chooser.choose(larger, 1000)
    for name, candidate in chooser.candidates.items():
        run = learner.laid_out(candidate.layout, 1000)
        found = live_bytes(lambda run=run: run.backward(larger), learner.model.device)  # type: ignore[misc]
        learner.optimizer.clear()
        assert 0.9 * found < expected.bytes[name] < 2 * found, name


@pytest.mark.usefixtures("_saved_for_live")
def test_what_exceeds_the_budget_is_not_probed() -> None:
    responses = responses_of(20, [4] * 6)
    probes = probes_of(responses, 1000)
    chooser = only(auto("400KiB", seconds=1000.0), "none", "packed_shared")
    found = calibrate(learner_of(chooser.candidates["none"].layout), chooser, probes, Ticks(3.0))
    assert 1 <= found.probes["none"] < found.probes["packed_shared"] <= len(probes)
    assert chooser.choose(responses, 1000).fits


def test_a_state_goes_on_where_it_was_taken() -> None:
    chooser = forced("joint")
    chooser.chosen(step_responses_kept(), 1000)
    chooser.over_budget = 3
    other = auto()
    other.restore({})
    assert other.costs is None
    other.restore(chooser.state())
    assert (other.costs, other.steps, other.over_budget) == (chooser.costs, {"joint": 1}, 3)
    assert auto().state() == {}


def step_responses_kept() -> list[TrainingResponse]:
    return [response for response in step_responses(31) if any(response.trained)]


def test_two_updates_through_a_choice_are_those_of_the_layout() -> None:
    """Bit for bit: it adds nothing to a step."""
    responses = step_responses(31)
    chosen, plain = (
        make_learner(layout) for layout in (forced("streamed"), forced("streamed").candidates["streamed"][0])
    )
    for learner in (chosen, plain):
        learner.step(responses)
        learner.step(responses)
    for mine, theirs in zip(chosen.model.parameters(), plain.model.parameters(), strict=True):
        assert torch.equal(mine, theirs)
