"""How responses are cut into optimizer steps and micro-batches, and packed."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from scalerlt.learner.rows import Places, places_of

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
        replay_logprobs: of each response token under the rollout's schedule, evaluated elsewhere; None: the learner
            evaluates them where it wants them.

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
    replay_logprobs: Sequence[float] | None = None

    def __post_init__(self) -> None:
        for name in ("mask", "exit_depths", "rollout_logprobs", "old_logprobs", "ref_logprobs", "replay_logprobs"):
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
class PackedBatch:
    """Prompts with their responses, packed without padding: R rows, N response tokens, B sequences.

    It holds what was sampled and under which schedule, and no log-prob but replay's where that was evaluated elsewhere.

    Attributes:
        inputs: [R] int64, each prompt and response without its last token.
        positions: [R] int64, where the rows stand in their sequences.
        places: of the rows in the padded shape that attention gives them.
        response_mask: [B, T] bool, true where there is a response token.
        predictors: [N] int64, for each response token, in the order of sequences, the row whose hidden state predicts
            it.
        targets: [N] int64, the response tokens in this order.
        exit_depths: [N] int64, loops that produced each target, which are those of the row that predicts it: an input
            token runs as many loops as produced the token after it, [K] * prompt + exit_depths[1:]. None: all K.
        replay_logprobs: [B, T] fp64, zero at padding; None: not given.
    """

    inputs: Tensor
    positions: Tensor
    places: Places
    response_mask: Tensor
    predictors: Tensor
    targets: Tensor
    exit_depths: Tensor | None
    replay_logprobs: Tensor | None = None

    def padded(self) -> tuple[Tensor, Tensor]:
        """The inputs as sequences [B, S], padded on the right with zeros, and the predictors' places in the flattened
        [B * S]."""
        shape = self.places.sequences, self.places.width
        if self.places.rows is None:
            return self.inputs.view(shape), self.predictors
        inputs = self.inputs.new_zeros(shape[0] * shape[1]).index_copy(0, self.places.rows, self.inputs)
        return inputs.view(shape), self.places.rows[self.predictors]


def pack(responses: Sequence[TrainingResponse], device: torch.device | str = "cpu") -> PackedBatch:
    """The responses as one batch.

    Raises:
        ValueError: some responses have exit depths, or log-probs of the replay, and some have none.
    """
    device = torch.device(device)
    longest = max(len(response.response_tokens) for response in responses)
    response_mask = torch.zeros(len(responses), longest, dtype=torch.bool)
    inputs: list[int] = []
    positions: list[int] = []
    predictors: list[int] = []
    targets: list[int] = []
    for index, response in enumerate(responses):
        first = len(inputs) + len(response.prompt_tokens) - 1
        predictors += range(first, first + len(response.response_tokens))
        targets += response.response_tokens
        inputs += [*response.prompt_tokens, *response.response_tokens][: response.rows]
        positions += range(response.rows)
        response_mask[index, : len(response.response_tokens)] = True
    depths = values_of(responses, "exit_depths")

    def tensor(values: list[int]) -> Tensor:
        return torch.tensor(values, dtype=torch.int64, device=device)

    return PackedBatch(
        inputs=tensor(inputs),
        positions=tensor(positions),
        places=places_of([response.rows for response in responses], device),
        response_mask=response_mask.to(device),
        predictors=tensor(predictors),
        targets=tensor(targets),
        exit_depths=None if depths is None else tensor([depth for own in depths for depth in own]),
        replay_logprobs=packed_replay(responses, device),
    )


def values_of(responses: Sequence[TrainingResponse], name: str) -> list[Sequence[Any]] | None:
    """What each response has of this name, nothing where it is empty; None: none of them has any.

    Raises:
        ValueError: some responses with tokens have it and some have none.
    """
    values = [getattr(response, name) if response.response_tokens else () for response in responses]
    missing = [value is None for value in values]
    if not any(missing):
        return values if any(len(value) for value in values) else None
    if any(value for value in values):
        raise ValueError(f"some responses have {name} and some have none; give all of them theirs")
    return None


def packed_replay(responses: Sequence[TrainingResponse], device: torch.device) -> Tensor | None:
    """The log-probs of the replay, [B, T] fp64, zero at padding; None where they are not given."""
    values = values_of(responses, "replay_logprobs")
    if values is None:
        return None
    return pad_sequence([torch.tensor(own, dtype=torch.float64) for own in values], batch_first=True).to(device)


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
