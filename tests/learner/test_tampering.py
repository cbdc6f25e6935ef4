"""What changes between forward and backward raises, and no wrong gradient comes of it."""

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace

import pytest
import torch
from learner.prefix_cases import GRPO, WAVES, forced, gradients, group, largest_difference, make_learner

from scalerlt.learner.checkpoint import LayerCheckpoint, LoopCheckpoint, NoCheckpoint, Segments
from scalerlt.learner.layout import Pass, StepRun, no_phase
from scalerlt.learner.prefix import JointPrefix, PackedPrefix, SharedPrefix, StreamedPrefix
from scalerlt.learner.step import ActorUpdate
from scalerlt.learner.unchanged import Unchanged

SCHEDULES: dict[str, Callable[[], object]] = {
    "none": NoCheckpoint,
    "layer": LayerCheckpoint,
    "loop": LoopCheckpoint,
    "segments": lambda: Segments(2, 1, 3),
    "auto": lambda: forced("joint"),
    "prefix": lambda: SharedPrefix(2),
    "joint": lambda: JointPrefix(2),
    "streamed": lambda: StreamedPrefix(2),
    "packed_shared": PackedPrefix,
}
RESPONSES = group(31, 5, (4, 1, 6, 2))


def at_backward(number: int, act: Callable[[], object]):
    """Acts when the backward pass of this number, from 1, begins."""
    begun = 0

    def on_phase(name: str):
        nonlocal begun
        begun += name == "backward"
        if name == "backward" and begun == number:
            act()
        return nullcontext()

    return on_phase


def add_in_place(parameter: torch.Tensor) -> None:
    with torch.no_grad():
        parameter.add_(0.5)


def add_and_restore(parameter: torch.Tensor) -> None:
    kept = parameter.detach().clone()
    add_in_place(parameter)
    with torch.no_grad():
        parameter.copy_(kept)


CHANGES = {
    "written": add_in_place,
    "restored": add_and_restore,
    "frozen": lambda parameter: parameter.requires_grad_(False),
}


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("schedule", SCHEDULES)
def test_a_changed_weight_raises_before_a_gradient_is_made_of_it(schedule: str, change: str) -> None:
    for number in (1, 2, 3):
        learner = make_learner(SCHEDULES[schedule](), tokens=10)
        parameter = learner.model.model.layers[1].mlp.up_proj.weight
        before: list[dict[str, torch.Tensor]] = []

        def tamper(learner: ActorUpdate = learner, parameter=parameter, before=before) -> None:
            found = learner.optimizer.gradients()
            before.append({name: grad.clone() for name, grad in found.items() if grad is not None})
            CHANGES[change](parameter)

        with pytest.raises(RuntimeError, match=r"model\.layers\.1\.mlp\.up_proj\.weight"):
            learner.backward(RESPONSES, at_backward(number, tamper))
        after = {name: grad for name, grad in learner.optimizer.gradients().items() if grad is not None}
        assert after.keys() == before[0].keys()
        assert all(torch.equal(after[name], before[0][name]) for name in after)


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_lists_of_tokens_that_change_meanwhile_have_no_influence(schedule: str) -> None:
    asked = [replace(r, replay_logprobs=[-0.5] * len(r.response_tokens)) for r in group(31, 5, (4, 1))]
    learner = make_learner(SCHEDULES[schedule](), logprob="hybrid", objective=GRPO)
    expected = gradients(learner, asked)
    learner.optimizer.clear()

    def tamper() -> None:
        asked[0].response_tokens[1] += 1
        asked[0].replay_logprobs[1] += 1
        asked[0].prompt_tokens[1] += 1

    loss = learner.backward(asked, at_backward(1, tamper)).loss
    found = learner.optimizer.gradients()
    assert largest_difference((loss, {n: g for n, g in found.items() if g is not None}), expected) == 0


def wave_pass(layout: SharedPrefix, spoil: Callable[[Pass], None] | None) -> ActorUpdate:
    """The passes by hand, with something done to each before its backward pass."""
    learner = make_learner(layout)
    run = StepRun(learner._estimator, learner.optimizer, layout.schedule, no_phase)
    for part in layout.passes(RESPONSES, 1000, run):
        values = part.evaluate().logprobs
        if spoil is not None:
            spoil(part)
        with run.backward():
            values.sum().backward()
    return learner


@pytest.mark.parametrize("layout", WAVES)
@pytest.mark.parametrize("tensor", ["inputs", "labels"])
def test_changed_tokens_or_labels_of_a_wave_raise(layout, tensor: str) -> None:
    wave_pass(layout(2), None)

    def spoil(part: Pass) -> None:
        getattr(part.evaluate.args[0], tensor)[1] = 0

    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        wave_pass(layout(2), spoil)


@pytest.mark.parametrize("layout", WAVES)
def test_changed_tokens_of_the_prompt_raise(layout, monkeypatch: pytest.MonkeyPatch) -> None:
    class Spoiling(layout):
        def prompt(self, tokens, waves, run):
            for part in super().prompt(tokens, waves, run):
                yield part
                tokens[1] = 0

    with pytest.raises(RuntimeError, match=r"modified by an inplace operation|tokens of a prompt"):
        wave_pass(Spoiling(2), None)


def test_what_is_a_change() -> None:
    tensor, other = torch.zeros(2), torch.zeros(2)
    unchanged = Unchanged({"first": tensor, "second": other})
    tensor.grad = torch.ones(2)
    unchanged.check()
    other[0] = 0.0
    with pytest.raises(RuntimeError, match=r": second$"):
        unchanged.check()
