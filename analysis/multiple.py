"""Many comparisons in one table: the step-down correction of S. Holm (Scand. J. Statist. 6, 1979, 65-70)."""

import math
from collections.abc import Sequence

from scalerlt.analysis.intervals import no_zero


def holm(p_values: Sequence[float | None]) -> list[float | None]:
    """The adjusted p-values, in the order given: a comparison is significant at level a where its own is at most a.

    The smallest of m is multiplied by m, the next one by m - 1, and so on; none is below that of a smaller p-value,
    none above 1, none 0. With a probability of at least 1 - a none of the m claims is wrong, however they depend.

    Args:
        p_values: one per comparison. None or NaN: no test was made; its place stays None, and it does not count in m.

    Raises:
        ValueError: a p-value is outside [0, 1].
    """
    tested = {place: p for place, p in enumerate(p_values) if p is not None and not math.isnan(p)}
    adjusted: list[float | None] = [None] * len(p_values)
    largest = 0.0
    for rank, (place, p) in enumerate(sorted(tested.items(), key=lambda item: item[1])):
        if not 0 <= p <= 1:
            raise ValueError(f"p-value {place} is {p:g}; it has to be in [0, 1]")
        largest = max(largest, min((len(tested) - rank) * no_zero(p), 1.0))
        adjusted[place] = largest
    return adjusted
