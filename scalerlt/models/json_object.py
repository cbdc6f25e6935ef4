"""Reading a JSON file that a user may have got wrong."""

import json
from pathlib import Path
from typing import Any

from scalerlt.errors import UserError


def read_json_object(path: Path) -> dict[str, Any]:
    """The JSON object in file `path`; a UserError if it is missing or is something else."""
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise UserError(f"{path}: no such file") from None
    except (OSError, ValueError) as error:
        raise UserError(f"{path}: cannot be read as JSON: {error}") from None
    if not isinstance(values, dict):
        raise UserError(f"{path}: has to be a JSON object, is a {type(values).__name__}")
    return values
