"""What a cell is: the canonical form of its scientific keys, its hash, its name, and its flat axes.

Two cells are the same when the SHA-256 of their canonical JSON is the same. The order of keys, the spelling of a
number, paths and the machine do not matter; every key that can change a result does. A file input enters by the
digest of its content. A key that came later is left out while it has its `IdentityDefault`.
"""

import hashlib
import json
import re
from dataclasses import fields, is_dataclass
from typing import Any, TypeVar, get_args

from scalerlt.records.base import Scalar
from scalerlt.records.cell import FileInput as FrozenInput
from scalerlt.schema.cell import SCALAR_KEYS, Cell
from scalerlt.schema.fields import FileInput, IdentityDefault, NotIdentity
from scalerlt.schema.registry import ADDED_GROUPS, GROUPS, key_of

IDENTITY_VERSION = 1
OUTSIDE = ("gates", "tracker")
"""Groups that judge results or show them, and do not change them."""

Mark = TypeVar("Mark")


def scientific_keys(cell: Cell, inputs: dict[str, FrozenInput]) -> dict[str, Any]:
    """The nested mapping that the identity is made of.

    Args:
        inputs: the digests of the cell's file inputs, by full key (`model.weights`).
    """
    content: dict[str, Any] = {"identity_version": IDENTITY_VERSION}
    for group in GROUPS:
        if group not in OUTSIDE and ADDED_GROUPS.get(group) != getattr(cell, group).name:
            content[group] = _content(getattr(cell, group), group, inputs)
    for key in SCALAR_KEYS:
        content[key] = getattr(cell, key)
    return content


def identity(content: dict[str, Any]) -> str:
    """SHA-256 of the canonical JSON of `scientific_keys`."""
    canonical = json.dumps(content, sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False)
    return hashlib.sha256(canonical.encode()).hexdigest()


def cell_id(cell: Cell, digest: str) -> str:
    """A short readable slug and the first ten hexadecimal digits of the identity; a safe file name."""
    words = [cell.experiment.name, cell.model.name, cell.precision.name, cell.batch.name]
    usual = {"checkpoint": "none", "rollout": "dense", "logprob": "dense", "correction": "none", "parallel": "single"}
    words += [option for group, name in usual.items() if (option := getattr(cell, group).name) != name]
    words += [f"{key[0]}{getattr(cell, key)}" for key in SCALAR_KEYS if getattr(cell, key) or key == "seed"]
    slug = "-".join(re.sub(r"[^A-Za-z0-9_.]+", "_", word) for word in words)
    return f"{slug[:96].lstrip('.')}-{digest[:10]}"


def axes(content: dict[str, Any]) -> dict[str, Scalar]:
    """The scientific keys, flat: a config group by its option's name, its values as `group.key`, a list as its JSON."""
    flat: dict[str, Scalar] = {}
    for key, value in content.items():
        _flatten(key, value, flat)
    del flat["identity_version"]
    return flat


_marked: dict[tuple[type[Any], type[Any]], dict[str, Any]] = {}
"""What `marked` has found: it is asked for every group of every cell."""


def marked(described: type[Any], kind: type[Mark]) -> dict[str, Mark]:
    """The fields of a dataclass that carry a mark of this kind, by field name."""
    if (described, kind) not in _marked:
        _marked[described, kind] = {
            name: mark
            for name, info in described.__pydantic_fields__.items()
            for mark in _marks(info)
            if isinstance(mark, kind)
        }
    return _marked[described, kind]


def _marks(info: Any) -> list[Any]:
    inner = [mark for argument in get_args(info.annotation) for mark in getattr(argument, "__metadata__", ())]
    return [*info.metadata, *inner]


def _content(part: Any, where: str, inputs: dict[str, FrozenInput]) -> Any:
    if isinstance(part, type) or not is_dataclass(part):
        return part
    described: type[Any] = type(part)
    outside = marked(described, NotIdentity)
    defaults = marked(described, IdentityDefault)
    files = marked(described, FileInput)
    content: dict[str, Any] = {}
    for field in fields(described):
        value = getattr(part, field.name)
        key = key_of(described, field.name)
        if field.name in outside or (field.name in defaults and value == defaults[field.name].value):
            continue
        if field.name in files and value is not None:
            content[key] = f"sha256:{inputs[f'{where}.{key}'].sha256}"
        else:
            content[key] = _content(value, f"{where}.{key}", inputs)
    return content


def _flatten(key: str, value: Any, flat: dict[str, Scalar]) -> None:
    if not isinstance(value, dict):
        flat[key] = json.dumps(value) if isinstance(value, list) else value
        return
    if "name" in value:
        flat[key] = value["name"]
    for inner, entry in value.items():
        if inner not in ("name", "_target_"):
            _flatten(f"{key}.{inner}", entry, flat)
