"""What an optimizer step runs under each layout, from the lengths of its responses alone."""

from collections.abc import Sequence
from dataclasses import dataclass

from scalerlt.learner.batching import TrainingResponse, microbatches
from scalerlt.learner.prefix.schedules import prompt_groups
from scalerlt.schema.flops import causal_pairs

Prompts = Sequence[tuple[int, Sequence[int]]]
"""For each distinct prompt its tokens and those of each of its responses, none of them empty."""

SECONDS_FEATURES = ("pass", "prompt", "row", "recomputed_row", "pair", "label")
BYTES_FEATURES = ("graph_row", "pass_label", "prompt_row", "step")


@dataclass
class Work:
    """Counts of an optimizer step at full depth.

    Attributes:
        passes: forward and backward passes with a loss.
        prompts: prompts that are run by themselves.
        prompt_rows: rows of these.
        rows: rows of the passes.
        pairs: queries with the keys that attention scores for them, at padding too.
        labels: response tokens.
        largest_prompt: rows of the longest prompt that is run by itself.
        largest_rows, largest_labels: of a pass, the most of each.
    """

    passes: int = 0
    prompts: int = 0
    prompt_rows: int = 0
    rows: int = 0
    pairs: int = 0
    labels: int = 0
    largest_prompt: int = 0
    largest_rows: int = 0
    largest_labels: int = 0

    def add_pass(self, *, rows: int, pairs: int, labels: int) -> None:
        """A pass more."""
        self.passes += 1
        self.rows += rows
        self.pairs += pairs
        self.labels += labels
        self.largest_rows = max(self.largest_rows, rows)
        self.largest_labels = max(self.largest_labels, labels)

    def add_prompt(self, rows: int) -> None:
        """A prompt that is run by itself."""
        self.prompts += 1
        self.prompt_rows += rows
        self.pairs += causal_pairs(rows)
        self.largest_prompt = max(self.largest_prompt, rows)

    @property
    def all_rows(self) -> int:
        """Rows that a backward pass goes through."""
        return self.prompt_rows + self.rows

    def seconds_features(self, prompts_again: int, passes_again: int) -> tuple[int, ...]:
        """What its time is made of, in the order of `SECONDS_FEATURES`.

        Args:
            prompts_again, passes_again: how often the rows of prompts and of passes are run beside the run that a
                backward pass goes through.
        """
        again = prompts_again * self.prompt_rows + passes_again * self.rows
        return self.passes, self.prompts, self.all_rows, again, self.pairs, self.labels

    def bytes_features(self, *, together: bool) -> tuple[int, ...]:
        """What its peak is made of, in the order of `BYTES_FEATURES`: rows whose graph is alive, labels of a pass, rows
        of a prompt whose boundary stands beside other graphs; the largest of each, be they in one pass or not.

        Args:
            together: whether the graph of a prompt is alive beside that of a pass; else only one of them is.
        """
        prompt, rows, labels = self.largest_prompt, self.largest_rows, self.largest_labels
        return (prompt + rows, labels, 0, 1) if together else (max(prompt, rows), labels, prompt, 1)


def prompts_of(responses: Sequence[TrainingResponse]) -> Prompts:
    """The lengths of responses, none of them empty."""
    return [
        (len(prompt), [len(responses[index].response_tokens) for index in group])
        for prompt, group in prompt_groups(responses)
    ]


def whole_sequences(prompts: Prompts, tokens: int) -> Work:
    """Of `WholeSequences`, at most `tokens` padded tokens per pass."""
    lengths = [(prompt + length - 1, length) for prompt, group in prompts for length in group]
    rows = [row for row, _ in lengths]
    work = Work()
    for picked in microbatches(rows, tokens):
        work.add_pass(
            rows=sum([rows[index] for index in picked]),
            pairs=len(picked) * causal_pairs(rows[picked[0]]),
            labels=sum([lengths[index][1] for index in picked]),
        )
    return work


def prompts_and_waves(prompts: Prompts, tokens: int, wave_responses: int) -> Work:
    """Of `SharedPrefix` and its kin: each prompt by itself, then waves of at most `wave_responses` responses."""
    work = Work()
    for prompt, group in prompts:
        work.add_prompt(prompt)
        for picked in microbatches(group, tokens, wave_responses):
            _add_responses(work, prompt, [group[index] for index in picked], rows=0, pairs=0)
    return work


def packed_prompts(prompts: Prompts, tokens: int) -> Work:
    """Of `PackedPrefix`: each pass holds a prompt and as many of its responses as fit beside it."""
    work = Work()
    for prompt, group in prompts:
        for picked in microbatches(group, max(tokens - prompt, 1)):
            chosen = [group[index] for index in picked]
            _add_responses(work, prompt, chosen, rows=prompt, pairs=causal_pairs(prompt))
    return work


def _add_responses(work: Work, prompt: int, lengths: list[int], *, rows: int, pairs: int) -> None:
    """A pass over responses to one prompt, longest first, beside so many other rows and pairs."""
    labels = sum(lengths)
    following = labels - len(lengths)
    own = sum([length > 1 for length in lengths]) * causal_pairs(lengths[0] - 1)
    work.add_pass(rows=rows + following, pairs=pairs + following * prompt + own, labels=labels)
