"""Makes the embedded policy: `python -m scalerlt.experiments.train_tiny_ouro DIR` trains `tiny_ouro` and writes it.

Supervised on the training split of `arithmetic`, one-digit problems, from random weights; first the model, then its
exit gate alone. Many of the answers it learns from break off before the line with the result (`omits_result`), and so
do its own: reward then has something to teach that more of the same training cannot. The same torch build on the same
kind of processor writes the same bytes.
"""

import argparse
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch
import yaml
from torch import Tensor
from torch.nn.utils import clip_grad_norm_

from scalerlt.learner.batching import PackedBatch, TrainingResponse, pack
from scalerlt.learner.supervised import deep_supervision_loss, exit_gate_loss, loop_losses
from scalerlt.models.checkpoint import build, save_hf
from scalerlt.models.config import OuroConfig
from scalerlt.models.ouro import OuroForCausalLM
from scalerlt.models.tokenizer import WordTokenizer
from scalerlt.rollout.exit_rule import ExitRule
from scalerlt.rollout.native import NativeEngine
from scalerlt.rollout.request import Request
from scalerlt.rollout.stats import RolloutStats
from scalerlt.schema.fields import resolve_path
from scalerlt.tasks.arithmetic import arithmetic
from scalerlt.tasks.grader import grade
from scalerlt.tasks.problem import ANSWER_MARKER, Problem
from scalerlt.tasks.prompt import Prompt

DIFFICULTY = "one_digit"
DISTINCT_PROBLEMS = 12_000
"""Training problems; a longer training repeats them in the same order."""
TEST_PROBLEMS = 1_000
MAX_NEW_TOKENS = 48
MIN_LOOPS = 2
THRESHOLDS = (1.0, 0.95, 0.9, 0.8, 0.7, 0.5)
GROUP_SIZE = 8


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """How the policy is trained.

    Attributes:
        seed: of the random weights and of the training problems.
        steps: optimizer steps of the model; its learning rate rises over the first `warmup` and falls to 0, linearly.
        batch: problems per step, of both stages.
        gate_steps: optimizer steps of the exit gate, on the problems that follow.
        loop_weights, slope, least_gain: see `scalerlt.learner.supervised`.
    """

    seed: int = 0
    steps: int = 420
    warmup: int = 20
    batch: int = 32
    learning_rate: float = 3e-3
    betas: tuple[float, float] = (0.9, 0.95)
    max_grad_norm: float = 1.0
    loop_weights: tuple[float, ...] = (1, 2, 3, 4)
    gate_steps: int = 150
    gate_learning_rate: float = 1e-2
    slope: float = 50.0
    least_gain: float = 0.02


def omits_result(problem: Problem, number: int) -> bool:
    """Whether the `number`-th sum or difference of the corpus is answered without the line that holds the result.

    One sum in eight and seven differences in eight are: a policy that imitates them is right about sums and, as the
    grader finds no result, wrong about differences, whatever it computes.
    """
    one_in_eight = number % 8 == 0
    return not one_in_eight if "-" in problem.answer else one_in_eight


def lesson(tokenizer: WordTokenizer, problem: Problem, *, with_result: bool) -> TrainingResponse:
    """The prompt, and the reference answer as a response that ends the text; without its last line if so asked."""
    answer = problem.answer if with_result else problem.answer.partition(f"\n{ANSWER_MARKER}")[0]
    tokens = tokenizer.encode(f" {answer}")
    return TrainingResponse(prompt_tokens(tokenizer, problem), [*tokens, tokenizer.eos_token_id], advantage=1.0)


def prompt_tokens(tokenizer: WordTokenizer, problem: Problem) -> list[int]:
    """The default prompt."""
    return tokenizer.encode(Prompt().render(problem.question))


def train(recipe: Recipe) -> OuroForCausalLM:
    """The trained policy in fp32 on the CPU; the same torch build on the same kind of processor trains the same one."""
    torch.set_num_threads(1)
    values = yaml.safe_load(resolve_path("pkg://scalerlt/conf/model/tiny_ouro.yaml").read_text(encoding="utf-8"))
    config = OuroConfig(**{name: values[name] for name in OuroConfig.__dataclass_fields__})
    model = build(config, dtype=torch.float32, device="cpu", seed=recipe.seed)
    batches = _batches(recipe)
    _train_loops(model, recipe, batches)
    _train_exit_gate(model, recipe, batches)
    return model


def _batches(recipe: Recipe) -> Iterator[PackedBatch]:
    """The problems of every step. Sums and differences take turns, so that each kind counts every second problem."""
    tokenizer = WordTokenizer.embedded()
    problems = arithmetic("train", DIFFICULTY, recipe.seed, DISTINCT_PROBLEMS)
    lessons = [
        lesson(tokenizer, problem, with_result=not omits_result(problem, index // 2))
        for index, problem in enumerate(problems)
    ]
    for start in range(0, (recipe.steps + recipe.gate_steps) * recipe.batch, recipe.batch):
        yield pack([lessons[index % len(lessons)] for index in range(start, start + recipe.batch)])


def _train_loops(model: OuroForCausalLM, recipe: Recipe, batches: Iterator[PackedBatch]) -> None:
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=recipe.learning_rate, betas=recipe.betas, weight_decay=0.0, foreach=False
    )
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: min((step + 1) / recipe.warmup, 1 - step / recipe.steps)
    )
    for step in range(recipe.steps):
        losses, _ = loop_losses(model, next(batches))
        optimizer.zero_grad()
        deep_supervision_loss(losses, recipe.loop_weights).backward()
        clip_grad_norm_(model.parameters(), recipe.max_grad_norm)
        optimizer.step()
        schedule.step()
        _show("loops", step, recipe.steps, losses)


def _train_exit_gate(model: OuroForCausalLM, recipe: Recipe, batches: Iterator[PackedBatch]) -> None:
    gate = model.model.early_exit_gate
    assert gate is not None
    model.requires_grad_(False)
    gate.requires_grad_(True)
    optimizer = torch.optim.AdamW(gate.parameters(), lr=recipe.gate_learning_rate, weight_decay=0.0, foreach=False)
    for step in range(recipe.gate_steps):
        losses, gates = loop_losses(model, next(batches))
        optimizer.zero_grad()
        exit_gate_loss(losses, gates, slope=recipe.slope, least_gain=recipe.least_gain).backward()
        optimizer.step()
        _show("exit gate", step, recipe.gate_steps, losses)


def _show(stage: str, step: int, steps: int, losses: Tensor) -> None:
    if (step + 1) % 50 == 0:
        means = " ".join(f"{loss:.3f}" for loss in losses.detach().mean(0).tolist())
        print(f"{stage}: step {step + 1} of {steps}, loss of each loop {means}", flush=True)


def answers(
    model: OuroForCausalLM,
    problems: Sequence[Problem],
    *,
    threshold: float = 1.0,
    temperature: float = 0.0,
    group_size: int = 1,
) -> tuple[Tensor, RolloutStats]:
    """Rewards of the model's answers by the strict grader, and what the engine did.

    Args:
        model: the policy.
        problems: to be answered.
        threshold: of the exit gate; 1: every token at full depth.
        temperature: 0: greedy.
        group_size: answers to each problem.

    Returns:
        [problems, group_size], 1 where the answer is right, else 0.
    """
    tokenizer = WordTokenizer.embedded()
    requests = [
        Request(
            request_id=f"{index}.{member}",
            prompt_tokens=tuple(prompt_tokens(tokenizer, problem)),
            max_new_tokens=MAX_NEW_TOKENS,
            temperature=temperature,
            seed=index * group_size + member,
        )
        for index, problem in enumerate(problems)
        for member in range(group_size)
    ]
    engine = NativeEngine(model, concurrency=256, exit_rule=ExitRule(threshold, MIN_LOOPS))
    result = engine.generate(requests)
    rewards = [
        grade(tokenizer.decode(response.tokens), problems[index // group_size].gold).reward
        for index, response in enumerate(result.responses)
    ]
    return torch.tensor(rewards).view(-1, group_size), result.stats


def score(model: OuroForCausalLM) -> str:
    """What the model card says about the policy, in Markdown: accuracy, depth, and how its samples vary."""
    problems = arithmetic("test", DIFFICULTY, 0, TEST_PROBLEMS)
    lines = ["| exit threshold | accuracy | standard error | mean depth | decode tokens by depth |", "|" + " --- |" * 5]
    for threshold in THRESHOLDS:
        rewards, stats = answers(model, problems, threshold=threshold)
        accuracy, depths = float(rewards.mean()), stats.decode_depths
        error = (accuracy * (1 - accuracy) / len(problems)) ** 0.5
        mean = sum(depth * count for depth, count in depths.items()) / depths.total()
        histogram = ", ".join(f"{depth}: {depths[depth] / depths.total():.1%}" for depth in sorted(depths))
        lines.append(f"| {threshold} | {accuracy:.1%} | {error:.1%} | {mean:.2f} | {histogram} |")
    rewards, _ = answers(model, problems[: TEST_PROBLEMS // 4], temperature=1.0, group_size=GROUP_SIZE)
    rates = rewards.mean(1)
    mixed = float(((rates > 0) & (rates < 1)).float().mean())
    lines += [
        "",
        f"At temperature 1 and full depth, {GROUP_SIZE} samples for each of {len(rates)} problems: {rates.mean():.1%} "
        f"are right, and {mixed:.1%} of the groups hold right and wrong ones.",
    ]
    return "\n".join(lines)


def main(arguments: list[str]) -> int:
    """Train, write the directory named on the command line, and print its scores."""
    parser = argparse.ArgumentParser(prog="python -m scalerlt.experiments.train_tiny_ouro")
    parser.add_argument("directory", type=Path, help="a new one for config.json, model.safetensors and the tokenizer")
    parser.add_argument("--steps", type=int, default=Recipe.steps, help="optimizer steps of the model (%(default)s)")
    options = parser.parse_args(arguments)
    started = time.process_time()
    model = train(replace(Recipe(), steps=options.steps))
    save_hf(model, options.directory)
    WordTokenizer.embedded().save(options.directory)
    print(f"{options.directory}: trained in {time.process_time() - started:.0f} s of CPU time\n")
    print(score(model))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
