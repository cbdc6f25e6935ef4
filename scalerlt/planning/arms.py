"""What belongs to the arm of a comparison, and what has to agree between its arms."""

from collections.abc import Iterable, Mapping

from scalerlt.records.base import Scalar

_ABSENT = object()


def arm_axes(cells: Iterable[Mapping[str, Scalar]], keys: Iterable[str]) -> frozenset[str]:
    """The axes in which the arms of a comparison may differ; in all others they agree.

    These are the compared keys, and of the values below such a key those that its option determines, each option
    having a value of its own, and those that only some options have. A value below it that is swept beside it, or is
    the same for all options, has to agree.

    Args:
        cells: the axes of all cells of the sweep.
        keys: the compared key, and what varies with it, as `group.key` or `group/key`.
    """
    listed = list(cells)
    compared = frozenset(key.replace("/", ".") for key in keys)
    return compared.union(*(_determined(listed, key) for key in compared))


def _determined(cells: list[Mapping[str, Scalar]], key: str) -> set[str]:
    below = {name for axes in cells for name in axes if name.startswith(f"{key}.")}
    found = set()
    for name in below:
        values: dict[Scalar, set[object]] = {}
        for axes in cells:
            if key in axes:
                values.setdefault(axes[key], set()).add(axes.get(name, _ABSENT))
        one_each = all(len(of_option) == 1 for of_option in values.values())
        differ = len(set().union(*values.values())) > 1
        if (one_each and differ) or {_ABSENT} in values.values():
            found.add(name)
    return found
