"""One loop of the layers as captured CUDA graphs: a launch for each stretch between two attentions.

What lies between attentions does the same work whatever the rows are: from attention's output to the next layer's
queries, keys and values. Each stretch is captured once for every number of rows that is a power of two, and serves all
loops, which have the same weights; smaller batches are filled up. Attention, which depends on the rows, stays eager.
"""

from collections.abc import Callable
from functools import partial
from typing import cast
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from scalerlt.models.config import OuroConfig
from scalerlt.models.ouro import Attend, Layer, OuroForCausalLM, OuroModel

Capture = Callable[[Callable[[], None]], Callable[[], None]]
"""Takes a function that reads and writes fixed tensors; returns what does the same again."""

WARM_UP = 3


def cuda_graph(run: Callable[[], None]) -> Callable[[], None]:
    """Capture a function that works on the current device; returns the graph's replay."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):  # libraries set themselves up at the first calls, which no graph may hold
        for _ in range(WARM_UP):
            run()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        run()
    return graph.replay


class CapturedLoop:
    """`OuroForCausalLM.loop` for rows of decode tokens; graphs are captured when a number of rows first asks for them.

    They read the model's parameters where they are: weights may change in place.

    Args:
        model: on a GPU.
        capture: how a stretch is captured.
    """

    def __init__(self, model: OuroForCausalLM, capture: Capture = cuda_graph) -> None:
        # not the model itself, which is what `captured_loop` holds weakly
        self._inner, self._config = model.model, model.config
        self._capture = capture
        self._stretches: dict[int, _Stretches] = {}

    def __call__(self, loop: int, x: Tensor, cos: Tensor, sin: Tensor, *, attend: Attend) -> Tensor:
        """The next states [n, H] of n rows; cos and sin are [n, 1, head_dim]."""
        rows = len(x)
        size = 1 << (rows - 1).bit_length()
        if size not in self._stretches:
            self._stretches[size] = _Stretches(self._inner, self._config, size, self._capture)
        held = self._stretches[size]
        held.x[:rows], held.cos[:rows], held.sin[:rows] = x, cos, sin
        for index in range(len(self._inner.layers)):
            held.replays[index]()
            q, k, v = (part[:rows] for part in held.qkv)
            held.attended[:rows] = attend(loop, index, q, k, v)
        held.replays[-1]()
        return held.x[:rows].clone()


class _Stretches:
    """The stretches of one loop for a number of rows, and the tensors that they read and write.

    Attributes:
        replays: L + 1: before the first layer's attention, from one to the next, and after the last.
    """

    def __init__(self, model: OuroModel, config: OuroConfig, rows: int, capture: Capture) -> None:
        weight = model.norm.weight

        def zeros(*shape: int) -> Tensor:
            return torch.zeros((rows, *shape), dtype=weight.dtype, device=weight.device)

        queries, keys = (config.num_attention_heads, config.head_dim), (config.num_key_value_heads, config.head_dim)
        self.x, self.cos, self.sin = zeros(config.hidden_size), zeros(1, config.head_dim), zeros(1, config.head_dim)
        self.qkv = (zeros(*queries), zeros(*keys), zeros(*keys))
        self.attended = zeros(*queries)
        layers = cast(list[Layer], list(model.layers))

        def stretch(index: int) -> None:
            x = self.x
            if index > 0:
                x = layers[index - 1].finish(x, self.attended)
            if index == len(layers):
                self.x.copy_(model.norm(x))
                return
            for held, new in zip(self.qkv, layers[index].project(x, self.cos, self.sin), strict=True):
                held.copy_(new)
            self.x.copy_(x)

        self.replays = [capture(partial(stretch, index)) for index in range(len(layers) + 1)]


_captured: WeakKeyDictionary[OuroForCausalLM, CapturedLoop] = WeakKeyDictionary()


def captured_loop(model: OuroForCausalLM) -> CapturedLoop:
    """The captured loop of a model, which all its engines share."""
    if model not in _captured:
        _captured[model] = CapturedLoop(model)
    return _captured[model]
