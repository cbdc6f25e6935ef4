"""cell.yaml: the frozen configuration of one cell. Nothing that happens to a configuration file changes it."""

from pathlib import Path
from typing import Any, Literal

import yaml
from pydantic import Field, ValidationError

from scalerlt.records.base import Document, Part, Scalar, UnreadableDocument, read_file, write_atomically

_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_DUMPER = getattr(yaml, "CSafeDumper", yaml.SafeDumper)
"""The same documents, much faster where PyYAML was built with libyaml: each child reads one, a plan writes all."""


class FileInput(Part):
    """A file or directory that a cell reads, and the digest that stands for it in the identity."""

    path: str
    sha256: str


class FrozenCell(Document):
    """A cell as it was when it was planned: resolved, without interpolations, with its identity."""

    schema_version: Literal[1] = 1
    identity_version: int
    identity: str
    """SHA-256 of the canonical JSON of the scientific keys."""
    cell_id: str
    sweep: str
    axes: dict[str, Scalar]
    overrides: list[str] = Field(default_factory=list)
    inputs: dict[str, FileInput] = Field(default_factory=dict)
    """File inputs by configuration key."""
    config: dict[str, Any]
    """The resolved configuration, one entry per config group."""

    def write(self, path: Path) -> None:
        """Write as YAML, atomically."""
        document = self.model_dump(mode="json")
        write_atomically(path, yaml.dump(document, Dumper=_DUMPER, sort_keys=False, allow_unicode=True, width=110))

    @classmethod
    def read(cls, path: Path) -> "FrozenCell":
        """Read and validate one cell.yaml, which stands in the directory of its cell; raises UnreadableDocument."""
        try:
            frozen = cls.model_validate(yaml.load(read_file(path).decode(), _LOADER))
        except OSError as error:
            raise UnreadableDocument(f"{path}: cannot be read ({error.strerror})") from error
        except (yaml.YAMLError, ValidationError, UnicodeDecodeError) as error:
            raise UnreadableDocument(f"{path}: not a frozen cell ({str(error).splitlines()[0]})") from error
        if frozen.cell_id != path.absolute().parent.name:
            raise UnreadableDocument(f"{path}: holds another cell, {frozen.cell_id}")
        return frozen
