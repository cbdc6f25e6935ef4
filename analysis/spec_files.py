"""Definitions of tables and figures are YAML files: how one is read, and what is said about a fault in it."""

import difflib
from collections.abc import Iterable, Sequence
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Any, TypeVar, get_args

import yaml
from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from scalerlt.errors import RequestErrors, UserError
from scalerlt.records.strict_yaml import EachKeyOnce

Model = TypeVar("Model", bound=BaseModel)


def spec_files(folder: str, directories: Sequence[Path] = ()) -> list[Traversable]:
    """The files NAME.yaml of `folder` (`tables` or `figures`): the shipped ones, then those of each directory.

    A later file takes the place of an earlier one of its name.

    Raises:
        UserError: a directory does not exist, or something in its folder does not end in .yaml.
    """
    shipped = files("scalerlt.analysis") / "specs" / folder
    found = {file.name: file for file in sorted(shipped.iterdir(), key=lambda file: file.name)}
    for directory in directories:
        if not directory.is_dir():
            raise UserError(f"{directory} is not a directory; name one that holds tables/ or figures/")
        here = directory / folder
        for file in sorted(here.iterdir()) if here.is_dir() else []:
            if file.name.startswith("."):
                continue
            if file.suffix != ".yaml":
                raise UserError(f"{file}: a definition is a file whose name ends in .yaml")
            found[file.name] = file
    return list(found.values())


def read_spec(file: Traversable) -> dict[str, Any]:
    """What one file says. Raises UserError naming the line of a fault."""
    try:
        content = yaml.load(file.read_text(encoding="utf-8"), EachKeyOnce)
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{file}: cannot be read ({error})") from error
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f" line {mark.line + 1}" if mark else ""
        raise UserError(f"{file}:{where} is not YAML ({getattr(error, 'problem', error)})") from error
    if not isinstance(content, dict):
        raise UserError(f"{file}: must hold keys and values, as in `name: {file.name.removesuffix('.yaml')}`")
    stem = file.name.removesuffix(".yaml")
    if content.get("name") != stem:
        raise UserError(f"{file}: name is {content.get('name')!r}; it must be that of the file, {stem!r}")
    return content


def validate(model: type[Model], content: dict[str, Any], file: Traversable) -> Model:
    """The definition as its model. Raises RequestErrors with one sentence for each fault."""
    try:
        return model.model_validate(content)
    except ValidationError as error:
        faults = [fault for fault in error.errors() if not _follows(fault, error.errors())]
        raise RequestErrors([f"{file}: {_sentence(model, fault)}" for fault in faults]) from error


def nearest(wrong: str, names: Iterable[str]) -> str:
    """The valid name that looks most like a wrong one, or all of them."""
    valid = list(names)
    close = difflib.get_close_matches(wrong, valid, n=1, cutoff=0.6)
    return f"did you mean {close[0]}?" if close else f"there are {', '.join(valid)}"


def _follows(fault: ErrorDetails, faults: Sequence[ErrorDetails]) -> bool:
    """Whether a list is only too short because what stands in it is wrong, which another fault says."""
    place = fault["loc"]
    return fault["type"] == "too_short" and any(
        len(other["loc"]) > len(place) for other in faults if other["loc"][: len(place)] == place
    )


def _sentence(model: type[BaseModel], fault: ErrorDetails) -> str:
    key = ".".join(map(str, fault["loc"]))
    match fault["type"]:
        case "extra_forbidden":
            return f"{key} is no key; {nearest(str(fault['loc'][-1]), _keys(model, fault['loc'][:-1]))}"
        case "missing":
            return f"{key} is missing"
        case "literal_error":
            choices = str(fault["ctx"]["expected"]).replace(" or ", ", ").replace("'", "").split(", ")
            return f"{key} is {fault['input']!r}; {nearest(str(fault['input']), choices)}"
        case "value_error":
            said = str(fault["ctx"]["error"])
            return f"{key}: {said}" if key else said
    return f"{key} is {fault['input']!r}; {fault['msg'][:1].lower()}{fault['msg'][1:]}"


def _keys(model: type[BaseModel], place: tuple[int | str, ...]) -> list[str]:
    """The keys of the model that stands at a place in another."""
    for part in place:
        if isinstance(part, str):
            model = next(_models(model.model_fields[part].annotation))
    return list(model.model_fields)


def _models(annotation: Any) -> Any:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for argument in get_args(annotation):
        yield from _models(argument)
