"""What a prompt hands to its responses, and the pass that makes it.

The K and V of every loop and layer, to which response rows attend, and the state of the last prompt position after
every loop, which predicts the first response token.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from scalerlt.learner.checkpoint.schedule import Schedule
from scalerlt.learner.rows import attend_within, places_of, run_loops
from scalerlt.models.ouro import OuroForCausalLM


def produce(model: OuroForCausalLM, schedule: Schedule, tokens: Tensor) -> tuple[Tensor, ...]:
    """All K loops over a prompt, [P] int64.

    Returns:
        The boundary: K and V, [P, kv_heads, head_dim] each, of layer 1 in loop 1, layer 2 in loop 1, ..; then the last
        position's state [1, H] after each loop, a view of that of all positions. `Boundary` reads them.
    """
    kept: list[Tensor] = []
    places = places_of([len(tokens)], tokens.device)

    def attend(loop: int, layer: int, rows: Tensor | None, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        kept.extend((k, v))
        return attend_within(places, loop, layer, rows, q, k, v)

    positions = torch.arange(len(tokens), device=tokens.device)
    states = run_loops(model, schedule, tokens, positions, None, attend)
    return (*kept, *(state[-1:] for state in states))


class Boundary:
    """The tensors of `produce` by what they are.

    Attributes:
        last: the last prompt position's state after each loop, [1, H] each.
    """

    def __init__(self, model: OuroForCausalLM, tensors: Sequence[Tensor]) -> None:
        loops, self._layers = model.config.total_ut_steps, model.config.num_hidden_layers
        self._pairs, self.last = tensors[:-loops], tensors[-loops:]

    def keys_and_values(self, loop: int, layer: int) -> tuple[Tensor, Tensor]:
        """Of a loop and a layer, both from 0; [P, kv_heads, head_dim] each."""
        start = 2 * (loop * self._layers + layer)
        return self._pairs[start], self._pairs[start + 1]
