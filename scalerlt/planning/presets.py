"""What a config file may not say: a sweep, or settings of Hydra's own.

Hydra reads the sweep and the launcher once, before it composes any cell. What an option of a config group says of them
would be dropped without a word, and the sweep would be smaller than its file looks.
"""

import re
from collections.abc import Iterator
from typing import Any

from hydra.core.default_element import InputDefault
from omegaconf import OmegaConf

from scalerlt.errors import RequestErrors

_SWEEP = re.compile(r"\s*(choice|range|interval|glob|shuffle|sort|tag)\(.*\)\s*", re.DOTALL)
INSTEAD = "name its values in a sweep file or on the command line"


def check_preset(path: str, config: Any, defaults: list[InputDefault] | None) -> None:
    """Raise RequestErrors for a file of a config group that holds a sweep or settings of Hydra's own.

    Args:
        path: of the file, below the folder of configuration.
        config: its content, without the defaults list.
        defaults: its defaults list.
    """
    if path.startswith("hydra/") or "/" not in path:
        return  # Hydra's own, and the primary file
    content = OmegaConf.to_container(config, resolve=False) if OmegaConf.is_config(config) else config
    problems = []
    if isinstance(content, dict) and "hydra" in content:
        problems.append(f"{path}: Hydra's own settings are the same for all cells; give hydra.KEY on the command line")
        content = {key: value for key, value in content.items() if key != "hydra"}
    problems += [f"{path}: {key}={text} is a sweep in a config file; {INSTEAD}" for key, text in _swept(content)]
    problems += [
        f"{path}: its defaults list names several options of {getattr(entry, 'group', '?')}; {INSTEAD}"
        for entry in defaults or []
        if isinstance(getattr(entry, "value", None), list)
    ]
    if problems:
        raise RequestErrors(problems)


def _swept(content: Any, where: str = "") -> Iterator[tuple[str, str]]:
    if isinstance(content, dict):
        for key, value in content.items():
            yield from _swept(value, f"{where}.{key}" if where else str(key))
    elif isinstance(content, str) and _SWEEP.fullmatch(content):
        yield where, content
