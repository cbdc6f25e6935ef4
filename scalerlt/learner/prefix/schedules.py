"""The schedules of training on shared prefixes: `checkpoint=prefix`, `joint` and `streamed`.

With z the boundary of a prompt, the gradient of the losses L_i of its responses is

    sum_i dL_i/dtheta (z fixed)  +  (dz/dtheta)^T sum_i dL_i/dz       (arXiv 2606.01143).

The responses run in waves on detached leaves of z, whose gradients, the adjoints, add up over the waves; one backward
pass of the prompt takes the sum.
"""

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import TypeVar

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from scalerlt.learner.batching import TrainingResponse, microbatches
from scalerlt.learner.layout import Layout, Pass, StepRun
from scalerlt.learner.logprobs import Evaluated, PassKind, composed
from scalerlt.learner.prefix.boundary import produce
from scalerlt.learner.prefix.wave import Wave, wave_logprobs, wave_of
from scalerlt.learner.unchanged import Unchanged

Result = TypeVar("Result")
Waves = Callable[[Sequence[Tensor]], Iterator[Pass]]
"""Gives the passes of a prompt's waves, on leaves of its boundary."""


class SharedPrefix(Layout):
    """`checkpoint=prefix`: a prompt's graph is kept while its waves run, each wave's until its backward pass.

    Args:
        wave_responses: responses of a wave, at most.
    """

    def __init__(self, wave_responses: int) -> None:
        self._wave_responses = wave_responses

    def passes(self, responses: Sequence[TrainingResponse], tokens: int, run: StepRun) -> Iterator[Pass]:
        """The waves of one prompt after the other; responses share a prompt when its tokens are the same.

        `tokens` bounds the padded response tokens of a wave.
        """
        for prompt, group in prompt_groups(responses):
            waves = partial(self._waves, responses, group, tokens, run)
            yield from self.prompt(torch.tensor(prompt, device=run.estimator.model.device), waves, run)

    def prompt(self, tokens: Tensor, waves: Waves, run: StepRun) -> Iterator[Pass]:
        """The passes of one prompt [P] int64: those of its waves, and its own before and after them.

        Raises:
            RuntimeError: weights or tokens have changed between a forward and a backward pass.
        """
        with run.forward():
            boundary = self.region(partial(produce, run.estimator.model, run.schedule), tokens)
        run.rows += (1 + self.recomputed_runs) * len(tokens)
        leaves = [tensor.detach().requires_grad_() for tensor in boundary]
        yield from waves(leaves)
        take_adjoints(boundary, [leaf.grad for leaf in leaves], run)

    def logprobs(self, wave: Wave, leaves: Sequence[Tensor], run: StepRun) -> Evaluated:
        """Of a wave's tokens."""
        tensors = (wave.inputs, wave.labels, *leaves)

        def evaluate(kind: PassKind) -> Evaluated:
            return self.region(partial(wave_logprobs, run.estimator, kind, wave, run.schedule), *tensors)

        return composed(run.estimator.kind, run.estimator.kv, wave.replay_logprobs, evaluate)

    def region(self, fn: Callable[..., Result], *tensors: Tensor) -> Result:
        """`fn(*tensors)`, of a whole prompt or a whole wave."""
        return fn(*tensors)

    def _waves(
        self,
        responses: Sequence[TrainingResponse],
        group: Sequence[int],
        tokens: int,
        run: StepRun,
        leaves: Sequence[Tensor],
    ) -> Iterator[Pass]:
        model = run.estimator.model
        lengths = [len(responses[index].response_tokens) for index in group]
        for picked in microbatches(lengths, tokens, self._wave_responses):
            chosen = [group[index] for index in picked]
            wave = wave_of([responses[index] for index in chosen], model.config.total_ut_steps, model.device)
            runs = run.estimator.runs([responses[index] for index in chosen])
            run.rows += (runs + self.recomputed_runs) * len(wave.inputs)
            run.embeddings += len(wave.inputs) > 0
            yield Pass(
                picked=chosen,
                padded_tokens=wave.padding,
                evaluate=partial(self.logprobs, wave, leaves, run),
            )


class JointPrefix(SharedPrefix):
    """`checkpoint=joint`: of a prompt only its tokens and boundary are kept, of a wave only its tokens and labels.

    Both are computed again in their backward passes, the readout of a wave with it.
    """

    recomputed_runs = 1

    def region(self, fn: Callable[..., Result], *tensors: Tensor) -> Result:
        """`fn(*tensors)`, of which only `tensors` are kept."""
        result: Result = checkpoint(fn, *tensors, use_reentrant=False, preserve_rng_state=False)
        return result


class StreamedPrefix(SharedPrefix):
    """`checkpoint=streamed`: a prompt runs without a graph, for its boundary alone, and once more after its waves.

    No prompt's graph is alive beside a wave's, and nothing of a wave is computed twice.
    """

    def prompt(self, tokens: Tensor, waves: Waves, run: StepRun) -> Iterator[Pass]:
        """As in `SharedPrefix`."""
        model = run.estimator.model
        unchanged = Unchanged({"tokens of a prompt": tokens})
        with run.forward(), torch.no_grad():
            boundary = produce(model, run.schedule, tokens)
            # Copies of the last positions: a view would keep the states of all positions alive.
            leaves = [tensor.clone() if len(tensor) == 1 else tensor for tensor in boundary]
            del boundary
        leaves = [leaf.requires_grad_() for leaf in leaves]
        yield from waves(leaves)
        adjoints = [leaf.grad for leaf in leaves]
        del leaves  # their values: the second pass makes them again
        unchanged.check()
        with run.forward():
            boundary = produce(model, run.schedule, tokens)
        run.rows += 2 * len(tokens)
        take_adjoints(boundary, adjoints, run)


def take_adjoints(boundary: Sequence[Tensor], adjoints: Sequence[Tensor | None], run: StepRun) -> None:
    """The backward pass of a prompt from the gradients of its boundary; None where no response has any."""
    taken = {
        tensor: adjoint
        for tensor, adjoint in zip(boundary, adjoints, strict=True)
        if tensor.requires_grad and adjoint is not None
    }
    if taken:
        with run.backward():
            torch.autograd.backward(list(taken), list(taken.values()))
        run.embeddings += 1


def prompt_groups(responses: Sequence[TrainingResponse]) -> Iterator[tuple[tuple[int, ...], list[int]]]:
    """Each distinct prompt with the places of its responses, in the order in which they come."""
    groups: dict[tuple[int, ...], list[int]] = {}
    for index, response in enumerate(responses):
        groups.setdefault(tuple(response.prompt_tokens), []).append(index)
    yield from groups.items()
