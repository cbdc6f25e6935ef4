"""From a cell's task to the requests of one rollout batch."""

from scalerlt.errors import UserError
from scalerlt.experiments.inputs import problems, weights_path
from scalerlt.models.tokenizer import Tokenizer, WordTokenizer, load_tokenizer
from scalerlt.rollout.request import Request
from scalerlt.schema import Cell
from scalerlt.schema.task.random_tokens import RandomTokens
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


def prompts_of(cell: Cell) -> list[tuple[int, ...]]:
    """The token ids of `batch.prompts_per_step` prompts."""
    count = cell.batch.prompts_per_step
    if isinstance(cell.task, RandomTokens):
        task = cell.task
        return [
            tuple(tokens)
            for tokens in random_prompts(cell.model.vocab_size, task.prompt_length, count, task.problem_seed)
        ]
    tokenizer, prompt = tokenizer_of(cell), Prompt()
    return [tuple(tokenizer.encode(prompt.render(problem.question))) for problem in problems(cell, count)]


def requests_of(cell: Cell) -> list[Request]:
    """One request per response: `batch.group_size` for each prompt, each with a seed of its own."""
    prompts = prompts_of(cell)
    return [
        Request(
            request_id=f"{prompt}.{response}",
            prompt_tokens=tokens,
            max_new_tokens=cell.rollout.max_new_tokens,
            temperature=cell.rollout.temperature,
            seed=request_seed(cell.seed, prompt * cell.batch.group_size + response),
            ignore_eos=cell.rollout.ignore_eos,
        )
        for prompt, tokens in enumerate(prompts)
        for response in range(cell.batch.group_size)
    ]


def request_seed(seed: int, index: int) -> int:
    """The seed of request `index` of a cell; distinct for all cells' seeds and fewer than 2^32 requests."""
    return (seed << 32) + index
