"""The learner step a second time, from the formulas: one response at a time, one token at a time, no padding.

Only the model itself is shared with the package.
"""

import math

import torch

from scalerlt.learner.batching import TrainingResponse
from scalerlt.models.ouro import OuroForCausalLM


def plain_logprobs(model: OuroForCausalLM, response: TrainingResponse, temperature: float) -> list[torch.Tensor]:
    """log p of each response token, by a fresh pass over the tokens before it."""
    tokens = [*response.prompt_tokens, *response.response_tokens]
    logprobs = []
    for position in range(len(response.prompt_tokens), len(tokens)):
        scaled = model.logits(model(torch.tensor([tokens[:position]]))[-1][0, -1]) / temperature
        normaliser = torch.log(torch.exp(scaled).sum())
        logprobs.append(scaled[tokens[position]] - normaliser)
    return logprobs


def plain_loss(
    model: OuroForCausalLM, responses: list[TrainingResponse], reduction: str, temperature: float
) -> torch.Tensor:
    """The policy-gradient loss with its reduction written out."""
    trained = [[t for t in range(len(r.response_tokens)) if r.mask is None or r.mask[t]] for r in responses]
    total = sum(len(positions) for positions in trained)
    nonempty = sum(1 for positions in trained if positions)
    loss = torch.zeros((), dtype=torch.float64)
    for response, positions in zip(responses, trained, strict=True):
        if not positions:
            continue
        logprobs = plain_logprobs(model, response, temperature)
        for t in positions:
            weight = 1 / total if reduction == "token_mean" else 1 / (nonempty * len(positions))
            loss = loss - weight * response.advantage * logprobs[t]
    return loss


def ragged_responses(seed: int = 0, vocab_size: int = 29, lengths: tuple[int, ...] = (1, 7, 2, 30)):
    """Responses of the given lengths with distinct advantages of both signs, prompts of 1 to 5 tokens."""
    generator = torch.Generator().manual_seed(seed)

    def draw(count: int) -> list[int]:
        return torch.randint(vocab_size, (count,), generator=generator).tolist()

    return [
        TrainingResponse(draw(1 + (3 * index) % 5), draw(length), advantage=math.sin(1 + 2.3 * index))
        for index, length in enumerate(lengths)
    ]
