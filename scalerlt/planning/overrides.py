"""Checks a command line's overrides before Hydra sees them, so that every mistake is reported at once."""

import re
from collections.abc import Sequence
from dataclasses import fields, is_dataclass
from itertools import islice
from typing import Any, Protocol, get_args, get_type_hints

from hydra.core.config_loader import ConfigLoader
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.errors import HydraException

from scalerlt.planning.suggestions import nearest
from scalerlt.schema.cell import REQUEST_KEYS, SCALAR_KEYS, Resources
from scalerlt.schema.registry import GROUPS, key_of, schema_of

TOP_LEVEL = (*SCALAR_KEYS, *REQUEST_KEYS)
NOT_SWEPT = (*REQUEST_KEYS, "sweeps")
MAX_VALUES = 100_000
"""Of one key: a plan lists all its cells, and is made in memory."""
OF_THE_OPTION = ("name", "_target_", "_check_")
"""What makes an option what it is: set in its file alone, so that no cell goes by the name of another."""


class Options(Protocol):
    """What is known of the config groups: implemented over Hydra's search path."""

    def groups(self) -> list[str]:
        """Every config group, nested ones as `rollout/engine`."""

    def options(self, group: str) -> list[str]:
        """The options of a config group."""


def parse(overrides: Sequence[str], problems: list[str], loader: ConfigLoader) -> list[Override]:
    """Parse each override on its own; those that do not parse, or list no values, become problems.

    Args:
        loader: knows the options that `glob(*)` stands for.
    """
    parser = OverridesParser.create()
    parsed = []
    for text in overrides:
        try:
            override = parser.parse_override(text)
            override.config_loader = loader
            values = values_of(override)
            if 0 < len(values) <= MAX_VALUES:
                parsed.append(override)
            else:
                problems.append(f"{text} names {f'more than {MAX_VALUES:,}' if values else 'no'} values")
        except (HydraException, ValueError) as error:
            problems.append(_not_an_override(text, str(error).splitlines()[0]))
    return parsed


def check(
    overrides: Sequence[Override],
    options: Options,
    defaults: dict[str, str],
    *,
    multirun: bool,
    beside: Sequence[Override] = (),
) -> tuple[list[str], list[Override]]:
    """Look at the group, key and form of each override.

    Args:
        defaults: the option that each config group has without overrides.
        multirun: whether lists of values are allowed.
        beside: what a sweep file chooses beside them: a key may be one of the options that it names.

    Returns:
        All problems, and the overrides that have none.
    """
    problems: list[str] = []
    sound: list[Override] = []
    known = options.groups()
    chosen = {group: {option} for group, option in defaults.items()}
    chosen |= _choices(beside, known)
    chosen |= _choices(overrides, known)
    for override in overrides:
        problem = _problem(override, options, known, chosen, multirun=multirun)
        found = [problem] if problem else _no_such_options(override, options, known)
        problems += found
        if not found:
            sound.append(override)
    return problems, sound


def check_conditions(
    conditions: Sequence[tuple[str, Sequence[Any]]],
    overrides: Sequence[Override],
    options: Options,
    defaults: dict[str, str],
) -> list[str]:
    """What is wrong with the keys, and the options of config groups, that the rules of a sweep look at.

    Args:
        conditions: each key, with dots, and the values that it is compared with.
        overrides: everything that the sweep and the command line choose; a rule may speak of any option among them.
    """
    groups = {group.replace("/", "."): group for group in options.groups()}
    chosen = {group: {option} for group, option in defaults.items()}
    for group, names in _choices(overrides, list(groups.values())).items():
        chosen[group] = chosen.get(group, set()) | names
    valid = _keys(chosen) - set(REQUEST_KEYS)
    problems = []
    for key, values in conditions:
        if key in groups:
            offered = options.options(groups[key])
            problems += [
                f"{key}={value}: {key} has no such option{nearest(str(value), offered)}"
                for value in values
                if str(value) not in offered
            ]
        elif key not in valid and not key.startswith("device.env."):
            having = _options_with(key, options, list(groups.values()))
            of_another = f" of anything that is chosen here; {_listed(having)} it" if having else ""
            problems.append(f"{key} is not a configuration key{of_another or nearest(key, [*valid, *groups])}")
    return problems


def _choices(overrides: Sequence[Override], known: Sequence[str]) -> dict[str, set[str]]:
    """The options that overrides choose, by config group; of the same group all of them."""
    chosen: dict[str, set[str]] = {}
    for override in overrides:
        if override.key_or_group in known and not override.is_delete():
            chosen.setdefault(override.key_or_group, set()).update(values_of(override))
    return chosen


def values_of(override: Override) -> list[str]:
    """The values that an override names, each as the text of an override's right-hand side; of very many the first."""
    if override.is_sweep_override():
        return [str(value) for value in islice(override.sweep_string_iterator(), MAX_VALUES + 1)]
    return [str(override.get_value_element_as_str())]


def as_written(override: str) -> str:
    r"""An override as a person writes it: a value that Hydra tells as `c\ d` is `'c d'`; one in quotes stays."""
    key, sign, value = override.partition("=")
    plain = re.sub(r"\\(.)", r"\1", value)
    if plain == value or value.startswith(("'", '"')):
        return override
    if value.startswith(("[", "{")):
        return f"{key}{sign}{plain}"
    quote = '"' if "'" in plain else "'"
    return f"{key}{sign}{quote}{plain}{quote}"


def _not_an_override(text: str, detail: str) -> str:
    given = text.removeprefix("++")  # which is put before every setting of the launcher
    has_signs = re.search(r"[^\w\s.,-]", given.partition("=")[2].strip("[]")) and not re.search("['\"]", given)
    advice = "; a text that holds such signs goes into quotes: '...'" if has_signs else ""
    return f"{given!r} is not an override of the form key=value ({detail}){advice}"


def _no_such_options(override: Override, options: Options, known: list[str]) -> list[str]:
    key = override.key_or_group
    if key not in known and not key.startswith("hydra/"):
        return []
    offered = options.options(key)
    wrong = [as_written(f"{key}={value}") for value in values_of(override) if value.strip("'\"") not in offered]
    return [f"{text}: {key} has no such option{nearest(text.partition('=')[2], offered)}" for text in wrong]


def _problem(
    override: Override, options: Options, known: list[str], chosen: dict[str, set[str]], *, multirun: bool
) -> str | None:
    key, text = override.key_or_group, override.input_line
    if key == "hydra":
        return f"{text} replaces all settings of Hydra; name one, such as hydra.verbose=true"
    if override.is_sweep_override() and re.split("[./]", key)[0] == "hydra":
        values = ", ".join(as_written(f"={value}")[1:] for value in values_of(override))
        return f"{key} has one value for all cells, not {values}; quote a text that holds a comma"
    if key.split(".")[0] == "hydra":
        return None  # a value of Hydra's own: Hydra checks it
    if override.is_sweep_override() and not multirun:
        return f"{text} lists several values; run them with `scalerlt sweep`, or quote a value that holds a comma"
    if override.is_sweep_override() and key in NOT_SWEPT:
        return f"{text}: {key} cannot be swept; give one value"
    if override.is_delete():
        return f"{text} takes away what a cell needs; give the key another value instead"
    if key in known or key.startswith("hydra/"):
        return None  # whether there are such options is looked at for each value
    valid = _keys(chosen)
    part, _, last = key.rpartition(".")
    if key in valid and last in OF_THE_OPTION:
        return f"{key} belongs to the option of {part} and cannot be set; choose another option, or write one in a file"
    if without := _chosen_without(key, chosen) if key in valid else []:
        return f"{key} is not a configuration key of {' and '.join(without)}, which is chosen too; sweep them apart"
    if key in valid or key.startswith("device.env."):
        return None
    if having := _options_with(key, options, known):
        group = having[0].partition("=")[0]
        own = " or ".join(f"{group}={option}" for option in sorted(chosen.get(group, set())))
        return f"{key} is not a configuration key of {own}; {_listed(having)} it"
    names = [name for name in valid if not name.endswith((".name", "_"))]
    return f"{key} is not a configuration key{nearest(key, [*names, *known], fallback=[*GROUPS, *TOP_LEVEL])}"


def _chosen_without(key: str, chosen: dict[str, set[str]]) -> list[str]:
    """Of the options that are chosen for the key's config group those that lack it, as `group=option`."""
    group = key.partition(".")[0]
    options = [option.strip("'\"") for option in chosen.get(group, ())] if group in GROUPS else []
    return [
        f"{group}={option}"
        for option in sorted(options)
        if key != group and key not in _dataclass_keys(schema_of(group, option), group)
    ]


def _options_with(key: str, options: Options, known: Sequence[str]) -> list[str]:
    """The options, as `group=option`, of the key's config group that have it."""
    group = key.partition(".")[0]
    if group not in GROUPS or group not in known:
        return []
    offered = [option for option in options.options(group) if key in _dataclass_keys(schema_of(group, option), group)]
    return [f"{group}={option}" for option in offered]


def _listed(names: Sequence[str]) -> str:
    """`a, b and c have`; of many the first three."""
    shown = names if len(names) <= 4 else [*names[:3], f"{len(names) - 3} more"]
    return f"{shown[0]} has" if len(shown) == 1 else f"{', '.join(shown[:-1])} and {shown[-1]} have"


def _keys(chosen: dict[str, set[str]]) -> set[str]:
    keys = set(TOP_LEVEL) | {f"resources.{field.name}" for field in fields(Resources)}
    for group in GROUPS:
        for option in chosen.get(group, set()):
            keys |= _dataclass_keys(schema_of(group, option.strip("'\"")), group)
    return keys


def _dataclass_keys(described: type[Any], where: str) -> set[str]:
    keys: set[str] = set()
    hints = get_type_hints(described)
    for field in fields(described):
        key = f"{where}.{key_of(described, field.name)}"
        keys.add(key)
        for kind in (hints[field.name], *get_args(hints[field.name])):
            if isinstance(kind, type) and is_dataclass(kind):
                keys |= _dataclass_keys(kind, key)
    return keys
