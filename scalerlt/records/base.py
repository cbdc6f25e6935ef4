"""Strict, versioned JSON documents: how every file of a run is validated, written and read."""

import errno
import json
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any, BinaryIO, Self

from pydantic import AfterValidator, BaseModel, ConfigDict, ValidationError

from scalerlt.errors import UserError

Scalar = str | int | float | bool | None
LARGEST_FILE = 2**29
"""Bytes beyond which a file is none of ours: no plan, record or series comes near."""


def _checked_moment(text: str) -> str:
    if datetime.fromisoformat(text).tzinfo is None:
        raise ValueError(f"{text} names no time zone")
    return text


Moment = Annotated[str, AfterValidator(_checked_moment)]
"""A moment in ISO 8601, with its time zone."""


class FileFault(UserError):
    """A file of a run that cannot be used. The message names the file and the fault."""


class UnwritableFile(FileFault):
    """What the operating system refuses to write: the disk is full, or the directory gone, or not to be written to."""


class UnreadableDocument(FileFault):
    """A file that is not a whole, valid document of its schema. The message names the file and the fault."""


class NewerDocument(UnreadableDocument):
    """A whole document that a later version of ScaleRLT wrote: not damaged, and not to be touched."""


class Document(BaseModel):
    """A JSON document with a schema version; unknown keys are an error.

    Non-finite numbers are written as the strings "NaN", "Infinity" and "-Infinity", so the files are strict JSON
    that any reader accepts.
    """

    model_config = ConfigDict(extra="forbid")

    def to_json(self) -> str:
        """The document as strict JSON text, ending in a newline."""
        plain = finite(self.model_dump(mode="python"))
        return json.dumps(plain, indent=1, ensure_ascii=False, allow_nan=False) + "\n"

    @classmethod
    def read(cls, path: Path) -> Self:
        """Read and validate one file.

        Raises:
            NewerDocument: it has a later schema version.
            UnreadableDocument: whatever else is wrong with it.
        """
        try:
            content = read_file(path)
        except OSError as error:
            raise UnreadableDocument(f"{path}: cannot be read ({error.strerror})") from error
        return cls.parse(content, path)

    @classmethod
    def parse(cls, content: bytes, path: Path) -> Self:
        """Validate the content of `path`; raises as `read` does."""
        try:
            return cls.model_validate_json(content)
        except ValidationError as error:
            first = error.errors()[0]
            where = ".".join(str(part) for part in first["loc"])
            version = first["input"]
            if where == "schema_version" and isinstance(version, int) and version > 1:
                raise NewerDocument(
                    f"{path}: written by a later version (schema {version}); update to read it"
                ) from error
            raise UnreadableDocument(
                f"{path}: not a valid {cls.__name__.lower()} ({where or 'document'}: {first['msg']})"
            ) from error

    def write(self, path: Path) -> None:
        """Write atomically: a reader sees the old file or the whole new one. Raises UnwritableFile."""
        write_atomically(path, self.to_json())


class Part(BaseModel):
    """A part of a document; unknown keys are an error."""

    model_config = Document.model_config


NON_FINITE = {"NaN": float("nan"), "Infinity": float("inf"), "-Infinity": float("-inf")}


def finite(value: Any) -> Any:
    """Replace non-finite floats by the strings that strict JSON can hold, in nested dicts and lists."""
    if isinstance(value, float):
        if value != value:
            return "NaN"
        if value in (float("inf"), float("-inf")):
            return "Infinity" if value > 0 else "-Infinity"
        return value
    if isinstance(value, dict):
        return {key: finite(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [finite(entry) for entry in value]
    return value


def open_file(path: Path) -> BinaryIO:
    """Open a regular file for reading; on anything else, a pipe without a writer say, it fails and never waits.

    Raises:
        OSError: there is no such file, it cannot be read, or it is not a regular one.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    found = os.fstat(descriptor)
    if not stat.S_ISREG(found.st_mode) or found.st_size > LARGEST_FILE:
        os.close(descriptor)
        fault = f"{found.st_size} bytes" if stat.S_ISREG(found.st_mode) else "not a regular file"
        raise OSError(errno.EINVAL, fault, str(path))
    return os.fdopen(descriptor, "rb")


def read_file(path: Path) -> bytes:
    """The content of a regular file; raises OSError as `open_file` does."""
    with open_file(path) as file:
        return file.read()


def write_atomically(path: Path, text: str) -> None:
    """Write text to a temporary name beside `path`, flush it to the disk, and rename it into place.

    Raises:
        UnwritableFile: it cannot be; what stood there stands there, and nothing else is left.
    """
    with _flushed(path, text) as temporary:
        temporary.replace(path)


def write_once(path: Path, text: str) -> bool:
    """Write text as `write_atomically` does, but never over a file that stands there; returns whether it did."""
    with _flushed(path, text) as temporary:
        try:
            os.link(temporary, path)
        except FileExistsError:
            return False
        finally:
            temporary.unlink()
    return True


def write_exclusively(directory: Path, suffix: str, text: str) -> Path:
    """Write text to the next free `NNN<suffix>` of a directory; two writers never get the same number.

    Raises:
        UnwritableFile: it cannot be.
    """
    with writing(directory):
        directory.mkdir(parents=True, exist_ok=True)
    return next(
        target
        for number in _free_numbers(directory, suffix)
        if write_once(target := directory / f"{number:03d}{suffix}", text)
    )


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Say of what is written here in one sentence why it cannot be.

    Raises:
        UnwritableFile: naming `path`, for every OSError.
    """
    try:
        yield
    except OSError as error:
        raise UnwritableFile(f"{path}: cannot be written ({error.strerror or error})") from error


@contextmanager
def _flushed(path: Path, text: str) -> Iterator[Path]:
    """A temporary file beside `path`, flushed to the disk; gone again if anything goes wrong with it."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    with writing(path):
        try:
            with temporary.open("w", encoding="utf-8") as file:
                file.write(text)
                file.flush()
                os.fsync(file.fileno())
            yield temporary
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise


def _free_numbers(directory: Path, suffix: str) -> Iterator[int]:
    taken = [int(path.name[: -len(suffix)]) for path in directory.glob(f"[0-9]*{suffix}")]
    number = max(taken, default=0)
    while True:
        number += 1
        yield number


def now() -> str:
    """The present moment in UTC, ISO 8601 with milliseconds."""
    return datetime.now(UTC).isoformat(timespec="milliseconds")
