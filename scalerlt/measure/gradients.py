"""How far two sets of named tensors (gradients, parameters, moments) are apart."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

Named = Mapping[str, Tensor | None]
"""Tensors by parameter name; None: the parameter has none (no gradient reached it, or it is frozen)."""


@dataclass(frozen=True)
class Tolerance:
    """|a - b| <= abs + rel * |b|, element by element."""

    abs: float
    rel: float


@dataclass(frozen=True)
class ErrorFigures:
    """The error of a against b over all their elements, accumulated in fp64.

    Where either side holds a NaN or an infinity, `relative_l2`, `max_abs`, `cosine` and `elementwise` are NaN, which
    passes no gate. Without any element, and for two zero vectors, a equals b: 0, 0, 1, 0.

    Attributes:
        relative_l2: ||a - b|| / ||b||; infinite where b alone is zero.
        max_abs: max |a - b|.
        cosine: <a, b> / (||a|| ||b||); 0 where one of them is zero, 1 where both are.
        elementwise: max |a - b| / (abs + rel |b|) for the given tolerance; at most 1 passes. None without tolerance.
        mismatches: elements that are not equal (a NaN equals nothing; 0 equals -0).
        elements: how many were compared.
    """

    relative_l2: float
    max_abs: float
    cosine: float
    elementwise: float | None
    mismatches: int
    elements: int


@dataclass(frozen=True)
class ErrorReport:
    """Errors over all tensors, and over those of each group of parameters."""

    total: ErrorFigures
    groups: dict[str, ErrorFigures]


def compare(a: Named, b: Named, *, group: Callable[[str], str], tolerance: Tolerance | None = None) -> ErrorReport:
    """The errors of `a` against the reference `b`.

    A tensor that is missing on both sides has no elements. One that is missing on one side counts as zeros, and all
    its elements as mismatches.

    Args:
        a, b: the same names with the same shapes; dtypes may differ.
        group: the parameter group of a name.
        tolerance: what `elementwise` is measured in.

    Raises:
        ValueError: names or shapes differ.
    """
    if a.keys() != b.keys():
        raise ValueError(f"different names: {sorted(a.keys() ^ b.keys())}")
    total, groups = _Sums(tolerance), dict[str, _Sums]()
    for name in a:
        sums = groups.setdefault(group(name), _Sums(tolerance))
        _add(name, a[name], b[name], sums)
    for sums in groups.values():
        total.merge(sums)
    return ErrorReport(total.figures(), {name: sums.figures() for name, sums in groups.items()})


def norm(tensors: Named) -> float:
    """Euclidean norm over all elements, accumulated in fp64."""
    present = [tensor for tensor in tensors.values() if tensor is not None]
    return math.sqrt(sum(float(tensor.detach().double().square().sum()) for tensor in present))


class _Sums:
    """What the figures are made of, over any number of tensors."""

    def __init__(self, tolerance: Tolerance | None) -> None:
        self.tolerance = tolerance
        self.difference = self.a = self.b = self.product = 0.0
        self.max_abs = self.elementwise = 0.0
        self.mismatches = self.elements = 0

    def merge(self, other: "_Sums") -> None:
        self.difference += other.difference
        self.a += other.a
        self.b += other.b
        self.product += other.product
        self.max_abs = _larger(self.max_abs, other.max_abs)
        self.elementwise = _larger(self.elementwise, other.elementwise)
        self.mismatches += other.mismatches
        self.elements += other.elements

    def figures(self) -> ErrorFigures:
        finite = math.isfinite(self.a) and math.isfinite(self.b)
        a, b, difference = (math.sqrt(square) if finite else math.nan for square in (self.a, self.b, self.difference))
        return ErrorFigures(
            relative_l2=difference / b if b else (0.0 if difference == 0 else math.inf),
            max_abs=self.max_abs,
            cosine=max(min(self.product / a / b, 1.0), -1.0) if a and b else float(a == b),
            elementwise=None if self.tolerance is None else self.elementwise,
            mismatches=self.mismatches,
            elements=self.elements,
        )


def _add(name: str, a: Tensor | None, b: Tensor | None, sums: _Sums) -> None:
    if a is None and b is None:
        return
    lacking = a is None or b is None
    a = torch.zeros_like(b) if a is None else a  # type: ignore[arg-type]
    b = torch.zeros_like(a) if b is None else b
    if a.shape != b.shape:
        raise ValueError(f"{name}: shapes {list(a.shape)} and {list(b.shape)} differ")
    sums.elements += a.numel()
    if a.numel() == 0:
        return
    x, y = a.detach().double().flatten(), b.detach().double().flatten()
    a_squared, b_squared = float(x.dot(x)), float(y.dot(y))
    sums.a += a_squared
    sums.b += b_squared
    sums.product += float(x.dot(y))
    if not (math.isfinite(a_squared) and math.isfinite(b_squared)):
        sums.mismatches += a.numel() if lacking else int((x != y).sum())
        sums.difference = sums.max_abs = sums.elementwise = math.nan
        return
    gap = (x - y).abs_()
    sums.mismatches += a.numel() if lacking else int(gap.count_nonzero())
    sums.difference += float(gap.dot(gap))
    sums.max_abs = _larger(sums.max_abs, float(gap.max()))
    if sums.tolerance is not None:
        allowed = y.abs().mul_(sums.tolerance.rel).add_(sums.tolerance.abs)
        # 0 / 0: where nothing is allowed, equal elements still pass.
        excess = gap.div_(allowed).nan_to_num_(nan=0.0, posinf=math.inf)
        sums.elementwise = _larger(sums.elementwise, float(excess.max()))


def _larger(x: float, y: float) -> float:
    """The larger; NaN if either is."""
    return math.nan if math.isnan(x) or math.isnan(y) else max(x, y)
