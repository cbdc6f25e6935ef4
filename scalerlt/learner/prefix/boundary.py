"""What a prompt hands to its responses, and the pass that makes it.

The K and V of every loop and layer, to which response rows attend, and the state of the last prompt position after
every loop, which predicts the first response token.
"""

from collections.abc import Sequence

from torch import Tensor

from scalerlt.models.ouro import OuroForCausalLM, Schedule, causal_attention


def produce(model: OuroForCausalLM, schedule: Schedule, tokens: Tensor) -> tuple[Tensor, ...]:
    """All K loops over a prompt, [P] int64.

    Returns:
        The boundary: K and V, [P, kv_heads, head_dim] each, of layer 1 in loop 1, layer 2 in loop 1, ..; then the last
        position's state [1, H] after each loop, a view of that of all positions. `Boundary` reads them.
    """
    kept: list[Tensor] = []

    def attend(loop: int, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        kept.extend((k[0], v[0]))
        return causal_attention(loop, layer, q, k, v)

    states = model(tokens[None], attend=attend, schedule=schedule)
    return (*kept, *(state[0, -1:] for state in states))


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
