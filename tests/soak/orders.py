"""What each cell of a soak is to do and to suffer, drawn from a seed."""

import random
from dataclasses import asdict, dataclass
from typing import Any

NATURAL = {
    "measure": "measured",
    "raise": "failed",
    "exit": "failed",
    "hang": "timeout",
    "stubborn": "timeout",
    "die": "killed",
    "unsupported": "unsupported",
    "oom": "oom",
}
"""The verdict of an attempt that did so, and that nothing from outside befell."""
ANSWERS = frozenset({"measured", "unsupported", "oom"})


@dataclass(frozen=True)
class Order:
    """One cell's.

    Attributes:
        act: how its experiment ends (see probes.py).
        always: at every attempt, and not at the first alone.
        seconds: how long it works before.
        strike: what is killed from outside while it works for the first time: its process (`child`), or the server that
            forked it.
        after: seconds from the beginning of the attempt to the strike.
    """

    act: str
    seconds: float
    always: bool = False
    strike: str | None = None
    after: float | None = None

    @property
    def standing(self) -> str:
        """The verdict that is to stand for the cell when the sweep has been started often enough."""
        return NATURAL[self.act] if self.always else "measured"

    def plain(self) -> dict[str, Any]:
        """As JSON can hold it."""
        return asdict(self)


FAULTS: list[tuple[str, bool]] = [
    *[("raise", True), ("raise", False), ("raise", False), ("raise", False)],
    *[("exit", True), ("exit", False), ("exit", False), ("exit", False)],
    *[("hang", False), ("hang", False), ("stubborn", True), ("stubborn", False)],
    *[("die", True), ("die", False), ("die", False)],
    *[("child", False), ("child", False), ("child", False)],
    *[("server", False), ("server", False)],
]
"""Of 200 cells a tenth: what, and whether always."""


def draw(cells: int, chance: random.Random, *, strikes: bool) -> dict[int, Order]:
    """The orders of all cells, by their seeds: a tenth is at fault, and some have an answer that is no figure.

    Args:
        strikes: whether some are killed from outside; else they kill themselves.
    """
    kinds = chance.sample(FAULTS, len(FAULTS))
    faults = [kinds[place % len(kinds)] for place in range(cells // 10)]
    faults += [("unsupported", True)] * max(1, cells // 100) + [("oom", True)] * max(1, cells // 100)
    chosen = chance.sample(range(cells), len(faults))
    orders = {seed: Order("measure", chance.uniform(0.1, 0.5)) for seed in range(cells)}
    for seed, (kind, always) in zip(chosen, faults, strict=True):
        if kind in ("child", "server") and strikes:
            seconds = chance.uniform(0.8, 1.5)
            orders[seed] = Order("measure", seconds, strike=kind, after=chance.uniform(0.0, 0.9 * seconds))
        else:
            act = "die" if kind in ("child", "server") else kind
            orders[seed] = Order(act, chance.uniform(0.0, 0.5), always)
    return orders
