"""From a cell's task to the requests of one rollout batch."""

import random
from collections.abc import Sequence

from scalerlt.errors import UserError
from scalerlt.experiments.inputs import examples, problems, weights_path
from scalerlt.models.tokenizer import Tokenizer, WordTokenizer, load_tokenizer
from scalerlt.rollout.request import Request
from scalerlt.schema import Cell
from scalerlt.schema.rollout.trace import Trace
from scalerlt.schema.task.random_tokens import RandomTokens
from scalerlt.tasks.problem import Problem
from scalerlt.tasks.prompt import Prompt
from scalerlt.tasks.random_tokens import random_prompts


def tokenizer_of(cell: Cell) -> Tokenizer:
    """The checkpoint's tokenizer; the embedded one for random weights.

    Raises:
        UserError: the model's vocabulary is smaller than the tokenizer's.
    """
    path = weights_path(cell)
    tokenizer = WordTokenizer.embedded() if path is None else load_tokenizer(path)
    if tokenizer.vocab_size > cell.model.vocab_size:
        raise UserError(
            f"model.vocab_size={cell.model.vocab_size} is smaller than the tokenizer's {tokenizer.vocab_size} tokens"
        )
    return tokenizer


def prompt_of(cell: Cell) -> Prompt:
    """The cell's prompt, with its worked examples."""
    return Prompt(cell.prompt.template, tuple(examples(cell)))


def encoded(cell: Cell, tokenizer: Tokenizer, questions: Sequence[Problem]) -> list[tuple[int, ...]]:
    """The prompts of problems as token ids."""
    prompt = prompt_of(cell)
    return [tuple(tokenizer.encode(prompt.render(problem.question))) for problem in questions]


def prompts_of(cell: Cell) -> list[tuple[int, ...]]:
    """The token ids of `batch.prompts_per_step` prompts."""
    count = cell.batch.prompts_per_step
    if isinstance(cell.task, RandomTokens):
        task = cell.task
        drawn = random_prompts(cell.model.vocab_size, task.prompt_length, count, task.problem_seed)
        return [tuple(tokens) for tokens in drawn]
    return encoded(cell, tokenizer_of(cell), problems(cell, count))


def requests_of(cell: Cell) -> list[Request]:
    """One rollout batch: `batch.group_size` requests for each prompt, side by side, each with a seed of its own."""
    return requests_for(cell, prompts_of(cell))


def requests_for(
    cell: Cell,
    prompts: Sequence[tuple[int, ...]],
    *,
    group_size: int | None = None,
    temperature: float | None = None,
    first_seed: int = 0,
) -> list[Request]:
    """`group_size` requests for each prompt, side by side.

    Args:
        group_size: `batch.group_size` by default.
        temperature: `rollout.temperature` by default.
        first_seed: index of the first request among all that the cell makes.
    """
    size = cell.batch.group_size if group_size is None else group_size
    requests = []
    for prompt, tokens in enumerate(prompts):
        for member in range(size):
            seed = request_seed(cell.seed, first_seed + prompt * size + member)
            requests.append(
                Request(
                    request_id=f"{prompt}.{member}",
                    prompt_tokens=tokens,
                    max_new_tokens=cell.rollout.max_new_tokens,
                    temperature=cell.rollout.temperature if temperature is None else temperature,
                    top_k=cell.rollout.top_k,
                    top_p=cell.rollout.top_p,
                    seed=seed,
                    ignore_eos=cell.rollout.ignore_eos,
                    forced_depths=traced_depths(cell, seed),
                )
            )
    return requests


def traced_depths(cell: Cell, seed: int) -> tuple[int, ...] | None:
    """The exit depth of each token of a request under `rollout=trace`, by its seed alone; None: they are not given."""
    if not isinstance(cell.rollout, Trace):
        return None
    shares, decoded = cell.rollout.depth_shares, cell.rollout.max_new_tokens - 1
    drawn = random.Random(seed).choices(range(1, len(shares) + 1), shares, k=decoded)
    return (len(shares), *drawn)


def request_seed(seed: int, index: int) -> int:
    """The seed of request `index` of a cell; distinct for all cells' seeds and fewer than 2^32 requests."""
    return (seed << 32) + index
