"""How responses are cut into optimizer steps and micro-batches, and padded."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TypeVar

import torch
from torch import Tensor

T = TypeVar("T")


@dataclass(frozen=True)
class TrainingResponse:
    """One response to learn from.

    Attributes:
        prompt_tokens: at least one.
        response_tokens: may be empty.
        advantage: of the whole response.
        mask: which response tokens are trained; None: all.
        exit_depths: loops that produced each response token, the first K; None: all K.
        rollout_logprobs: of each response token under the distribution that it was drawn from.
        old_logprobs: of each response token under the policy that ratios are taken against; None: the rollout's.
        ref_logprobs: of each response token under the frozen reference policy.

    Raises:
        ValueError: there are more or fewer of one of these than response tokens.
    """

    prompt_tokens: Sequence[int]
    response_tokens: Sequence[int]
    advantage: float
    mask: Sequence[bool] | None = None
    exit_depths: Sequence[int] | None = None
    rollout_logprobs: Sequence[float] | None = None
    old_logprobs: Sequence[float] | None = None
    ref_logprobs: Sequence[float] | None = None

    def __post_init__(self) -> None:
        for name in ("mask", "exit_depths", "rollout_logprobs", "old_logprobs", "ref_logprobs"):
            values = getattr(self, name)
            if values is not None and len(values) != len(self.response_tokens):
                raise ValueError(f"{len(values)} values of {name} for {len(self.response_tokens)} response tokens")

    @property
    def trained(self) -> list[bool]:
        """Of each response token, whether it is trained."""
        return [True] * len(self.response_tokens) if self.mask is None else list(self.mask)

    @property
    def rows(self) -> int:
        """Tokens that the model reads: all but the last, which predicts nothing that is trained."""
        return len(self.prompt_tokens) + len(self.response_tokens) - 1


@dataclass(frozen=True)
class PaddedBatch:
    """Prompts with their responses, padded on the right.

    It holds what was sampled and under which schedule, and no log-prob that was recorded.

    Attributes:
        input_ids: [B, S] int64, each prompt and response without its last token; zeros as padding.
        response_mask: [B, T] bool, true where there is a response token.
        predictors: [N] int64, for each response token, in row order, the place in the flattened [B * S] whose hidden
            state predicts it.
        targets: [N] int64, the response tokens in row order.
        lengths: [B] int64, tokens of each row of `input_ids` that are no padding.
        exit_depths: [N] int64, loops that produced each target, which are those of the row that predicts it: an input
            token runs as many loops as produced the token after it, [K] * prompt + exit_depths[1:]. None: all K.
    """

    input_ids: Tensor
    response_mask: Tensor
    predictors: Tensor
    targets: Tensor
    lengths: Tensor
    exit_depths: Tensor | None


def pad(responses: Sequence[TrainingResponse], device: torch.device | str = "cpu") -> PaddedBatch:
    """Pad responses to the longest of them.

    Raises:
        ValueError: some responses have exit depths and some have none.
    """
    width = max(response.rows for response in responses)
    longest = max(len(response.response_tokens) for response in responses)
    input_ids = torch.zeros(len(responses), width, dtype=torch.int64)
    response_mask = torch.zeros(len(responses), longest, dtype=torch.bool)
    predictors: list[int] = []
    targets: list[int] = []
    for row, response in enumerate(responses):
        tokens = [*response.prompt_tokens, *response.response_tokens]
        input_ids[row, : response.rows] = torch.tensor(tokens[:-1], dtype=torch.int64)
        response_mask[row, : len(response.response_tokens)] = True
        first = row * width + len(response.prompt_tokens) - 1
        predictors += range(first, first + len(response.response_tokens))
        targets += response.response_tokens
    depths = [response.exit_depths for response in responses if response.response_tokens]
    recorded = [depth for response_depths in depths if response_depths is not None for depth in response_depths]
    if recorded and None in depths:
        raise ValueError("some responses have exit_depths and some have none; give all of them theirs")
    return PaddedBatch(
        input_ids.to(device),
        response_mask.to(device),
        torch.tensor(predictors, dtype=torch.int64, device=device),
        torch.tensor(targets, dtype=torch.int64, device=device),
        torch.tensor([response.rows for response in responses], dtype=torch.int64, device=device),
        torch.tensor(recorded, dtype=torch.int64, device=device) if recorded else None,
    )


def minibatches_of(responses: Sequence[T], size: int) -> list[list[T]]:
    """Consecutive groups of `size` responses, one optimizer step each; the last may be smaller."""
    return [list(responses[start : start + size]) for start in range(0, len(responses), size)]


def microbatches(lengths: Sequence[int], tokens: int, sequences: int | None = None) -> Iterator[list[int]]:
    """Indices of sequences that are run through the model together, longest first, so that little is padding.

    The split decides about memory alone: padded, a micro-batch holds at most `tokens` tokens, in at most `sequences`
    sequences. A longer sequence gets a micro-batch of its own.
    """
    current: list[int] = []
    for index in sorted(range(len(lengths)), key=lambda index: (-lengths[index], index)):
        if current and ((len(current) + 1) * lengths[current[0]] > tokens or len(current) == sequences):
            yield current
            current = []
        current.append(index)
    if current:
        yield current
