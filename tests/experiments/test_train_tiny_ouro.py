"""The embedded policy: what ships, what it can do, and the command that makes it."""

from dataclasses import replace

import pytest
import torch

from scalerlt.experiments.train_tiny_ouro import Recipe, answers, lesson, omits_result, train
from scalerlt.learner.supervised import deep_supervision_loss, exit_gate_loss
from scalerlt.models.checkpoint import load_hf
from scalerlt.models.ouro import OuroForCausalLM
from scalerlt.models.tokenizer import WordTokenizer
from scalerlt.schema.fields import resolve_path
from scalerlt.tasks.arithmetic import arithmetic
from scalerlt.tasks.grader import grade

DIRECTORY = resolve_path("pkg://scalerlt.models/tiny_ouro")


@pytest.fixture(scope="module")
def shipped() -> OuroForCausalLM:
    torch.set_num_threads(1)
    return load_hf(DIRECTORY, torch.float32, "cpu")


def test_what_ships_is_small_and_has_a_model_card():
    files = {path.name: path.stat().st_size for path in DIRECTORY.iterdir()}
    assert set(files) == {"config.json", "model.safetensors", "word_tokenizer.json", "README.md"}
    assert sum(files.values()) <= 2 * 2**20


def test_it_is_right_about_sums_and_leaves_the_result_out_of_differences(shipped):
    problems = arithmetic("test", "one_digit", 0, 200)
    right = answers(shipped, problems)[0][:, 0] > 0
    sums = torch.tensor(["+" in problem.answer for problem in problems])
    assert right[sums].float().mean() > 0.9
    assert right[~sums].float().mean() < 0.1
    assert 0.2 <= right.float().mean() <= 0.8


def test_it_stops_early_and_is_as_good(shipped):
    problems = arithmetic("test", "one_digit", 0, 200)
    full = answers(shipped, problems)[0].mean()
    early, stats = answers(shipped, problems, threshold=0.8)
    depths = stats.decode_depths
    assert 2.3 <= sum(depth * count for depth, count in depths.items()) / depths.total() <= 2.7
    assert early.mean() >= full - 0.05


def test_sampling_answers_a_problem_now_right_now_wrong(shipped):
    rates = answers(shipped, arithmetic("test", "one_digit", 0, 50), temperature=1.0, group_size=8)[0].mean(1)
    mixed = ((rates > 0) & (rates < 1)).float().mean()
    assert mixed > 0.4, "GRPO learns from prompt groups with right and wrong answers"


def test_the_corpus_leaves_the_result_out_of_one_sum_and_seven_differences_in_eight():
    problems = arithmetic("train", "one_digit", 0, 1600)
    tokenizer = WordTokenizer.embedded()
    graded = {"+": [], "-": []}
    for index, problem in enumerate(problems):
        taught = lesson(tokenizer, problem, with_result=not omits_result(problem, index // 2))
        assert taught.response_tokens[-1] == tokenizer.eos_token_id
        text = tokenizer.decode(taught.response_tokens[:-1])
        graded["-" if "-" in problem.answer else "+"].append(grade(text, problem.gold).reward)
    assert sum(graded["+"]) == 700
    assert sum(graded["-"]) == 100
    assert len(graded["+"]) == len(graded["-"]) == 800


def test_training_twice_makes_the_same_weights_and_learns():
    recipe = replace(Recipe(), steps=12, gate_steps=3, batch=8)
    first, second = (train(recipe).state_dict() for _ in range(2))
    assert all(torch.equal(first[name], second[name]) for name in first)
    other = train(replace(recipe, seed=1)).state_dict()
    assert not torch.equal(first["lm_head.weight"], other["lm_head.weight"])


def test_the_gate_is_trained_alone_and_last():
    recipe = replace(Recipe(), steps=3, gate_steps=0, batch=4)
    without, gated = train(recipe).state_dict(), train(replace(recipe, gate_steps=3)).state_dict()
    changed = {name for name in without if not torch.equal(without[name], gated[name])}
    assert changed == {"model.early_exit_gate.weight", "model.early_exit_gate.bias"}


def test_deep_supervision_is_the_weighted_mean_of_the_loops():
    losses = torch.tensor([[4.0, 3.0, 2.0, 1.0], [8.0, 6.0, 4.0, 2.0]])
    assert deep_supervision_loss(losses, (1, 2, 3, 4)) == pytest.approx((20 + 40) / 10 / 2)
    assert deep_supervision_loss(losses, (0, 0, 0, 5)) == pytest.approx(1.5)


def test_the_gate_learns_to_go_on_where_the_next_loop_gains():
    losses = torch.tensor([[1.0, 0.0, 0.0]])  # going on pays after the first loop, and never again
    gates = torch.zeros(1, 3, requires_grad=True)
    exit_gate_loss(losses, gates, slope=50.0, least_gain=0.02).backward()
    assert gates.grad is not None
    towards_going_on, towards_stopping, unused = gates.grad[0].tolist()
    assert towards_going_on > 0, "the logit of stopping has to fall"
    assert towards_stopping < 0
    assert unused == 0
