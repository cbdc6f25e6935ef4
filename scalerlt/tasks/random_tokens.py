"""Random-token prompts: fixed work without text, as the `random` data set of `vllm bench`."""

from scalerlt.errors import UserError
from scalerlt.tasks.counter_random import random_below, stream_key


def random_prompts(vocab_size: int, prompt_length: int, count: int, seed: int, group_size: int = 1) -> list[list[int]]:
    """Draw `count` distinct streams of `prompt_length` token ids, uniform over range(vocab_size).

    Token j of prompt i depends on seed, i, j and vocab_size only: fewer or shorter prompts are a prefix of more or
    longer ones.

    Args:
        vocab_size: number of token ids.
        prompt_length: tokens per prompt.
        count: prompts before repetition.
        seed: names the streams.
        group_size: how often each prompt stands in the result, its copies side by side (a prompt group).

    Returns:
        count * group_size lists of prompt_length ids.

    Raises:
        UserError: a size is not positive.
    """
    sizes = {
        "vocab_size": vocab_size,
        "prompt_length": prompt_length,
        "count": count,
        "group_size": group_size,
    }
    for name, size in sizes.items():
        if size < 1:
            raise UserError(f"random_tokens: {name} is {size}; it must be at least 1")
    prompts = []
    for prompt in range(count):
        key = stream_key("random_tokens", seed, prompt)
        tokens = [random_below(key, position, vocab_size) for position in range(prompt_length)]
        prompts += [list(tokens) for _ in range(group_size)]
    return prompts
