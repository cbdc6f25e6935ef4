"""Bytes that a learner step moves, by what they are: weights, gradients, readout, optimizer."""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Literal

import torch
from torch import Tensor

from scalerlt.learner.checkpoint.schedule import Finish, Schedule, Step
from scalerlt.learner.readout import Readout
from scalerlt.models.ouro import OuroForCausalLM

Part = Literal["layer", "loop"]


class CountedSchedule:
    """A schedule whose runs are counted, those that it makes again during the backward pass too.

    Attributes:
        forward: runs of a physical layer and of a whole loop in the forward pass.
        recomputed: the same in the backward pass.
        differentiated: those of the forward pass that a backward pass goes through.
        token_calls: rows that went through a layer, in all these runs.
    """

    def __init__(self, schedule: Schedule) -> None:
        self._schedule = schedule
        self._counter = self.forward = Counter[Part]()
        self.recomputed = Counter[Part]()
        self.differentiated = Counter[Part]()
        self.token_calls = 0

    def loops(self, steps: Sequence[Step], tables: Sequence[Tensor], x: Tensor) -> list[Tensor]:
        """As in `Schedule`."""
        return self._schedule.loops([partial(self._run, "loop", step) for step in steps], tables, x)

    def layers(
        self, steps: Sequence[Step], tables: Sequence[Tensor], x: Tensor, planes: Sequence[Tensor]
    ) -> tuple[Tensor, ...]:
        """As in `Schedule`."""
        return self._schedule.layers([partial(self._run, "layer", step) for step in steps], tables, x, planes)

    def queries(
        self, finish: Finish, positions: Tensor, rows: Tensor | None, x: Tensor, q: Tensor, k: Tensor, v: Tensor
    ) -> Tensor:
        """As in `Schedule`."""
        return self._schedule.queries(finish, positions, rows, x, q, k, v)

    @contextmanager
    def recomputing(self) -> Iterator[None]:
        """The backward pass: what runs inside runs again."""
        self._counter = self.recomputed
        yield
        self._counter = self.forward

    def _run(self, part: Part, step: Step, cos: Tensor, sin: Tensor, x: Tensor, *planes: Tensor) -> tuple[Tensor, ...]:
        self._counter[part] += 1
        if part == "layer":
            self.token_calls += len(x)
        if self._counter is self.forward and torch.is_grad_enabled():
            self.differentiated[part] += 1
        return step(cos, sin, x, *planes)


@dataclass(frozen=True, kw_only=True)
class LearnerRuns:
    """What ran in the forward and backward passes of one optimizer step.

    Attributes:
        forward, recomputed, differentiated, token_calls: as `CountedSchedule` counts them.
        rows: tokens that were embedded, without padding, each time that they were.
        embeddings: backward passes that went through loops and embedding.
        targets: response tokens whose log-probs were evaluated.
        evaluations: how often they were, those computed again too.
    """

    forward: Counter[Part]
    recomputed: Counter[Part]
    differentiated: Counter[Part]
    token_calls: int
    rows: int
    embeddings: int
    targets: int
    evaluations: int


@dataclass(frozen=True, kw_only=True)
class LearnerTraffic:
    """Algorithmic traffic of a learner step in bytes: each operand once for each product that it is an operand of.

    What no implementation has to move is left out: padding, and an operand that a kernel reads again; and so are
    activations, K and V among them. A step therefore moves at least so much.

    Attributes:
        weights: each run of a layer and of a final norm reads its weights once in the forward pass, when it is computed
            again, and in the backward pass; the embedding's row of each token is read once. (Computing a region again,
            torch's checkpoint stops before the last product, with a norm's weight: counted all the same.)
        gradients: each product that gives the gradient of a weight writes it once, and reads once what it adds to; a
            fresh sum begins with the optimizer step, or with each micro-batch where there are master weights, to whose
            gradients the sum is then added. The embedding's is written whole.
        readout: as `Readout.bytes_moved` says.
        optimizer: `ActorOptimizer.step_traffic`.
    """

    weights: int
    gradients: int
    readout: int
    optimizer: int

    @property
    def total(self) -> int:
        """All of it."""
        return self.weights + self.gradients + self.readout + self.optimizer


def learner_traffic(
    model: OuroForCausalLM,
    runs: LearnerRuns,
    *,
    microbatches: int,
    readout: Readout,
    readouts: int,
    master_bytes: int,
    optimizer: int,
) -> LearnerTraffic:
    """What one optimizer step moved.

    Args:
        model: with the shapes and dtypes of the one that was trained.
        runs: what ran.
        microbatches: forward and backward passes with a readout.
        readout: how log-probs were made.
        readouts: loops after which each evaluation of the model is read out.
        master_bytes: size of the gradients that are accumulated in master weights; 0: in the parameters themselves.
        optimizer: bytes of the optimizer's step.
    """
    if not microbatches:
        return LearnerTraffic(weights=0, gradients=0, readout=0, optimizer=optimizer)
    config, size = model.config, model.dtype.itemsize
    layers, norm = _nbytes(model.model.layers.parameters()), _nbytes(model.model.norm.parameters())
    embedding, head = _nbytes(model.model.embed_tokens.parameters()), _nbytes(model.lm_head.parameters())

    def read(counted: Counter[Part]) -> int:
        return counted["layer"] * layers // config.num_hidden_layers + counted["loop"] * norm

    def summed(nbytes: int, products: int, passes: int) -> int:
        return (2 * products - (passes if master_bytes else 1)) * nbytes

    body = layers + norm + embedding
    gradients = (
        summed(layers, runs.differentiated["layer"] // config.num_hidden_layers, runs.embeddings)
        + summed(norm, runs.differentiated["loop"], runs.embeddings)
        + summed(embedding, runs.embeddings, runs.embeddings)
        + summed(head, readouts * microbatches, microbatches)
    )
    if master_bytes:
        wider = master_bytes // (body + head)
        for nbytes, passes in ((body, runs.embeddings), (head, microbatches)):
            gradients += (passes + (2 * passes - 1) * wider) * nbytes
    logits = runs.targets * config.vocab_size * size
    return LearnerTraffic(
        weights=read(runs.forward)
        + read(runs.recomputed)
        + read(runs.differentiated)
        + runs.rows * config.hidden_size * size,
        gradients=gradients,
        readout=readouts * readout.bytes_moved(microbatches * head, logits, runs.evaluations),
        optimizer=optimizer,
    )


def _nbytes(tensors: Iterable[Tensor]) -> int:
    return sum(tensor.nbytes for tensor in tensors)
