"""How much a cell runs through its model, from its configuration alone: sequences, tokens, floating-point operations.

The learner's sequences are those of its recorded or random rollouts. A rollout's are not known before it runs: the
length of a prompt is typical for its task, and every response is as long as `rollout.max_new_tokens` allows.
"""

import itertools
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from scalerlt.schema.cell import Cell
from scalerlt.schema.checkpoint.auto import Auto
from scalerlt.schema.checkpoint.prefix import Prefix
from scalerlt.schema.experiment import RepeatedExperiment
from scalerlt.schema.experiment.gsm8k_eval import Gsm8kEval
from scalerlt.schema.experiment.gsm8k_reward import Gsm8kReward
from scalerlt.schema.experiment.rollout_throughput import RolloutThroughput
from scalerlt.schema.fields import resolve_path
from scalerlt.schema.flops import causal_pairs, layer_weights, loops_flops, readout_flops
from scalerlt.schema.model import Model
from scalerlt.schema.task import RecordedTask
from scalerlt.schema.task.random_rollouts import RandomRollouts
from scalerlt.schema.task.random_tokens import RandomTokens

SHARED_PREFIX = ("prefix", "joint", "streamed", "packed_shared")
"""Checkpoint schedules that run the prompt of several responses once."""

TYPICAL_PROMPT_TOKENS = {"arithmetic": 24, "gsm8k": 80}
"""Of one problem in the prompt, by task: of generated problems in the embedded model's words, of GSM8K in Ouro's."""
TYPICAL_EXAMPLE_TOKENS = {"arithmetic": 60, "gsm8k": 200}
"""Of one worked example before it."""
GSM8K_TEST_PROBLEMS = 1319


@dataclass(frozen=True)
class Sequences:
    """Prompts with their responses.

    Attributes:
        lengths: prompt and response tokens of each.
        known: whether these are the lengths that the cell will run, and no assumption.
    """

    lengths: tuple[tuple[int, int], ...]
    known: bool


def training_sequences(cell: Cell) -> Sequences:
    """What one learner step learns from."""
    if cell.experiment.name != "actor_update":
        return rollout_sequences(cell)
    prompts, group_size = cell.batch.prompts_per_step, cell.batch.group_size
    match cell.task:
        case RandomRollouts() as task:
            places = itertools.product(range(prompts), range(group_size))
            return Sequences(tuple((task.prompt_length, task.length(*place)) for place in places), known=True)
        case RecordedTask() as task:
            path = resolve_path(task.rollouts)
            return Sequences(_recorded(path, path.stat().st_mtime_ns, prompts, group_size), known=True)
    return rollout_sequences(cell)


def rollout_sequences(cell: Cell) -> Sequences:
    """One rollout batch."""
    prompt, known = prompt_tokens(cell)
    pair = (prompt, cell.rollout.max_new_tokens)
    return Sequences((pair,) * cell.batch.responses_per_step, known and cell.rollout.ignore_eos)


def prompt_tokens(cell: Cell) -> tuple[int, bool]:
    """Tokens of a prompt, and whether this is known."""
    if isinstance(cell.task, RandomTokens):
        return cell.task.prompt_length, True
    question = TYPICAL_PROMPT_TOKENS.get(cell.task.name, 100)
    return question + cell.prompt.shots * TYPICAL_EXAMPLE_TOKENS.get(cell.task.name, 200), False


def microbatches(
    cell: Cell, lengths: Sequence[tuple[int, int]], *, shared: bool = False
) -> Iterator[list[tuple[int, int]]]:
    """The learner's micro-batches: of each optimizer step's sequences, longest first, padded at most
    `batch.microbatch_tokens` tokens, one sequence at least.

    Of shared prefixes the waves, whose prompts do not count, as if each prompt had the responses of its group alone.
    """
    wave = cell.checkpoint.wave_responses if shared and isinstance(cell.checkpoint, Prefix) else None
    step = cell.batch.minibatch_responses
    together = min(cell.batch.group_size, step) if shared else step

    def rows(pair: tuple[int, int]) -> int:
        return pair[1] if shared else sum(pair) - 1

    for start in range(0, len(lengths), together):
        current: list[tuple[int, int]] = []
        for pair in sorted(lengths[start : start + together], key=lambda pair: -rows(pair)):
            if current and (
                len(current) == wave or (len(current) + 1) * rows(current[0]) > cell.batch.microbatch_tokens
            ):
                yield current
                current = []
            current.append(pair)
        if current:
            yield current


def parameters(model: Model) -> int:
    """Weights of the model, each once."""
    layer = layer_weights(model) + (4 if model.sandwich_norms else 2) * model.hidden_size
    loops = model.num_hidden_layers * layer + model.hidden_size + gate_parameters(model)
    return 2 * model.vocab_size * model.hidden_size + loops


def gate_parameters(model: Model) -> int:
    """Weights of the exit gate; a plain transformer has none."""
    return model.hidden_size + 1 if model.sandwich_norms else 0


def flops(cell: Cell) -> float | None:
    """Floating-point operations of the whole cell; None of an experiment that is not known here.

    Of a forward pass two per weight and row and loop, and attention's; a backward pass twice as many; once more what a
    checkpoint schedule computes again. All loops are counted, though deferred rollouts leave some out.
    """
    batch = rollout_sequences(cell).lengths
    generate = _forward(cell, batch, read_out_all=True)
    match cell.experiment:
        case Gsm8kEval() as evaluation:
            problems = evaluation.problems or GSM8K_TEST_PROBLEMS
            passes = 1 if cell.rollout.schedule == "dense" else 2
            return passes * problems * generate / len(batch)
        case Gsm8kReward() as reward:
            evaluations = 2 + (reward.steps - 1) // reward.evaluate_every
            passes = 1 if cell.rollout.schedule == "dense" else 2
            held_out = passes * evaluations * reward.eval_problems * generate / len(batch)
            biases = -(-reward.steps // reward.grad_bias_every) if reward.grad_bias_every else 0
            updates = (reward.steps + 2 * biases) * update_flops(cell, batch)  # of a bias the gradients of two learners
            return held_out + reward.steps * generate + updates
        case RolloutThroughput() as rollout:
            # Warm-up, time, phases, other company, two memory passes, and the learner's log-probs twice.
            compared = min(rollout.reference_requests or len(batch), len(batch)) / len(batch)
            whole = rollout.warmup + 2 * rollout.repeats + rollout.company + 2 * rollout.memory + 2 * compared
            # By turns a rollout, its replay by the engine and its replay by the learner.
            return (whole + 3 * rollout.replay * (rollout.warmup + rollout.repeats)) * generate
        case RepeatedExperiment() as repeated if repeated.name == "actor_update":
            # Warm-up, time, two memory passes; two updates by each of two schedules, fp64 gradients twice.
            lengths = training_sequences(cell).lengths
            return (repeated.warmup + repeated.repeats + 2 + 6) * update_flops(cell, lengths)
    return None


def update_flops(cell: Cell, lengths: Sequence[tuple[int, int]]) -> float:
    """Of one learner step over the sequences; of shared prefixes as if each prompt had all responses of its group; of
    `checkpoint=auto` as if nothing could be shared."""
    auto = isinstance(cell.checkpoint, Auto) and cell.checkpoint.memory_budget is None
    passes = 3 if cell.checkpoint.name == "none" or auto else 4
    replay = cell.logprob.extra_passes(cell)
    forward = (passes + replay) * _forward(cell, lengths, read_out_all=False)
    if cell.checkpoint.name in SHARED_PREFIX:
        prompts = _forward(cell, [(prompt, 1) for prompt, _ in lengths], read_out_all=False)
        responses = _forward(cell, lengths, read_out_all=False) - prompts
        sharing = min(cell.batch.group_size, cell.batch.minibatch_responses)
        prompt_passes = 4 if cell.checkpoint.name in ("joint", "streamed") else 3
        passes = 4 if cell.checkpoint.name == "joint" else 3
        forward = prompt_passes * prompts / sharing + (passes + replay) * responses
    tiled = cell.checkpoint.readout == "tiled" and passes == 3  # else the fourth pass counts the logits once more
    return forward + (_read_out(cell, lengths, every_loop=_rltt(cell)) if tiled else 0)


def _forward(cell: Cell, lengths: Sequence[tuple[int, int]], *, read_out_all: bool) -> float:
    rows = [prompt + response - 1 for prompt, response in lengths]
    read_out = _read_out(cell, lengths, every_loop=_rltt(cell) and not read_out_all)
    return loops_flops(cell.model, rows=sum(rows), pairs=sum(map(causal_pairs, rows))) + read_out


def _read_out(cell: Cell, lengths: Sequence[tuple[int, int]], *, every_loop: bool) -> float:
    labels = sum(response for _, response in lengths)
    return readout_flops(cell.model, labels * (cell.model.total_ut_steps if every_loop else 1))


def _rltt(cell: Cell) -> bool:
    return cell.algorithm.name == "rltt"


@lru_cache(maxsize=256)
def _recorded(path: Path, modified_ns: int, prompts: int, group_size: int) -> tuple[tuple[int, int], ...]:
    """The lengths of the first `prompts` prompt groups with at least `group_size` responses, cut to so many."""
    groups: dict[int, list[tuple[int, int]]] = {}
    for line in path.read_text(encoding="utf-8").splitlines()[1:]:
        sample = json.loads(line)
        pair = (len(sample["prompt_tokens"]), len(sample["response_tokens"]))
        groups.setdefault(sample["prompt_group"], []).append(pair)
    whole = [group[:group_size] for group in groups.values() if len(group) >= group_size]
    return tuple(pair for group in whole[:prompts] for pair in group)
