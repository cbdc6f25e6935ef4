"""Recorded rollouts for a learner step: every arm of a comparison learns from the same file."""

from pathlib import Path

from scalerlt.errors import UserError
from scalerlt.records.samples import Sample, read_samples


def load_rollouts(path: Path, prompts: int, group_size: int, vocab_size: int) -> list[list[Sample]]:
    """The first `prompts` prompt groups of at least `group_size` responses, each cut to its first `group_size`.

    Args:
        path: a samples file.
        prompts: prompt groups wanted.
        group_size: responses of each.
        vocab_size: of the model that learns from them.

    Raises:
        UserError: the file is broken, holds too few, or holds token ids that the model has not.
    """
    groups: dict[int, list[Sample]] = {}
    for sample in read_samples(path).samples:
        groups.setdefault(sample.prompt_group, []).append(sample)
    whole = [group[:group_size] for group in groups.values() if len(group) >= group_size]
    if len(whole) < prompts:
        raise UserError(
            f"rollouts file {path}: holds {len(whole)} prompt groups of at least {group_size} responses, and the batch "
            f"asks for {prompts}; make batch.prompts_per_step or batch.group_size smaller, or record more rollouts"
        )
    chosen = whole[:prompts]
    for group in chosen:
        for sample in group:
            if (largest := max(sample.prompt_tokens + sample.response_tokens)) >= vocab_size:
                raise UserError(
                    f"rollouts file {path}: problem {sample.problem_id} holds the token id {largest}, outside the "
                    f"model's vocabulary of {vocab_size}; record rollouts with this model's tokenizer"
                )
    return chosen
