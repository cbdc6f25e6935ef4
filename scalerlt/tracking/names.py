"""Names of a mirrored run: unique where they have to be, and within the limits of those who show them."""

import hashlib
from collections.abc import Iterable, Mapping
from pathlib import Path

from scalerlt.records.base import Scalar, UnreadableDocument
from scalerlt.records.cell import FrozenCell
from scalerlt.records.lease import Lease
from scalerlt.records.store import LEASE_FILE

TAG_LENGTH, NAME_LENGTH = 64, 128
"""Characters that Weights & Biases takes."""


def run_id(frozen: FrozenCell, first: int, attempt: Path) -> str:
    """The id of a run, from its cell and the first of the attempts that went on from each other.

    Attempts that go on keep it; one that starts from zero, the same cell in another runs directory or on another
    machine has another. Letters, digits and hyphens.

    Args:
        first: number of the first attempt.
        attempt: its directory; the moment and the process that claimed it enter the id.
    """
    try:
        lease = Lease.read(attempt / LEASE_FILE)
        claimed = f"{lease.host} {lease.boot_id} {lease.pid} {lease.started}"
    except UnreadableDocument:
        claimed = str(attempt.absolute())
    return f"{frozen.identity[:16]}-{first:03d}-{_digest(f'{frozen.sweep} {frozen.cell_id} {claimed}')[:12]}"


def short(text: str, length: int) -> str:
    """Printable text of at most `length` characters; one that was cut ends in a digest of the whole."""
    printable = "".join(character if character.isprintable() else " " for character in text).strip()
    if len(printable) <= length:
        return printable
    return f"{printable[: length - 9]}~{_digest(text)[:8]}"


def tags(axes: Mapping[str, Scalar], overrides: Iterable[str]) -> list[str]:
    """`name=value` of the axes that a reader looks for: config groups, seed, cohort, block, and what was overridden.

    All axes together are about a hundred; they stand in the run's configuration.
    """
    overridden = {override.partition("=")[0].lstrip("+~") for override in overrides}
    chosen = [key for key in axes if "." not in key or key in overridden]
    return list(dict.fromkeys(short(f"{key}={axes[key]}", TAG_LENGTH) for key in chosen))


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
