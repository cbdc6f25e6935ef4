"""The policies that a reinforcement-learning run generates with: the learner's weights as of its newest steps."""

import copy
from collections.abc import Iterable

from torch import Tensor

from scalerlt.experiments.building import build_engine
from scalerlt.models.ouro import OuroForCausalLM
from scalerlt.numerics.precision import number_format
from scalerlt.publication.full import FullPublication
from scalerlt.rollout.engine import RolloutEngine
from scalerlt.schema import Cell


class ServedPolicies:
    """Copies of the policy in the rollout's precision, with engines of their own: the newest `lag + 1` versions.

    Version v is the policy after training step v; version 0 is there from the start. A new version is published to
    the copy whose turn it is, the one of version v - lag - 1, which no rollout uses any more, so that every version is
    sent once whatever the lag is.

    Args:
        cell: how they generate, and in which precision.
        model: the initial policy.
        lag: how many versions older than the newest are kept.

    Attributes:
        newest: the version that was published last.
    """

    def __init__(self, cell: Cell, model: OuroForCausalLM, lag: int) -> None:
        self._cell = cell
        self._lag = lag
        dtype = number_format(cell.rollout.precision or cell.precision.name).dtype
        served = copy.deepcopy(model).requires_grad_(False)
        self._copies = {0: _Copy(cell, served if served.dtype == dtype else served.to(dtype))}
        self.newest = 0

    def publish(self, version: int, weights: Iterable[tuple[str, Tensor]]) -> int:
        """Send weights, by their checkpoint names, as the newest version; returns the bytes moved."""
        turn = version % (self._lag + 1)
        if turn not in self._copies:
            self._copies[turn] = _Copy(self._cell, copy.deepcopy(self._copies[0].engine.model))
        publication = self._copies[turn].publication
        publication.start(version)
        publication.update(weights)
        publication.finish()
        self._copies[turn].full_depth.weight_version = version
        self.newest = version
        return publication.bytes_moved

    def of_step(self, step: int) -> RolloutEngine:
        """The engine that generates for a training step: of the policy after step - 1 - lag, or the initial one."""
        return self._copies[max(0, step - 1 - self._lag) % (self._lag + 1)].engine

    def judged(self, *, full_depth: bool) -> RolloutEngine:
        """The engine of the newest version, at the rollout's schedule or at full depth."""
        copied = self._copies[self.newest % (self._lag + 1)]
        return copied.full_depth if full_depth else copied.engine

    def older(self) -> dict[int, dict[str, Tensor]]:
        """The weights of the versions before the newest that later steps generate with; the initial ones left out."""
        engines = [copied.engine for copied in self._copies.values()]
        return {
            engine.weight_version: {name: weight.detach() for name, weight in engine.model.named_parameters()}
            for engine in sorted(engines, key=lambda engine: engine.weight_version)
            if 0 < engine.weight_version < self.newest
        }


class _Copy:
    """Weights, the engines that read them, and the way by which they are replaced."""

    def __init__(self, cell: Cell, model: OuroForCausalLM) -> None:
        self.engine = build_engine(cell, model)
        self.full_depth = build_engine(cell, model, full_depth=True)
        self.publication = FullPublication(self.engine)
