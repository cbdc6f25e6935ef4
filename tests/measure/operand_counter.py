"""Bytes of operands counted a second way: from the tensors of every operation that torch runs."""

from collections import Counter

import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class OperandCounter(TorchDispatchMode):
    """Reads of parameters and of other watched tensors, and gradient sums; knows nothing of loops and schedules.

    Attributes:
        read: bytes of each watched tensor, whole, once per operation that computes with it; embeddings by rows.
        written: bytes written into it.
        products: bytes of weight gradients by kind of operation that made them.
        added: bytes of each tensor of a parameter's shape that another was added to.
        cast: bytes of tensors of a parameter's shape and of their copies in another dtype.
    """

    def __init__(self, model: nn.Module, **watched: torch.Tensor) -> None:
        super().__init__()
        named = {**dict(model.named_parameters()), **watched}
        self._names = {self._key(tensor): name for name, tensor in named.items()}
        self._sizes = {name: tensor.nbytes for name, tensor in named.items()}
        self._shapes = {tensor.shape for tensor in model.parameters() if tensor.requires_grad}
        self.read = Counter[str]()
        self.written = Counter[str]()
        self.products = Counter[str]()
        self.added = self.cast = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        tensors = [t for t in tree_leaves((args, kwargs)) if isinstance(t, torch.Tensor)]
        result = func(*args, **(kwargs or {}))
        outputs = [t for t in tree_leaves(result) if isinstance(t, torch.Tensor)]
        name = func.overloadpacket.__name__
        if name == "embedding":
            self.read[self._name(args[0])] += outputs[0].nbytes
        elif name in ("index_copy_", "index_put_", "copy_"):
            source = args[3] if name == "index_copy_" else args[2] if name == "index_put_" else args[1]
            if written := self._name(args[0]):
                times = self._elements(args[0], args[1]) if name == "index_put_" else source.numel()
                self.written[written] += times * source.element_size()
            if read := self._name(source):
                self.read[read] += source.nbytes
        elif name == "index" and self._name(args[0]):
            self.read[self._name(args[0])] += outputs[0].nbytes
        elif name == "index_select" and self._name(args[0]):
            # What is selected several times is read once.
            self.read[self._name(args[0])] += outputs[0].nbytes * args[2].unique().numel() // args[2].numel()
        elif not {self._key(t) for t in outputs} & {self._key(t) for t in tensors}:
            for tensor in tensors:
                if (read := self._name(tensor)) in self._sizes and read not in ("keys", "values"):
                    self.read[read] += self._sizes[read]
        self._gradients(name, args, outputs)
        return result

    def _gradients(self, name: str, args: tuple, outputs: list[torch.Tensor]) -> None:
        """What a backward pass makes of weights' shapes; activations have to have others."""
        if any(self._name(t) for t in tree_leaves(args) if isinstance(t, torch.Tensor)):
            return
        if name in ("mm", "sum", "embedding_dense_backward"):
            shape = outputs[0].squeeze().shape  # a sum over rows keeps their dimensions, of size 1
            if {shape, shape[::-1]} & self._shapes:
                self.products[name] += outputs[0].nbytes
        if name == "_to_copy" and args[0].is_floating_point() and outputs[0].shape in self._shapes:
            self.cast += args[0].nbytes + outputs[0].nbytes
        if name in ("add", "add_") and isinstance(args[1], torch.Tensor) and args[1].shape == args[0].shape:
            self.added += args[0].nbytes if args[0].shape in self._shapes else 0

    @staticmethod
    def _elements(target: torch.Tensor, indices: list[torch.Tensor | None]) -> int:
        return torch.empty(target.shape, device="meta")[
            tuple(slice(None) if index is None else index.to("meta") for index in indices)
        ].numel()

    def _name(self, tensor: torch.Tensor) -> str | None:
        return self._names.get(self._key(tensor))

    @staticmethod
    def _key(tensor: torch.Tensor) -> int:
        return tensor.untyped_storage()._cdata
