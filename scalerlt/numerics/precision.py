"""The number formats in which parameters and activations are held, and whether a device computes in them."""

from dataclasses import dataclass

import torch

from scalerlt.errors import UserError


@dataclass(frozen=True, kw_only=True)
class NumberFormat:
    """One number format of parameters and activations.

    Attributes:
        name: as the configuration spells it.
        dtype: torch's dtype of parameters and activations.
        unit_roundoff: largest relative error of one rounding to nearest, 2^-p for p significant bits.
    """

    name: str
    dtype: torch.dtype
    unit_roundoff: float


FORMATS = {
    number_format.name: number_format
    for number_format in (
        NumberFormat(name="fp64", dtype=torch.float64, unit_roundoff=2.0**-53),
        NumberFormat(name="fp32", dtype=torch.float32, unit_roundoff=2.0**-24),
        NumberFormat(name="bf16", dtype=torch.bfloat16, unit_roundoff=2.0**-8),
        NumberFormat(name="fp16", dtype=torch.float16, unit_roundoff=2.0**-11),
    )
}


def number_format(name: str) -> NumberFormat:
    """The format called `name`; a UserError that lists the known ones if there is none."""
    if name not in FORMATS:
        raise UserError(f"unknown number format {name!r}: the known ones are {', '.join(FORMATS)}")
    return FORMATS[name]


def unit_roundoff(name: str) -> float:
    """Largest relative error of one rounding to the format called `name`."""
    return number_format(name).unit_roundoff


def internal_dtype(dtype: torch.dtype) -> torch.dtype:
    """The dtype of RMS statistics, RoPE tables, softmax, exit gate and log-softmax for activations of `dtype`.

    fp64 for fp64, fp32 for everything narrower.
    """
    return torch.float64 if dtype == torch.float64 else torch.float32


def matrix_path(name: str, device: torch.device | str) -> bool:
    """Whether torch multiplies matrices of the format called `name` on `device`, found out by a small product.

    Only torch's own "this dtype is not implemented" means False; any other error is raised as it stands.
    """
    dtype = number_format(name).dtype
    try:
        ones = torch.ones(16, 16, dtype=dtype, device=device)
        product = ones @ ones
    except (RuntimeError, TypeError) as error:
        text = str(error)
        if "not implemented" in text or "doesn't support float64" in text:
            return False
        raise
    return bool((product == 16).all())
