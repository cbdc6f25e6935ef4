"""Overrides become configurations: Hydra composes each combination of config-group choices once.

What varies beyond that are values, such as seeds, and they are put into the composed configuration here. A value that
Hydra could treat in another way than by setting it (an addition, a deletion, an interpolation, one that an
interpolation refers to) is left to Hydra, so the result is always Hydra's own.
"""

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from omegaconf import AnyNode, DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from scalerlt.errors import RequestErrors
from scalerlt.planning.loader import Loader, one_line
from scalerlt.planning.progress import with_progress

Combination = tuple[str, ...]
"""The overrides of one cell, each a single choice or value."""
_SIMPLE_KEY = re.compile(r"\w+(\.\w+)*")


def compose_all(
    loader: Loader, common: list[str], combinations: Sequence[Combination]
) -> dict[Combination, dict[str, Any]]:
    """The configuration of each combination as plain data, interpolations resolved, in the given order.

    Parts of the configurations may be shared between them: they are not to be changed.

    Args:
        common: overrides of Hydra's own settings, the same for all.

    Raises:
        RequestErrors: all problems of all combinations, each once.
    """
    composer = _Composer(loader, common, combinations)
    composed: dict[Combination, dict[str, Any]] = {}
    problems: dict[str, None] = {}
    for combination in with_progress(combinations, "composing"):
        try:
            composed[combination] = composer.compose(combination)
        except RequestErrors as error:
            problems |= dict.fromkeys(error.problems)
    if problems:
        raise RequestErrors(list(problems))
    return composed


def plain(config: DictConfig) -> dict[str, Any]:
    """A configuration without Hydra's part as plain data, interpolations resolved."""
    return resolved(_without_hydra(config))


def resolved(config: DictConfig, *, throw_on_missing: bool = True) -> dict[str, Any]:
    """A configuration, or a part of one, as plain data, interpolations resolved; RequestErrors says what is wrong."""
    try:
        content = OmegaConf.to_container(config, resolve=True, throw_on_missing=throw_on_missing)
    except OmegaConfBaseException as error:
        raise RequestErrors([one_line(error)]) from error
    except RecursionError as error:
        raise RequestErrors(["the configuration holds an interpolation that refers to itself"]) from error
    assert isinstance(content, dict)
    return {str(key): value for key, value in content.items()}


@dataclass(frozen=True)
class _Base:
    """What Hydra composed for all cells that make the same choices.

    Attributes:
        values: the configuration as plain data, resolved; `???` where a value is missing.
        missing: keys of missing values.
        settable: keys of plain values that may be set without any other effect.
    """

    values: dict[str, Any]
    missing: frozenset[str]
    settable: frozenset[str]


class _Composer:
    """Composes the cells of one request."""

    def __init__(self, loader: Loader, common: list[str], combinations: Sequence[Combination]) -> None:
        self._loader = loader
        self._common = common
        texts = dict.fromkeys(text for combination in combinations for text in combination)
        self._parsed = dict(zip(texts, OverridesParser.create().parse_overrides(list(texts)), strict=True))
        counts = Counter(override.key_or_group for override in self._parsed.values())
        self._groups = {key for key in counts if any(source.is_group(key) for source in loader.get_sources())}
        self._settable = {
            text: (override.key_or_group, override.value())
            for text, override in self._parsed.items()
            if counts[override.key_or_group] > 1 and self._is_settable(override)
        }
        """Of what varies, that which only sets a plain value, as key and value."""
        self._bases: dict[Combination, _Base | RequestErrors | None] = {}

    def compose(self, combination: Combination) -> dict[str, Any]:
        """The configuration of one combination; RequestErrors."""
        by_hydra = tuple(text for text in combination if text not in self._settable)
        by_us = [self._settable[text] for text in combination if text in self._settable]
        base = self._base(by_hydra)
        keys = {key for key, _ in by_us}
        if base is None or not base.missing <= keys <= base.settable:
            return plain(self._loader.load([*self._common, *combination]))
        values = dict(base.values)
        for key, value in by_us:
            *parents, last = key.split(".")
            part = values
            for name in parents:
                part[name] = part = dict(part[name])
            part[last] = value
        return values

    def _is_settable(self, override: Override) -> bool:
        value = override.value()
        return (
            not (override.is_add() or override.is_force_add() or override.is_delete())
            and override.package is None
            and override.key_or_group not in self._groups
            and _SIMPLE_KEY.fullmatch(override.key_or_group) is not None
            and (value is None or isinstance(value, int | float) or _is_plain_text(value))
        )

    def _base(self, by_hydra: Combination) -> _Base | None:
        """Composed once; None where it cannot be resolved without the values that are left out."""
        if by_hydra not in self._bases:
            try:
                config = self._loader.load([*self._common, *by_hydra])
            except RequestErrors as error:
                self._bases[by_hydra] = error  # no value that is set afterwards would mend it
            else:
                overrides = [self._parsed[text] for text in by_hydra]
                self._bases[by_hydra] = _made(config, [o for o in overrides if not self._is_choice(o)])
        base = self._bases[by_hydra]
        if isinstance(base, RequestErrors):
            raise base
        return base

    def _is_choice(self, override: Override) -> bool:
        return override.key_or_group in self._groups and not isinstance(override.value(), dict)


def _made(config: DictConfig, given: list[Override]) -> _Base | None:
    ours = _without_hydra(config)
    try:
        values = resolved(ours, throw_on_missing=False)
    except RequestErrors:
        return None
    referred = _referred(OmegaConf.to_container(ours, resolve=False))
    fixed = {override.key_or_group for override in given} | (referred or set())
    settable = (
        () if referred is None else (key for key in _leaves(ours) if not any(_related(key, one) for one in fixed))
    )
    return _Base(values, missing=frozenset(OmegaConf.missing_keys(ours)), settable=frozenset(settable))


def _leaves(node: DictConfig, where: str = "") -> Iterator[str]:
    """The keys of plain values, whatever they are set to now."""
    for name in map(str, node):
        inner = node._get_node(name)
        if type(inner) is AnyNode:
            yield f"{where}{name}"
        elif isinstance(inner, DictConfig) and not (
            inner._is_none() or inner._is_missing() or inner._is_interpolation()
        ):
            yield from _leaves(inner, f"{where}{name}.")


def _referred(raw: Any) -> set[str] | None:
    """The keys that the interpolations in unresolved plain data refer to; None where that cannot be told."""
    keys: set[str] = set()
    for text in _texts(raw):
        for inner in re.findall(r"\$\{([^${}]*)\}", text):
            if _SIMPLE_KEY.fullmatch(inner):
                keys.add(inner)
            elif not inner.startswith("oc.env:"):
                return None
        if "${" in re.sub(r"\$\{[^${}]*\}", "", text):  # nested, or escaped
            return None
    return keys


def _texts(raw: Any) -> Iterator[str]:
    if isinstance(raw, str):
        yield raw
    elif isinstance(raw, dict):
        for value in raw.values():
            yield from _texts(value)
    elif isinstance(raw, list):
        for value in raw:
            yield from _texts(value)


def _related(key: str, other: str) -> bool:
    """Whether one key is the other or holds it."""
    return f"{key}.".startswith(f"{other}.") or f"{other}.".startswith(f"{key}.")


def _is_plain_text(value: Any) -> bool:
    return isinstance(value, str) and "${" not in value and value != "???"


def _without_hydra(config: DictConfig) -> DictConfig:
    return OmegaConf.masked_copy(config, [str(key) for key in config if key not in ("hydra", "sweep")])
