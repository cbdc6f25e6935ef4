"""What sharing prompts can save in a learner step, from its lengths alone, and what the step really ran."""

from collections.abc import Sequence
from dataclasses import dataclass

from scalerlt.learner.batching import TrainingResponse
from scalerlt.learner.step import StepResult
from scalerlt.records.recorder import Recorder
from scalerlt.schema import Cell
from scalerlt.schema.flops import causal_pairs, loops_flops, readout_flops
from scalerlt.schema.model import Model

TOKEN_CALLS_METHOD = (
    "rows that went through a layer, of all layers and loops, forward and computed again; padding too, where it did"
)
TOKEN_LIMIT_METHOD = "prompt and response tokens with each response's own prompt, over those with each prompt once"
FLOP_LIMIT_METHOD = (
    "floating-point operations with each response's own prompt over those with each prompt once; matrix products of "
    "layers, attention and readout; last response tokens, which predict nothing, left out"
)


@dataclass(frozen=True)
class Workload:
    """The responses of a learner step that are trained, by the prompts that they share.

    Attributes:
        prompts: for each distinct prompt of each optimizer step its tokens and those of each of its responses.
    """

    prompts: tuple[tuple[int, tuple[int, ...]], ...]

    @property
    def token_limit(self) -> float:
        """Tokens of the unshared step over tokens of the shared one: G (P + D) / (P + G D) where all are alike."""
        unshared = sum(prompt + response for prompt, responses in self.prompts for response in responses)
        return unshared / sum(prompt + sum(responses) for prompt, responses in self.prompts)

    def flop_limit(self, model: Model, readouts: int = 1) -> float:
        """Operations of the unshared step over those of the shared one, all at full depth, of one forward pass.

        A backward pass takes twice as many of either, so that this is the limit of a whole step.

        Args:
            readouts: loops after which each label is read out.
        """
        rows = pairs = shared_rows = shared_pairs = labels = 0
        for prompt, responses in self.prompts:
            own = [response - 1 for response in responses]
            rows += sum(prompt + one for one in own)
            pairs += sum(causal_pairs(prompt + one) for one in own)
            shared_rows += prompt + sum(own)
            shared_pairs += causal_pairs(prompt) + sum(one * prompt + causal_pairs(one) for one in own)
            labels += sum(responses)
        read_out = readout_flops(model, readouts * labels)
        return (loops_flops(model, rows=rows, pairs=pairs) + read_out) / (
            loops_flops(model, rows=shared_rows, pairs=shared_pairs) + read_out
        )


def workload_of(minibatches: Sequence[Sequence[TrainingResponse]]) -> Workload:
    """What the optimizer steps share: responses of one step whose prompts are the same; those without a trained token
    are not run."""
    found: list[tuple[int, tuple[int, ...]]] = []
    for minibatch in minibatches:
        groups: dict[tuple[int, ...], list[int]] = {}
        for response in minibatch:
            if any(response.trained):
                groups.setdefault(tuple(response.prompt_tokens), []).append(len(response.response_tokens))
        found += [(len(prompt), tuple(lengths)) for prompt, lengths in groups.items()]
    return Workload(tuple(found))


def record_sharing(
    cell: Cell, recorder: Recorder, minibatches: Sequence[Sequence[TrainingResponse]], results: Sequence[StepResult]
) -> None:
    """Record the token calls of one learner step, and what sharing its prompts can save at most."""
    calls = sum(result.runs.token_calls for result in results)
    recorder.metric("token_calls", calls, "row", method=TOKEN_CALLS_METHOD)
    workload = workload_of(minibatches)
    if not workload.prompts:
        for name in ("sharing_token_limit", "sharing_flop_limit"):
            recorder.not_measured(name, "no response has a token to learn")
        return
    recorder.metric("sharing_token_limit", workload.token_limit, method=TOKEN_LIMIT_METHOD)
    if _runs_early_exits(cell) and _stops_early(cell, minibatches):
        recorder.not_measured(
            "sharing_flop_limit", f"logprob={cell.logprob.name} leaves out loops of tokens that stopped early"
        )
        return
    readouts = cell.model.total_ut_steps if cell.algorithm.name == "rltt" else 1
    recorder.metric("sharing_flop_limit", workload.flop_limit(cell.model, readouts), method=FLOP_LIMIT_METHOD)


def _runs_early_exits(cell: Cell) -> bool:
    """Whether the learner runs a packed replay in which tokens stop early."""
    replays = cell.logprob.name == "replay" or (cell.logprob.name == "hybrid" and cell.logprob.replay == "packed")
    return replays and cell.rollout.skipped_kv != "deferred_fill"


def _stops_early(cell: Cell, minibatches: Sequence[Sequence[TrainingResponse]]) -> bool:
    full = cell.model.total_ut_steps
    return any(
        depth < full for minibatch in minibatches for response in minibatch for depth in response.exit_depths or ()
    )
