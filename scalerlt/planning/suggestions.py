"""The nearest valid names, for a message about a wrong one."""

import difflib
from collections.abc import Iterable


def nearest(wrong: str, valid: Iterable[str], fallback: Iterable[str] | None = None) -> str:
    """A closing half sentence: "; did you mean bf16 or fp16?", or the list of what there is.

    Args:
        fallback: what to list when nothing is near; all of `valid` by default.
    """
    names = sorted(valid)
    likeness = {name: difflib.SequenceMatcher(None, wrong, name).ratio() for name in names}
    best = max(likeness.values(), default=0.0)
    if best >= 0.6:
        close = [name for name in names if likeness[name] >= best - 0.05]
        return f"; did you mean {' or '.join(close[:2])}?"
    listed = ", ".join(names if fallback is None else fallback)
    return f"; there are {listed}" if listed else "; there are none"
