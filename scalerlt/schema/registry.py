"""Which dataclass describes which option of which config group.

An option (`checkpoint=layer`) is described by the module `scalerlt.schema.<group>.<option>` if there is one, else by
the group's common dataclass in `scalerlt.schema.<group>`. Either registers itself with the decorator `config_group`.
"""

import importlib
import importlib.util
import re
from collections.abc import Callable
from dataclasses import fields
from functools import cache
from typing import Any, TypeVar, cast, dataclass_transform

from pydantic import ConfigDict, Field
from pydantic.dataclasses import dataclass

T = TypeVar("T")

GROUPS = (
    "experiment",
    "model",
    "precision",
    "batch",
    "checkpoint",
    "rollout",
    "logprob",
    "prompt",
    "task",
    "grader",
    "algorithm",
    "correction",
    "optimizer",
    "parallel",
    "device",
    "gates",
    "tracker",
)
"""The config groups, in the order in which a reader wants them."""

ADDED_GROUPS = {"correction": "none", "parallel": "single", "tracker": "none"}
"""Groups that came after the first records, with the option that older cells have; it is no part of an identity."""

_CONFIG = ConfigDict(extra="forbid", allow_inf_nan=False, populate_by_name=True)
_registered: dict[tuple[str, str | None], type[Any]] = {}


@dataclass_transform(kw_only_default=True, frozen_default=True, field_specifiers=(Field,))
def config(cls: type[T]) -> type[T]:
    """Make a strict, frozen, keyword-only dataclass: unknown keys and wrong types are errors."""
    return cast(type[T], dataclass(cls, config=_CONFIG, frozen=True, kw_only=True))


@dataclass_transform(kw_only_default=True, frozen_default=True, field_specifiers=(Field,))
def config_group(group: str, option: str | None = None) -> Callable[[type[T]], type[T]]:
    """Register a dataclass as the description of a config group, or of one of its options."""

    def register(cls: type[T]) -> type[T]:
        described = config(cls)
        _registered[group, option] = described
        return described

    return register


def schema_of(group: str, option: str) -> type[Any]:
    """The dataclass of an option: its own, else the group's."""
    _import_schema(group, option)
    return _registered.get((group, option)) or _registered[group, None]


@cache
def _import_schema(group: str, option: str) -> None:
    """Asked for every cell, and the answer stays: looking for modules takes longer than all else in checking a cell."""
    importlib.import_module(f"scalerlt.schema.{group}")
    module = f"scalerlt.schema.{group}.{option}"
    if re.fullmatch(r"[a-z0-9_]+", option) and importlib.util.find_spec(module) is not None:
        importlib.import_module(module)


def key_of(described: type[Any], field: str) -> str:
    """The configuration key of a dataclass field: `_target_` for `target`, else its own name."""
    info = described.__pydantic_fields__[field]
    return info.alias or field


def keys_of(described: type[Any]) -> list[str]:
    """All configuration keys of a dataclass."""
    return [key_of(described, field.name) for field in fields(described)]
