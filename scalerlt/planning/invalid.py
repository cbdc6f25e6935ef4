"""The axes of a combination that is no valid cell, in the form in which a valid one's stand in plans and tables."""

from dataclasses import fields
from types import SimpleNamespace
from typing import Annotated, Any, cast

from pydantic import TypeAdapter, ValidationError

from scalerlt.planning.inputs import found_inputs
from scalerlt.records.base import Scalar
from scalerlt.records.cell import FileInput as FrozenInput
from scalerlt.schema.cell import SCALAR_KEYS, Cell
from scalerlt.schema.fields import FileInput
from scalerlt.schema.identity import axes, marked, scientific_keys
from scalerlt.schema.registry import GROUPS, key_of, schema_of


def axes_of_invalid(config: dict[str, Any]) -> dict[str, Scalar]:
    """The axes of a composed configuration, its device chosen, that is not valid.

    A value that its field would take stands as the field would have it, any other as it is given; a file that is not
    there is `sha256:missing`. A group that names no option is left out with all others.
    """
    single = {key: _scalar(config.get(key)) for key in SCALAR_KEYS}
    groups = {group: config.get(group) for group in GROUPS}
    if not all(isinstance(values, dict) and isinstance(values.get("name"), str) for values in groups.values()):
        return single
    parts = {group: _part(schema_of(group, values["name"]), values) for group, values in groups.items() if values}
    cell = cast(Cell, SimpleNamespace(**parts, **single))
    missing = {
        f"{group}.{key_of(type(part), name)}": FrozenInput(path="", sha256="missing")
        for group, part in parts.items()
        for name in marked(type(part), FileInput)
    }
    return axes(scientific_keys(cell, missing | found_inputs(cell, [])))


def _part(described: type[Any], values: dict[str, Any]) -> Any:
    """A group's option; where it is not valid as a whole, field by field."""
    try:
        return TypeAdapter(described).validate_python(values)
    except ValidationError:
        part = object.__new__(described)
    for field in fields(described):
        info, key = described.__pydantic_fields__[field.name], key_of(described, field.name)
        default = None if info.is_required() else info.get_default(call_default_factory=True)
        object.__setattr__(part, field.name, _checked(info, values[key]) if key in values else default)
    return part


def _checked(info: Any, value: Any) -> Any:
    kind: Any = Annotated[(info.annotation, *info.metadata)] if info.metadata else info.annotation
    try:
        return TypeAdapter(kind).validate_python(value)
    except ValidationError:
        return _scalar(value)


def _scalar(value: Any) -> Scalar:
    return value if value is None or isinstance(value, str | int | float | bool) else str(value)
