"""Publication `full`: every parameter is sent, once, and no token is generated with anything in between."""

from collections.abc import Iterable

import torch
from torch import Tensor

from scalerlt.errors import UserError
from scalerlt.rollout.engine import RolloutEngine


class FullPublication:
    """Copies a learner's weights into the engine's own: `start`, `update` once or more often, `finish`.

    Values are rounded to the nearest of the engine's dtype (fp32 master weights to a bf16 engine) and moved to its
    device; the engine's tensors stay where they are. From `start` to a `finish` without faults the engine refuses to
    generate; after faults, or if the update is given up, only a newer whole update makes it usable again. An engine
    that has copies of its own (vLLM) takes them at `finish`, and drops what it computed from older weights; every token
    that is generated afterwards carries the new version.

    Args:
        engine: whose model holds weights of its own, not the learner's tensors.

    Attributes:
        bytes_moved: of the newest update so far: the learner's tensors, read, and the engine's, written.
    """

    def __init__(self, engine: RolloutEngine) -> None:
        self._engine = engine
        self.bytes_moved = 0
        self._newest = engine.weight_version
        self._open = False
        self._missing: set[str] = set()
        self._faults: list[str] = []

    def start(self, version: int) -> None:
        """Opens an update; one that is still open is given up.

        Args:
            version: larger than the engine's and than that of any update started before.

        Raises:
            UserError: the version is not larger, or the engine is generating.
        """
        newest = max(self._newest, self._engine.weight_version)
        if version <= newest:
            raise UserError(f"weight version {version} cannot be published after {newest}: versions only grow")
        if self._engine.generating:
            raise UserError(f"weight version {version} cannot be published while the engine generates")
        self._newest, self._open = version, True
        self._missing = {name for name, _ in self._engine.model.named_parameters()}
        self._faults = []
        self.bytes_moved = 0
        self._engine.blocked = f"the update to weight version {version} is not finished, so nothing can be generated"

    def update(self, tensors: Iterable[tuple[str, Tensor]]) -> None:
        """Takes parameters under their checkpoint names, all at once or in parts; what is wrong `finish` says.

        Raises:
            UserError: no update is open.
        """
        self._check_open()
        parameters = dict(self._engine.model.named_parameters())
        with torch.no_grad():
            for name, tensor in tensors:
                if fault := self._fault(name, tensor, parameters):
                    self._faults.append(fault)
                else:
                    parameters[name].copy_(tensor)
                    self.bytes_moved += tensor.nbytes + parameters[name].nbytes
                self._missing.discard(name)

    def finish(self) -> None:
        """Closes the update; the engine generates with the new weights from now on.

        Raises:
            UserError: one, naming every parameter that came twice, is unknown, has another shape or dtype, or is
                missing; the engine stays blocked. Or no update is open.
        """
        self._check_open()
        self._open = False
        faults = self._faults + [f"{name} is missing" for name in sorted(self._missing)]
        if faults:
            self._engine.blocked = (
                f"the update to weight version {self._newest} failed, so nothing can be generated before a newer "
                "full update"
            )
            raise UserError(f"update to weight version {self._newest}: " + "; ".join(faults))
        self.bytes_moved += self._engine.take_weights()
        self._engine.weight_version = self._newest
        self._engine.blocked = None

    def _check_open(self) -> None:
        if not self._open:
            raise UserError("no update of the weights is open: start one with its version first")

    def _fault(self, name: str, tensor: Tensor, parameters: dict[str, torch.nn.Parameter]) -> str | None:
        if name not in parameters:
            return f"{name} is unknown"
        if name not in self._missing:
            return f"{name} came more than once"
        own = parameters[name]
        if tensor.shape != own.shape:
            return f"{name} is {list(tensor.shape)}, the engine's is {list(own.shape)}"
        if not tensor.is_floating_point():
            return f"{name} is {tensor.dtype}, which is no floating-point dtype"
        if tensor.untyped_storage().data_ptr() == own.untyped_storage().data_ptr():
            return f"{name} is the engine's own tensor: the engine needs a copy that the learner does not change"
        return None
